"""Which model a checkpoint is of."""

from __future__ import annotations

from replay.quality.llama import LlamaModel
from replay.quality.model import ProbeModel
from replay.quality.recurrent import RecurrentModel
from replay.quality.weights.checkpoint import Checkpoint


def model_of(checkpoint: Checkpoint) -> ProbeModel:
    """Return a checkpoint's model."""
    return RecurrentModel(checkpoint) if checkpoint.spec is None else LlamaModel(checkpoint)
