"""The door: a file or folder of weights -> `Checkpoint`, with every tensor of the model there and of the shape that its config says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from replay import documents
from replay.errors import SpecError
from replay.ingress.model_config import model_from_config
from replay.provenance import digest_document, digest_file
from replay.quality.elements import Values
from replay.quality.weights.gguf import MAGIC, GgufFile
from replay.quality.weights.gguf_llama import config_of, renamed
from replay.quality.weights.recurrent_arrays import read_recurrent
from replay.quality.weights.safetensors import read_safetensors
from replay.quality.weights.stored_tensor import StoredTensor
from replay.quality.weights.tokenizer import Tokenizer
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
    tokenizer: Tokenizer | None = None
    """What makes tokens of texts, where the files hold one that can be read."""

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
        arrays = read_recurrent(path)
        return _checkpoint(arrays, digest_file(path), None)
    if not path.is_file():
        raise SpecError(str(path), "no such file", WANTED, "check the path")
    with path.open("rb") as file:
        head = file.read(4)
    if head != MAGIC:
        raise SpecError(str(path), "no known kind of weights", WANTED, "name the checkpoint")
    return _gguf(path)


def _folder(path: Path) -> Checkpoint:
    config = documents.read_json_object(path / "config.json", "a model's config.json")
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise SpecError(str(path), "a folder without *.safetensors", WANTED, "download the weights beside config.json")
    found = [tensor for file in files for tensor in read_safetensors(file)]
    digest = digest_document([digest_file(file) for file in files])
    return _transformer(found, config, str(path), digest)


def _gguf(path: Path) -> Checkpoint:
    file = GgufFile(path)
    config = config_of(file.metadata, str(path))
    found = [renamed(tensor, config) for tensor in file.tensors()]
    config["tie_word_embeddings"] = all(tensor.name != "lm_head.weight" for tensor in found)
    checkpoint = _transformer(found, config, str(path), digest_file(path))
    return replace(checkpoint, tokenizer=Tokenizer.of(file.metadata))


def _transformer(found: Iterable[StoredTensor], config: Mapping[str, Any], where: str, digest: str) -> Checkpoint:
    spec = model_from_config(config, where=where, name=Path(where).stem)
    if spec.experts is not None or spec.mla is not None:
        raise SpecError(where, "a mixture of experts or latent attention", "a dense Llama-like model", "choose a dense model")
    rope = config.get("rope_parameters") or {}
    for scaling in (config.get("rope_scaling"), rope if rope.get("rope_type", "default") != "default" else None):
        if scaling:
            raise SpecError(where, "scaled rotary embeddings", "plain rotary embeddings", "choose a model of that design")
    stored = [tensor for tensor in found if not tensor.name.endswith("rotary_emb.inv_freq")]
    if spec.tied_embeddings:  # some files hold the embeddings a second time
        stored = [tensor for tensor in stored if tensor.name != "lm_head.weight"]
    checkpoint = _checkpoint(stored, digest, spec)
    _check_shapes(checkpoint.tensors, spec, where)
    base = float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0)
    return replace(checkpoint, rope_base=base, norm_epsilon=float(config.get("rms_norm_eps") or 1e-6))


def _checkpoint(stored: Sequence[StoredTensor], digest: str, spec: ModelSpec | None) -> Checkpoint:
    tensors = {tensor.name: tensor.values for tensor in stored}
    return Checkpoint(tensors=tensors, stored_as=Counter(tensor.stored_as for tensor in stored), digest=digest, spec=spec)


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
