"""Readers of weights: every value as it was written, and one sentence for files that are not what they should be."""

import json
import struct

import ml_dtypes
import numpy as np
import pytest

from replay.errors import SpecError
from replay.quality.weights.checkpoint import read_checkpoint
from replay.quality.weights.gguf import GgufFile
from replay.quality.weights.tokenizer import Tokenizer
from tests.probe_models import CONFIG, inside_package, random_tensors, write_folder_of, write_safetensors

ROUNDED = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}


@pytest.mark.parametrize(("dtype", "name"), [("F32", "fp32"), ("F16", "fp16"), ("BF16", "bf16")])
def test_safetensors_hold_what_was_written(tmp_path, dtype, name):
    tensors = random_tensors()
    found = read_checkpoint(write_folder_of(tmp_path / "m", dtype=dtype))
    assert found.tensors.keys() == tensors.keys()
    assert all((found.tensors[key] == tensors[key].astype(ROUNDED[dtype]).astype(np.float32)).all() for key in tensors)
    assert (found.sixteen_bit, found.is_dequantised) == (name, False)
    assert (found.rope_base, found.norm_epsilon) == (10000.0, 1e-5)


def test_tied_embeddings_that_are_written_twice_count_once(tmp_path):
    tensors = random_tensors()
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    assert "lm_head.weight" not in read_checkpoint(write_folder_of(tmp_path / "m", tensors=tensors)).tensors


def without(name):
    return {key: value for key, value in random_tensors().items() if key != name}


BROKEN = {
    "missing": (without("model.norm.weight"), CONFIG, "no tensor model.norm.weight"),
    "shape": (random_tensors(), CONFIG | {"intermediate_size": 128}, r"the shape \(96, 64\); want \(128, 64\), as the config says"),
    "further": (random_tensors() | {"model.extra.weight": np.ones(3, np.float32)}, CONFIG, "does not ask for"),
    "rope": (random_tensors(), CONFIG | {"rope_scaling": {"type": "linear", "factor": 2.0}}, "scaled rotary embeddings"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_weights_that_do_not_fit_the_config_are_one_sentence(tmp_path, kind):
    tensors, config, said = BROKEN[kind]
    with pytest.raises(SpecError, match=said) as error:
        read_checkpoint(write_folder_of(tmp_path / "m", config=config, tensors=tensors))
    assert "\n" not in str(error.value)


def test_quantised_or_damaged_safetensors_are_refused(tmp_path):
    folder = write_folder_of(tmp_path / "m")
    write_safetensors(folder / "model-1.safetensors", {"model.norm.weight": np.ones(64)}, "I8")
    with pytest.raises(SpecError, match=r"model.norm.weight: the tensor type I8; want one of F64, F32"):
        read_checkpoint(folder)
    whole = (write_folder_of(tmp_path / "n") / "model-1.safetensors").read_bytes()
    for data in (whole[:-9], whole[:50], b"\xff" * 40, struct.pack("<Q", 4) + b"[1]x"):
        (tmp_path / "n" / "model-1.safetensors").write_bytes(data)
        with pytest.raises(SpecError):
            read_checkpoint(tmp_path / "n")


@pytest.mark.parametrize("content", [None, b"", b"hello there", b"GGUF", b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1 << 60)])
def test_what_is_no_checkpoint_is_one_sentence(tmp_path, content):
    path = tmp_path / "weights"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SpecError):
        read_checkpoint(path)


def gguf(metadata, tensors):
    """Return a GGUF file of scalars and texts by key and (type number, NumPy shape, bytes) by name."""

    def text(value):
        return struct.pack("<Q", len(value.encode())) + value.encode()

    def value(one):
        if isinstance(one, str):
            return struct.pack("<I", 8) + text(one)
        if isinstance(one, list):
            return struct.pack("<IIQ", 9, 8, len(one)) + b"".join(map(text, one))
        return struct.pack("<If", 6, one) if isinstance(one, float) else struct.pack("<II", 4, one)

    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(text(key) + value(one) for key, one in metadata.items())
    offset = 0
    for name, (kind, shape, data) in tensors.items():
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], kind, offset)
        offset += -(-len(data) // 32) * 32
    body = b"".join(data + bytes(-len(data) % 32) for _, _, data in tensors.values())
    return head + bytes(-len(head) % 32) + body


METADATA = {
    "general.architecture": "llama", "llama.block_count": 2, "llama.embedding_length": 64, "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4, "llama.attention.head_count_kv": 2, "llama.context_length": 256, "llama.rope.freq_base": 10000.0,
    "llama.attention.layer_norm_rms_epsilon": 1e-5, "tokenizer.ggml.tokens": [f"t{place}" for place in range(101)],
}  # fmt: skip
GGUF_NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip


def as_gguf(name, values):
    """Return a tensor's name in a GGUF file and its values, queries and keys with the halves of each head interleaved."""
    if name.startswith("model.layers."):
        _, _, layer, *rest = name.split(".")
        inner = ".".join(rest[:-1])
        if inner.endswith(("q_proj", "k_proj")):
            heads = 4 if "q_proj" in inner else 2
            values = values.reshape(heads, 2, 8, 64).swapaxes(1, 2).reshape(values.shape)
        return f"blk.{layer}.{GGUF_NAMES[inner]}.weight", values
    return {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}[name], values


def test_a_gguf_file_is_the_same_model_as_its_safetensors(tmp_path):
    tensors = random_tensors()
    named = dict(as_gguf(name, values) for name, values in tensors.items())
    (tmp_path / "m.gguf").write_bytes(gguf(METADATA, {name: (0, values.shape, values.tobytes()) for name, values in named.items()}))
    found, expected = read_checkpoint(tmp_path / "m.gguf"), read_checkpoint(write_folder_of(tmp_path / "m"))
    assert all((found.tensors[name] == expected.tensors[name]).all() for name in expected.tensors)
    assert found.spec.to_document() | {"name": "", "weights_format": ""} == expected.spec.to_document() | {"name": "", "weights_format": ""}


def test_a_gguf_file_of_another_design_or_type_is_one_sentence(tmp_path):
    path = tmp_path / "m.gguf"
    designs = {"general.architecture": ("gpt2", "architecture gpt2"), "llama.rope.scaling.type": ("yarn", "scaled by yarn")}
    for key, (value, said) in designs.items():
        path.write_bytes(gguf(METADATA | {key: value}, {}))
        with pytest.raises(SpecError, match=said):
            read_checkpoint(path)
    path.write_bytes(gguf(METADATA, {"token_embd.weight": (12, (101, 64), bytes(101 * 64))}))
    with pytest.raises(SpecError, match=r"token_embd.weight: the tensor type number 12; want one of F32, F16, Q4_0, Q4_1, Q8_0, BF16"):
        read_checkpoint(path)
    path.write_bytes(gguf(METADATA, {"token_embd.weight": (0, (101, 64), bytes(64))}))
    with pytest.raises(SpecError, match=r"token_embd.weight with 25856 bytes"):
        read_checkpoint(path)


def test_block_formats_are_those_of_a_loop_over_bytes(tmp_path):
    rng = np.random.default_rng(0)
    blocks, sizes = {}, {2: 18, 3: 20, 8: 34}
    for kind, size in sizes.items():
        raw = rng.integers(0, 256, (6, size), dtype=np.uint8)
        raw[:, :4].view(np.float16)[:] = rng.normal(size=(6, 2))
        blocks[f"t{kind}"] = (kind, (2, 96), raw.tobytes())
    (tmp_path / "m.gguf").write_bytes(gguf({}, blocks))
    for tensor in GgufFile(tmp_path / "m.gguf").tensors():
        kind, _, data = blocks[tensor.name]
        expected = []
        for start in range(0, len(data), sizes[kind]):
            block = data[start : start + sizes[kind]]
            scale, least = struct.unpack("<2e", block[:4])
            if kind == 8:
                expected += [scale * code for code in struct.unpack("<32b", block[2:])]
                continue
            codes = [byte & 15 for byte in block[-16:]] + [byte >> 4 for byte in block[-16:]]
            expected += [scale * (code - 8) if kind == 2 else scale * code + least for code in codes]
        assert np.allclose(tensor.values.ravel(), expected, rtol=1e-6, atol=1e-6)


def test_arrays_of_a_recurrent_model_must_go_together(tmp_path):
    path = inside_package("g2p_en", "checkpoint20.npz")
    found = read_checkpoint(path)
    assert sum(values.size for values in found.tensors.values()) == 834890
    with np.load(path) as archive:
        arrays = dict(archive)
    np.savez(tmp_path / "cut.npz", **(arrays | {"dec_w_hh": arrays["dec_w_hh"][:, :-1]}))
    with pytest.raises(SpecError, match=r"dec_w_hh: the shape \(768, 255\); want \(768, 256\)"):
        read_checkpoint(tmp_path / "cut.npz")
    np.savez(tmp_path / "less.npz", **{name: values for name, values in arrays.items() if name != "fc_w"})
    with pytest.raises(SpecError, match="no float array fc_w"):
        read_checkpoint(tmp_path / "less.npz")
    (tmp_path / "broken.npz").write_bytes(path.read_bytes()[:1000])
    with pytest.raises(SpecError, match="no archive of NumPy arrays"):
        read_checkpoint(tmp_path / "broken.npz")


def test_a_folder_without_weights_is_one_sentence(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(SpecError, match="a folder without"):
        read_checkpoint(tmp_path)


BYTES = [chr(code) for code in (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x180))]
"""The letters that stand for single bytes, and a few beyond."""
MERGES = ["a b", "Ġ ab", "ab ab", "1 2"]
PIECES = [*BYTES, "ab", "Ġab", "abab", "12"]


@pytest.mark.parametrize(
    ("words", "text", "pieces"),
    [
        ("gpt-2", "abab ab12", ["abab", "Ġab", "12"]),
        ("smollm", "abab ab12", ["abab", "Ġab", "1", "2"]),
        ("smollm", "it's  \n\n12", ["i", "t", "'", "s", "Ġ", "Ġ", "Ċ", "Ċ", "1", "2"]),
        ("gpt-2", "é", ["Ã", "©"]),
    ],
)
def test_texts_are_cut_and_merged_as_byte_level_pairs(words, text, pieces):
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": words,
        "tokenizer.ggml.tokens": PIECES,
        "tokenizer.ggml.merges": MERGES,
    }
    tokenizer = Tokenizer.of(metadata)
    assert [PIECES[token] for token in tokenizer.encode(text, "x")] == pieces
    assert Tokenizer.of(metadata | {"tokenizer.ggml.pre": "llama-bpe"}) is None
    assert Tokenizer.of(metadata | {"tokenizer.ggml.model": "llama"}) is None


def test_a_piece_that_the_vocabulary_lacks_is_one_sentence():
    tokenizer = Tokenizer(["a"], ["a b"], "gpt-2")
    with pytest.raises(SpecError, match=r"'b' is not in the vocabulary"):
        tokenizer.encode("b", "probes.jsonl:3")
