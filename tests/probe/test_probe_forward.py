"""The NumPy models against references in float64 written another way, and what does not depend on how a sequence is cut."""

import numpy as np
import pytest

from replay.quality.attention import attend
from replay.quality.elements import ELEMENTS
from replay.quality.llama import LlamaModel
from replay.quality.models import model_of
from replay.quality.numerics import LAYERS, Numerics, differing
from replay.quality.weights.checkpoint import read_checkpoint
from replay.specs.mapping import parse_mapping
from tests.probe_models import CONFIG, inside_package, random_tensors, write_folder_of

TOKENS = np.random.default_rng(5).integers(0, 101, 40).tolist()
EXACT = Numerics.exact()
QWEN = CONFIG | {"model_type": "qwen3", "head_dim": 32, "attention_bias": True, "tie_word_embeddings": False}
MISTRAL = CONFIG | {"model_type": "mistral", "sliding_window": 7}


def reference(tensors, config, tokens):
    """Return the logits of every token in float64, one head and one position at a time."""
    weights = {name: values.astype(np.float64) for name, values in tensors.items()}
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    window = config.get("sliding_window") or len(tokens)

    def norm(row, name):
        return row / np.sqrt((row**2).mean() + config["rms_norm_eps"]) * weights[name]

    def turned(row, position):
        angles = position / config["rope_theta"] ** (np.arange(size // 2) * 2 / size)
        pairs = (row[: size // 2] + 1j * row[size // 2 :]) * np.exp(1j * angles)
        return np.concatenate([pairs.real, pairs.imag])

    hidden = [weights["model.embed_tokens.weight"][token] for token in tokens]
    for layer in range(config["num_hidden_layers"]):
        place = f"model.layers.{layer}."

        def project(name, row, place=place):
            return weights[f"{place}{name}.weight"] @ row + weights.get(f"{place}{name}.bias", 0.0)

        normed = [norm(row, f"{place}input_layernorm.weight") for row in hidden]
        mixed = [[] for _ in tokens]
        for head in range(heads):
            own, shared = slice(head * size, (head + 1) * size), head // (heads // kv_heads)
            cut = slice(shared * size, (shared + 1) * size)
            queries, keys = ([project(f"self_attn.{name}_proj", row)[part] for row in normed] for name, part in (("q", own), ("k", cut)))
            if config["model_type"] == "qwen3":
                queries = [norm(row, f"{place}self_attn.q_norm.weight") for row in queries]
                keys = [norm(row, f"{place}self_attn.k_norm.weight") for row in keys]
            queries, keys = ([turned(row, position) for position, row in enumerate(rows)] for rows in (queries, keys))
            values = [project("self_attn.v_proj", row)[cut] for row in normed]
            for position, query in enumerate(queries):
                first = max(0, position - window + 1)
                scores = np.array([query @ key for key in keys[first : position + 1]]) / np.sqrt(size)
                shares = np.exp(scores - scores.max())
                mixed[position].append(shares / shares.sum() @ np.array(values[first : position + 1]))
        hidden = [row + project("self_attn.o_proj", np.concatenate(parts)) for row, parts in zip(hidden, mixed, strict=True)]
        for position, row in enumerate(hidden):
            inner = norm(row, f"{place}post_attention_layernorm.weight")
            gate = project("mlp.gate_proj", inner)
            hidden[position] = row + project("mlp.down_proj", gate / (1 + np.exp(-gate)) * project("mlp.up_proj", inner))
    head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    return np.array([head @ norm(row, "model.norm.weight") for row in hidden])


@pytest.mark.parametrize("config", [CONFIG, QWEN, MISTRAL], ids=["llama", "qwen3", "mistral"])
def test_the_forward_pass_is_that_of_a_float64_reference(tmp_path, config):
    model = LlamaModel(read_checkpoint(write_folder_of(tmp_path / "m", config=config)))
    logits = model.logits(EXACT, model.states(EXACT, [*TOKENS, 0], TOKENS))
    expected = reference(random_tensors(config), config, TOKENS)
    assert np.abs(logits - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.fixture
def tiny(tmp_path):
    return LlamaModel(read_checkpoint(write_folder_of(tmp_path / "m")))


def mapping(body):
    return Numerics.of(parse_mapping(f'name = "m"\n{body}', "m"), "fp32")


FORMATS = ["", '[formats]\nweights = "int8"\nactivations = "int8"\nkv = "fp8"\n', "[attention]\nkv_split = 3\n[gemm]\nsplit_k = 2\n"]


@pytest.mark.parametrize("body", FORMATS)
def test_answers_with_a_cache_and_in_a_batch_are_those_without(tiny, body):
    numerics = mapping(body)
    prompts = [TOKENS[:9], TOKENS[9:30], TOKENS[30:]]
    answers = tiny.answers(numerics, prompts, 6)
    for prompt, answer in zip(prompts, answers, strict=True):
        tokens = list(prompt)
        for token in answer.tokens:
            states = tiny.states(numerics, [*tokens, 0], [])
            assert int(tiny.logits(numerics, states[-1:]).argmax()) == token
            tokens.append(token)


def test_attention_in_parts_is_the_whole_one_and_a_window_sees_no_further():
    rng = np.random.default_rng(1)
    queries, keys, values = (rng.normal(size=(count, heads, 16)).astype(np.float32) for count, heads in ((300, 4), (320, 2), (320, 2)))
    whole = attend(queries, keys, values, window=None, parts=1, stored=None)
    assert np.abs(attend(queries, keys, values, window=None, parts=7, stored=None) - whole).max() < 1e-5
    near = attend(queries, keys, values, window=9, parts=7, stored=None)
    assert np.abs(attend(queries[-1:], keys[-9:], values[-9:], window=None, parts=1, stored=None) - near[-1:]).max() < 1e-5


def test_the_cache_holds_what_its_format_holds(tiny):
    exact, narrow = mapping(""), mapping('[formats]\nkv = "fp8"\n')
    e4m3 = ELEMENTS["fp8_e4m3"]
    coarse = tiny.states(narrow, [*TOKENS, 0], [])
    assert (coarse != tiny.states(exact, [*TOKENS, 0], [])).any()
    rng = np.random.default_rng(1)
    queries, keys = (rng.normal(size=(1, heads, 16)).astype(np.float32) for heads in (4, 2))
    alone = attend(queries, e4m3.stored(keys), e4m3.stored(keys), window=None, parts=1, stored=None)
    assert (alone.reshape(2, 2, 16) == e4m3.stored(keys).transpose(1, 0, 2)).all()


def test_scopes_of_a_mapping_reach_the_layer_types_they_name():
    numerics = mapping('[formats]\nweights = "int8"\n"weights@mlp" = "int4"\n"weight_scales@mlp" = "group32"\n"activations@qkv" = "fp8"\n')
    assert {layer: str(numerics.weights(layer)) for layer in LAYERS} == {
        "qkv": "int8 per channel", "output_proj": "int8 per channel", "mlp": "int4 per group 32", "lm_head": "int8 per channel"
    }  # fmt: skip
    assert [layer for layer in LAYERS if numerics.activations(layer) is not None] == ["qkv"]
    assert str(mapping('[formats]\nweights = "nvfp4"\nweight_scales = "mx32"\n').weights("mlp")) == "fp4_e2m1 per group 32 (mx)"
    places = set(differing(numerics, mapping('[formats]\nweights = "int8"\n')))
    assert places == {("weights", "mlp"), ("weight_scales", "mlp"), ("activations", "qkv")}


def test_model_means_the_formats_of_the_checkpoint():
    plain = parse_mapping('name = "m"\n', "m")
    assert Numerics.of(plain, "fp32").effects() == EXACT.effects()
    assert Numerics.of(plain, "bf16").stream == ELEMENTS["bf16"]
    stated = parse_mapping('name = "m"\n[formats]\nactivations = "bf16"\nkv = "bf16"\n', "m")
    assert Numerics.of(plain, "bf16").effects() == Numerics.of(stated, "bf16").effects()
    assert set(differing(Numerics.of(stated, "bf16"), EXACT)) == {("stream", "all")}
    undone = Numerics.of(stated, "bf16").with_places_of(EXACT, [("stream", "all"), ("cache", "attention")])
    assert undone.effects() == EXACT.effects()


def test_split_k_by_rows_depends_on_the_batch():
    numerics = mapping('[gemm]\n"split_k@mlp[rows<=16]" = 4\n')
    assert [numerics.parts("split_k", "mlp", phase="decode", rows=rows) for rows in (1, 16, 17)] == [4, 4, 1]
    assert numerics.parts("split_k", "qkv", phase="decode", rows=1) == 1


def gru_reference(arrays, letters):
    """Return the answer to a word in float64, as the recurrence is written down (Cho et al. 2014)."""
    arrays = {name: values.astype(np.float64) for name, values in arrays.items()}

    def cell(side, token, state):
        own = arrays[f"{side}_w_ih"] @ arrays[f"{side}_emb"][token] + arrays[f"{side}_b_ih"]
        past = arrays[f"{side}_w_hh"] @ state + arrays[f"{side}_b_hh"]
        reset, update, _ = np.split(1 / (1 + np.exp(-(own + past))), 3)
        new = np.tanh(np.split(own, 3)[2] + reset * np.split(past, 3)[2])
        return new + update * (state - new)

    state = np.zeros(256)
    for letter in letters:
        state = cell("enc", letter, state)
    token, answer = 2, []
    while len(answer) < 20:
        state = cell("dec", token, state)
        token = int((arrays["fc_w"] @ state + arrays["fc_b"]).argmax())
        if token == 3:
            break
        answer.append(token)
    return answer


def test_the_recurrent_model_answers_as_a_float64_reference():
    path = inside_package("g2p_en", "checkpoint20.npz")
    with np.load(path) as archive:
        arrays = dict(archive)
    words = ["quality", "replay", "gate", "accelerator", "a", "strengths", "onomatopoeia"]
    probes = [[ord(letter) - ord("a") + 3 for letter in word] + [2] for word in words]
    answers = model_of(read_checkpoint(path)).answers(EXACT, probes, 20)
    assert [answer.tokens for answer in answers] == [gru_reference(arrays, probe) for probe in probes]
