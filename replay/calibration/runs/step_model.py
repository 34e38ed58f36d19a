"""A served step's time from seven numbers, as a StepTable that the replay prices exactly.

A step takes, in seconds::

    sqrt(base^2 + (per_token x T)^2) + per_sequence x S + per_context_token x K + per_prefill_token x P + per_pair x Q
        + per_mixed_step if P > 0

T is the tokens of the step, rounded up to the captured graph that it replays; S its sequences; K the summed context of those that
decode; P and Q the tokens of prompts in it and their causal (query, key) pairs. Reading the weights (base) hides in part behind the
products (per_token x T) or the reverse, hence the norm; the rest adds up, for no other kernel runs beside it. A cost of K that only
mixed steps have is left out: the table's decode rows do not know the phase.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from replay.calibration.runs.server import Server
from replay.specs.run_calibration import StepParameters
from replay.tiling.step_table import KERNEL_SCHEMA, TERMS, KvPool, StepTable

Counts = npt.NDArray[np.int64]

OVERLAP_EXPONENT = 2.0
"""Of the norm: of 1, 2 and 4 the one with the smallest mean error on the *fitted* halves of three recorded vLLM 0.19 servers."""


class StepTables:
    """Builds step tables of one server; what the parameters do not change is built once.

    Contexts and pairs are products, so that two knots an axis hold them exactly: K = sequences x mean context and
    Q = prompt tokens x mean keys, each from 0 at the first knot.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        limits = server.limits
        knots, rows = np.array([0.0, float(limits.max_context_tokens)]), limits.max_batched_tokens + 1
        phases, tokens = np.repeat([0, 1], rows), np.tile(np.arange(rows), 2)
        sequences = np.arange(limits.max_running + 1)
        captured = captured_tokens(tokens, server.captured_sizes, limits.max_batched_tokens)
        self._tokens = {"phase": phases, "tokens": tokens}
        self._sequences = {"sequences": sequences}
        self._decode = {"sequences": np.repeat(sequences, 2), "context_tokens": np.tile(knots, len(sequences))}
        self._prefill = {"tokens": np.repeat([0.0, float(limits.max_batched_tokens)], 2), "keys_tokens": np.tile(knots, 2)}
        self._capture = pa.table({**self._tokens, "captured_tokens": captured})

    def build(self, parameters: StepParameters) -> StepTable:
        """Return the table of the server whose steps cost what the parameters say (`startup_s` is no part of it)."""
        server = self.server
        pool = KvPool(
            blocks_count=server.blocks_count, block_tokens=server.block_tokens, block_bytes=0.0, weights_bytes=0.0, workspace_bytes=0.0
        )
        return StepTable(
            kernels=_KERNELS,
            token_terms=pa.table(self._tokens | self._product_terms(parameters)),
            sequence_terms=pa.table(
                self._sequences | _terms("sampling", compute_s=parameters.per_sequence_s * self._sequences["sequences"])
            ),
            decode_terms=pa.table(self._decode | self._decode_terms(parameters)),
            prefill_terms=pa.table(self._prefill | self._prefill_terms(parameters)),
            capture=self._capture,
            host_launch_s=0.0,
            host_graph_launch_s=0.0,
            launches_count=0,
            prefill_launches_count=0,
            pool=pool,
            limits=server.limits,
            reference_flops_per_s=1.0,  # utilisation is not asked of such a table
        )

    def _product_terms(self, parameters: StepParameters) -> dict[str, npt.NDArray[Any]]:
        busy = np.minimum(self._tokens["tokens"], 1)  # a step without tokens costs nothing
        return _terms(
            "products",
            compute_s=parameters.per_token_s * self._tokens["tokens"],
            memory_s=parameters.base_s * busy,
            sync_s=parameters.per_mixed_step_s * busy * self._tokens["phase"],
        )

    def _decode_terms(self, parameters: StepParameters) -> dict[str, npt.NDArray[Any]]:
        contexts = self._decode["sequences"] * self._decode["context_tokens"]
        return _terms("attention_decode", memory_s=parameters.per_context_token_s * contexts)

    def _prefill_terms(self, parameters: StepParameters) -> dict[str, npt.NDArray[Any]]:
        tokens, keys = self._prefill["tokens"], self._prefill["keys_tokens"]
        return _terms("attention_prefill", compute_s=parameters.per_prefill_token_s * tokens + parameters.per_pair_s * tokens * keys)


def captured_tokens(tokens: Counts, sizes: Sequence[int], largest: int) -> Counts:
    """Return the size of the captured graph that steps of `tokens` [steps] replay, 0 where they run eagerly; none is above `largest`."""
    usable = np.array(sorted({size for size in sizes if size <= largest}), dtype=np.int64)
    place = np.searchsorted(usable, tokens)
    return np.where((tokens > 0) & (place < len(usable)), np.append(usable, 0)[place], 0)


def _terms(kernel: str, **given: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    rows = len(next(iter(given.values())))
    return {f"{kernel}.{term}": given.get(term, np.zeros(rows)) for term in TERMS}


def _kernel(name: str, axis: str, layer_type: str, exponent: float = math.inf) -> dict[str, object]:
    numbers = dict.fromkeys(("error_ratio", "flops_per_token", "flops_per_sequence", "flops_per_pair"), 0.0)
    row = {"kernel": name, "layer_type": layer_type, "axis": axis, "calls_count": 1, "overlap_exponent": exponent}
    return {**row, "source": "calibrated", "stack": "", "calibration": "", **numbers}


_KERNELS = pa.Table.from_pylist(
    [
        _kernel("products", "tokens", "mlp", OVERLAP_EXPONENT),
        _kernel("sampling", "sequences", "lm_head"),
        _kernel("attention_decode", "decode_attention", "attention"),
        _kernel("attention_prefill", "prefill_attention", "attention"),
    ],
    schema=KERNEL_SCHEMA,
)
