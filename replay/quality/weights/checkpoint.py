"""The door: a file or folder of weights -> `Checkpoint`, with every tensor of the model there and of the shape that its config says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from replay import documents
from replay.errors import SpecError
from replay.ingress.model_config import model_from_config
from replay.provenance import digest_bytes
from replay.quality.elements import Values
from replay.quality.weights.gguf import MAGIC, GgufFile
from replay.quality.weights.safetensors import StoredTensor, read_safetensors
from replay.specs.model import ModelSpec

WANTED = "a folder with config.json and safetensors files, a GGUF file, or an .npz of a recurrent encoder and decoder"
_BLOCKS = {"q4_0", "q4_1", "q8_0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Weights as float32, and what is known of them."""

    tensors: Mapping[str, Values]
    """By the name that Hugging Face gives them; matrices are [outputs, inputs]."""
    stored_as: Mapping[str, int]
    """Number of tensors by the format in the files."""
    digest: str
    spec: ModelSpec | None
    """None for a recurrent model."""
    rope_base: float = 10000.0
    norm_epsilon: float = 1e-6

    @property
    def is_dequantised(self) -> bool:
        """Whether the files hold quantised weights, so that a difference is from them and not from what they were made of."""
        return bool(self.stored_as.keys() & _BLOCKS)

    @property
    def sixteen_bit(self) -> str:
        """What servers compute in where a mapping says `model`: bf16 or fp16 as in the files, fp16 for quantised GGUF files, else fp32."""
        common = max(self.stored_as, key=lambda name: self.stored_as[name])
        return "fp16" if common in _BLOCKS else common if common in ("bf16", "fp16") else "fp32"


def read_checkpoint(path: Path) -> Checkpoint:
    """Return the checkpoint in a file or folder.

    Raises:
        SpecError: it is of no known kind, cannot be read, or its tensors are not those that its config asks for.
    """
    if path.is_dir():
        return _folder(path)
    if path.suffix == ".npz":
        return _recurrent(path)
    with path.open("rb") if path.is_file() else _absent(path) as file:
        head = file.read(4)
    if head != MAGIC:
        raise SpecError(str(path), "no known kind of weights", WANTED, "name the checkpoint")
    return _gguf(path)


def _absent(path: Path) -> Any:
    raise SpecError(str(path), "no such file", WANTED, "check the path")


def _folder(path: Path) -> Checkpoint:
    config = documents.read_json_object(path / "config.json", "a model's config.json")
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise SpecError(str(path), "a folder without *.safetensors", WANTED, "download the weights beside config.json")
    found = [tensor for file in files for tensor in read_safetensors(file)]
    digest = digest_bytes("".join(digest_bytes(file.read_bytes()) for file in files).encode())
    return _transformer(found, config, str(path), digest)


def _gguf(path: Path) -> Checkpoint:
    file = GgufFile(path)
    config = _config_of(file.metadata, str(path), has_head=False)
    found = [_renamed(tensor, config) for tensor in file.tensors()]
    config["tie_word_embeddings"] = all(tensor.name != "lm_head.weight" for tensor in found)
    return _transformer(found, config, str(path), digest_bytes(path.read_bytes()))


_KEYS = {
    "num_hidden_layers": "block_count", "hidden_size": "embedding_length", "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count", "num_key_value_heads": "attention.head_count_kv", "max_position_embeddings": "context_length",
    "rope_theta": "rope.freq_base", "rms_norm_eps": "attention.layer_norm_rms_epsilon", "vocab_size": "vocab_size",
}  # fmt: skip
"""Field of a config.json -> key of a GGUF file, behind the architecture."""
_NAMES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}  # fmt: skip
_OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def _config_of(metadata: Mapping[str, Any], where: str, *, has_head: bool) -> dict[str, Any]:
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise SpecError(where, f"the architecture {architecture}", "llama", "take a Llama-like model, or its safetensors files")
    scaling = metadata.get("llama.rope.scaling.type", "none")
    if scaling != "none":
        raise SpecError(where, f"rotary embeddings scaled by {scaling}", "plain rotary embeddings", "choose a model of that design")
    config = {field: metadata[f"llama.{key}"] for field, key in _KEYS.items() if f"llama.{key}" in metadata}
    config.setdefault("vocab_size", len(metadata.get("tokenizer.ggml.tokens", ())))
    return {"model_type": "llama", "torch_dtype": "float16", "tie_word_embeddings": not has_head, **config}


def _renamed(tensor: StoredTensor, config: Mapping[str, Any]) -> StoredTensor:
    """Return a GGUF tensor by its usual name; the rows of queries and keys, which the format interleaves, in their usual order."""
    parts = tensor.name.split(".")
    if parts[0] == "blk" and len(parts) == 4 and parts[2] in _NAMES:
        name = f"model.layers.{parts[1]}.{_NAMES[parts[2]]}.{parts[3]}"
    else:
        name = f"{_OUTSIDE.get(parts[0], parts[0])}.{parts[-1]}"
    values = tensor.values
    if parts[-2] in ("attn_q", "attn_k"):
        heads = config.get("num_attention_heads" if parts[-2] == "attn_q" else "num_key_value_heads", config.get("num_attention_heads"))
        if isinstance(heads, int) and heads and not len(values) % (2 * heads):
            split = values.reshape(heads, len(values) // heads // 2, 2, *values.shape[1:])
            values = np.ascontiguousarray(split.swapaxes(1, 2).reshape(values.shape))
    return StoredTensor(name=name, values=values, stored_as=tensor.stored_as)


def _transformer(found: Iterable[StoredTensor], config: Mapping[str, Any], where: str, digest: str) -> Checkpoint:
    spec = model_from_config(config, where=where, name=Path(where).stem)
    if spec.experts is not None or spec.mla is not None:
        raise SpecError(where, "a mixture of experts or latent attention", "a dense Llama-like model", "choose a dense model")
    rope = config.get("rope_parameters") or {}
    for scaling in (config.get("rope_scaling"), rope if rope.get("rope_type", "default") != "default" else None):
        if scaling:
            raise SpecError(where, "scaled rotary embeddings", "plain rotary embeddings", "choose a model of that design")
    stored = list(found)
    tensors = {tensor.name: tensor.values for tensor in stored if not tensor.name.endswith("rotary_emb.inv_freq")}
    if spec.tied_embeddings:
        tensors.pop("lm_head.weight", None)
    _check_shapes(tensors, spec, where)
    return Checkpoint(
        tensors=tensors,
        stored_as=Counter(tensor.stored_as for tensor in stored),
        digest=digest,
        spec=spec,
        rope_base=float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0),
        norm_epsilon=float(config.get("rms_norm_eps") or 1e-6),
    )


def expected_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a dense model and their shapes."""
    hidden, wide, head = spec.hidden_size, spec.intermediate_size, spec.head_size
    queries, keys = spec.query_heads * head, spec.kv_heads * head
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (spec.vocabulary_size, hidden), "model.norm.weight": (hidden,)}
    if not spec.tied_embeddings:
        shapes["lm_head.weight"] = (spec.vocabulary_size, hidden)
    own: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries, hidden), "self_attn.k_proj.weight": (keys, hidden), "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries), "mlp.gate_proj.weight": (wide, hidden), "mlp.up_proj.weight": (wide, hidden),
        "mlp.down_proj.weight": (hidden, wide),
    }  # fmt: skip
    if spec.attention_bias:
        own |= {"self_attn.q_proj.bias": (queries,), "self_attn.k_proj.bias": (keys,), "self_attn.v_proj.bias": (keys,)}
    if spec.qk_norm:
        own |= {"self_attn.q_norm.weight": (head,), "self_attn.k_norm.weight": (head,)}
    for layer in range(spec.layers_count):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in own.items()}
    return shapes


def _check_shapes(tensors: Mapping[str, Values], spec: ModelSpec, where: str) -> None:
    expected = expected_shapes(spec)
    fix = "take config and weights of one model"
    for name, shape in expected.items():
        if name not in tensors:
            raise SpecError(where, f"no tensor {name}", "every tensor that the config asks for", fix)
        if tensors[name].shape != shape:
            raise SpecError(f"{where}: {name}", f"the shape {tensors[name].shape}", f"{shape}, as the config says", fix)
    further = sorted(tensors.keys() - expected.keys())
    if further:
        raise SpecError(where, f"the tensor {further[0][:80]!a} that the config does not ask for", "no further tensors", fix)


_CELLS = ("emb", "w_ih", "w_hh", "b_ih", "b_hh")


def _recurrent(path: Path) -> Checkpoint:
    """Return a GRU encoder and decoder: `enc_` and `dec_` before emb, w_ih, w_hh, b_ih and b_hh; fc_w and fc_b."""
    where, data = str(path), documents.read_bytes(path, WANTED)
    try:
        with np.load(path, allow_pickle=False) as archive:
            tensors = {name: archive[name] for name in archive.files}
    except (ValueError, OSError, KeyError) as error:
        raise SpecError(where, "it is no archive of NumPy arrays", WANTED, "download it again") from error
    names = [f"{side}_{cell}" for side in ("enc", "dec") for cell in _CELLS] + ["fc_w", "fc_b"]
    missing = [name for name in names if name not in tensors or tensors[name].dtype not in (np.float32, np.float16)]
    if missing:
        raise SpecError(where, f"no float array {missing[0]}", f"arrays {', '.join(names)}", "take weights of a GRU encoder and decoder")
    stored = Counter("fp32" if tensors[name].dtype == np.float32 else "fp16" for name in names)
    kept = {name: tensors[name].astype(np.float32) for name in names}
    hidden = kept["enc_w_hh"].shape[-1]
    for side in ("enc", "dec"):
        wide = kept[f"{side}_emb"].shape[-1]
        shapes = {"w_ih": (3 * hidden, wide), "w_hh": (3 * hidden, hidden), "b_ih": (3 * hidden,), "b_hh": (3 * hidden,)}
        for cell, shape in shapes.items():
            _same_shape(kept, f"{side}_{cell}", shape, where)
    symbols = len(kept["dec_emb"])
    _same_shape(kept, "fc_w", (symbols, hidden), where)
    _same_shape(kept, "fc_b", (symbols,), where)
    return Checkpoint(tensors=kept, stored_as=stored, digest=digest_bytes(data), spec=None)


def _same_shape(tensors: Mapping[str, Values], name: str, shape: tuple[int, ...], where: str) -> None:
    if tensors[name].shape != shape:
        raise SpecError(f"{where}: {name}", f"the shape {tensors[name].shape}", f"{shape}", "take the arrays of one model")
