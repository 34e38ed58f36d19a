"""Tiny checkpoints written as the files that publishers ship, and where installed packages keep real ones."""

import importlib.util
import json
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from replay.specs.model import ModelSpec

CONFIG = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 101, "max_position_embeddings": 256, "rope_theta": 10000.0, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True, "torch_dtype": "float32", "hidden_act": "silu",
}  # fmt: skip


def random_tensors(config=CONFIG, seed=0):
    """Return weights by name that make a tiny model of a config, with logits that differ by a few units."""
    from replay.ingress.model_config import model_from_config
    from replay.quality.weights.checkpoint import expected_shapes

    spec: ModelSpec = model_from_config(config, where="config", name="tiny")
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, shape in expected_shapes(spec).items():
        scale = 1.0 if "embed" in name else 1.5 / np.sqrt(shape[-1])
        drawn = 1 + 0.1 * rng.normal(size=shape) if "norm" in name else scale * rng.normal(size=shape)
        tensors[name] = drawn.astype(np.float32)
    return tensors


def write_safetensors(path: Path, tensors, dtype="F32"):
    """Write tensors as F32, F16 or BF16."""
    kinds = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "I8": np.int8}
    header, body = {"__metadata__": {"format": "pt"}}, b""
    for name, values in tensors.items():
        raw = np.ascontiguousarray(values).astype(kinds[dtype]).tobytes()
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def write_folder_of(folder: Path, config=CONFIG, tensors=None, dtype="F32"):
    """Write config.json and the weights in two files."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    found = random_tensors(config) if tensors is None else tensors
    names = sorted(found)
    write_safetensors(folder / "model-1.safetensors", {name: found[name] for name in names[::2]}, dtype)
    write_safetensors(folder / "model-2.safetensors", {name: found[name] for name in names[1::2]}, dtype)
    return folder


def write_probes(path: Path, count=12, length=24, vocabulary=101, seed=1):
    """Write random prompts."""
    rng = np.random.default_rng(seed)
    rows = [{"item_id": f"p{place}", "tokens": rng.integers(0, vocabulary, length).tolist()} for place in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def inside_package(package, name):
    """Return a file inside an installed package, without importing it; the test is skipped where it is not installed."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"the package {package} is not installed (`make test-all` installs it)")
    return Path(found.origin).parent / name


def word_probes(path: Path, words):
    """Write words as the letters that g2p-en reads."""
    rows = [{"item_id": word, "tokens": [ord(letter) - ord("a") + 3 for letter in word] + [2]} for word in words]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
