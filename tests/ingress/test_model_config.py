"""Model metadata: real configurations, family defaults, and every way a configuration can be wrong."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from replay.errors import SpecError
from replay.ingress.model_config import catalog_models, model_from_config, model_from_document, read_model
from replay.specs.model import ExpertsSpec, MlaSpec, ModelSpec

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}
QWEN2 = {**LLAMA, "model_type": "qwen2"}
QWEN3 = {**LLAMA, "model_type": "qwen3", "head_dim": 32}
MISTRAL = {**LLAMA, "model_type": "mistral", "sliding_window": None}
MIXTRAL = {**LLAMA, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
QWEN3_MOE = {**QWEN3, "model_type": "qwen3_moe", "num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 48}
DEEPSEEK = {
    **LLAMA, "model_type": "deepseek_v3", "num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4, "v_head_dim": 6, "n_routed_experts": 16, "n_shared_experts": 1, "num_experts_per_tok": 4,
    "moe_intermediate_size": 48, "first_k_dense_replace": 1,
}  # fmt: skip


def model(config: dict) -> ModelSpec:
    return model_from_config(config, where="config.json", name="m")


def test_real_configurations_load_with_their_figures(shared):
    folder = shared / "data/formats/hf_config"
    common = {"tied_embeddings": False, "attention_bias": False, "attention_window_tokens": None}
    assert read_model(folder / "meta-llama--Llama-3.1-8B.json") == ModelSpec(
        name="meta-llama/Llama-3.1-8B",
        layers_count=32,
        hidden_size=4096,
        query_heads=32,
        kv_heads=8,
        head_size=128,
        intermediate_size=14336,
        vocabulary_size=128256,
        max_context_tokens=131072,
        weights_format="bf16",
        **common,
    )
    assert read_model(folder / "Qwen--Qwen3-32B-FP8_config.json") == ModelSpec(
        name="Qwen/Qwen3-32B-FP8",
        layers_count=64,
        hidden_size=5120,
        query_heads=64,
        kv_heads=8,
        head_size=128,
        intermediate_size=25600,
        vocabulary_size=151936,
        max_context_tokens=40960,
        weights_format="fp8_block",
        qk_norm=True,
        **common,
    )
    assert read_model(folder / "Qwen--Qwen3-30B-A3B_config.json") == ModelSpec(
        name="Qwen/Qwen3-30B-A3B",
        layers_count=48,
        hidden_size=2048,
        query_heads=32,
        kv_heads=4,
        head_size=128,
        intermediate_size=6144,
        vocabulary_size=151936,
        max_context_tokens=40960,
        weights_format="bf16",
        qk_norm=True,
        experts=ExpertsSpec(experts_count=128, experts_per_token=8, intermediate_size=768),
        **common,
    )
    assert read_model(str(folder / "mistralai--Mixtral-8x7B-v0.1.json")) == ModelSpec(
        name="mistralai/Mixtral-8x7B-v0.1",
        layers_count=32,
        hidden_size=4096,
        query_heads=32,
        kv_heads=8,
        head_size=128,
        intermediate_size=14336,
        vocabulary_size=32000,
        max_context_tokens=32768,
        weights_format="bf16",
        experts=ExpertsSpec(experts_count=8, experts_per_token=2, intermediate_size=14336),
        **common,
    )


def test_deepseek_v3_loads_with_its_figures_and_without_the_layer_that_predicts_further_tokens(shared):
    assert read_model(shared / "data/formats/hf_config/deepseek-ai--DeepSeek-V3_config.json") == ModelSpec(
        name="deepseek-ai/DeepSeek-V3",
        layers_count=61,
        hidden_size=7168,
        query_heads=128,
        kv_heads=128,
        head_size=192,
        intermediate_size=18432,
        vocabulary_size=129280,
        max_context_tokens=163840,
        weights_format="fp8_block",
        experts=ExpertsSpec(experts_count=256, experts_per_token=8, intermediate_size=2048, shared_experts_count=1, dense_layers_count=3),
        mla=MlaSpec(q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128),
    )


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("llama-3.1-8b", "meta-llama--Llama-3.1-8B.json"),
        ("qwen3-30b-a3b", "Qwen--Qwen3-30B-A3B_config.json"),
        ("deepseek-v3", "deepseek-ai--DeepSeek-V3_config.json"),
    ],
)
def test_the_shipped_models_equal_the_published_configurations(shared, name, file):
    assert name in catalog_models()
    published = read_model(shared / "data/formats/hf_config" / file).to_document()
    assert read_model(name).to_document() == {**published, "name": name}


def test_a_shipped_model_whose_quantised_twin_is_published_differs_from_it_in_the_format_only(shared):
    published = read_model(shared / "data/formats/hf_config" / "Qwen--Qwen3-32B-FP8_config.json").to_document()
    assert read_model("qwen3-32b").to_document() == {**published, "name": "qwen3-32b", "weights_format": "bf16"}


def test_a_model_folder_is_read_through_its_config_json_and_named_after_it(tmp_path):
    (tmp_path / "acme--tiny").mkdir()
    (tmp_path / "acme--tiny" / "config.json").write_text(json.dumps(LLAMA))
    assert read_model(tmp_path / "acme--tiny").name == "acme/tiny"


def test_family_defaults_hold():
    assert model(LLAMA).head_size == 16
    assert model({key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}).kv_heads == 4
    assert model({**LLAMA, "attention_bias": True}).attention_bias
    assert model({**LLAMA, "tie_word_embeddings": True}).tied_embeddings
    assert model(QWEN2).attention_bias
    assert (model(QWEN3).qk_norm, model(QWEN3).head_size, model(QWEN3).attention_bias) == (True, 32, False)
    assert model({**QWEN3, "head_dim": None, "hidden_size": 512}).head_size == 128
    assert model(MIXTRAL).experts == ExpertsSpec(experts_count=8, experts_per_token=2, intermediate_size=128)
    assert model(QWEN3_MOE).experts == ExpertsSpec(experts_count=16, experts_per_token=4, intermediate_size=48)
    plain = model({**DEEPSEEK, "model_type": "deepseek_v2", "q_lora_rank": None, "n_shared_experts": None, "first_k_dense_replace": 0})
    assert plain.mla == MlaSpec(q_lora_rank=None, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=6)
    assert plain.experts == ExpertsSpec(experts_count=16, experts_per_token=4, intermediate_size=48)
    assert model({**DEEPSEEK, "qk_head_dim": 12, "head_dim": 4}) == model(DEEPSEEK)


@pytest.mark.parametrize("config", [LLAMA, QWEN3_MOE, DEEPSEEK])
def test_the_recorded_form_of_a_model_is_read_back(config):
    read = model(config)
    document = json.loads(json.dumps(read.to_document()))
    assert model_from_document(document, "baseline.json") == read
    assert ModelSpec.from_document(document).digest == read.digest


def test_every_figure_of_latents_and_experts_is_part_of_the_digest():
    read = model(DEEPSEEK)
    others = [replace(read, mla=replace(read.mla, **{field: 2})) for field in read.to_document()["mla"]]
    others += [replace(read, experts=replace(read.experts, **{field: 3})) for field in read.to_document()["experts"]]
    assert len({read.digest, *(other.digest for other in others)}) == 1 + 5 + 5


QUANTISED = {
    # quantization_config -> format
    "fp8, a scale a tensor": ({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "static"}, "fp8"),
    "fp8, a scale a block": ({"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]}, "fp8_block"),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True}, "int4"),
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True, "lm_head": False}, "int4"),
    "modelopt nvfp4": ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "model.layers.3.mlp.gate"]}, "nvfp4"),
    "modelopt fp8": ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8"),
}


@pytest.mark.parametrize("case", QUANTISED)
def test_a_quantised_checkpoint_is_of_its_format(case):
    quantization, read = QUANTISED[case]
    assert model({**LLAMA, "quantization_config": quantization}).weights_format == read


@pytest.mark.parametrize(("stated", "read"), [("bfloat16", "bf16"), ("float16", "fp16"), ("float32", "fp32")])
def test_the_checkpoint_format_is_read_under_both_spellings(stated, read):
    plain = {key: value for key, value in LLAMA.items() if key != "torch_dtype"}
    assert model({**plain, "torch_dtype": stated}).weights_format == read
    assert model({**plain, "dtype": stated}).weights_format == read
    assert model({**plain, "dtype": stated, "quantization_config": {"quant_method": "fp8", "fmt": "e4m3"}}).weights_format == "fp8"
    assert model({**plain, "dtype": stated, "quantization_config": None}).weights_format == read


@pytest.mark.parametrize(
    ("config", "window"),
    [
        ({**MISTRAL, "sliding_window": 4096}, 4096),
        ({**MISTRAL, "sliding_window": None}, None),
        ({**MIXTRAL, "sliding_window": 128}, 128),
        ({**QWEN2, "sliding_window": 4096}, None),
        ({**QWEN2, "sliding_window": 4096, "use_sliding_window": False, "max_window_layers": 1}, None),
        ({**QWEN2, "sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 0}, 4096),
        ({**QWEN2, "sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 2}, None),
        ({**QWEN2, "layer_types": ["full_attention"] * 2}, None),
        ({**MISTRAL, "sliding_window": 64, "layer_types": ["sliding_attention"] * 2}, 64),
    ],
)
def test_the_attention_window_is_honoured(config, window):
    assert model(config).attention_window_tokens == window


BAD_CONFIGS = {
    # name: (base, changes, field named, finding)
    "no model type": (LLAMA, {"model_type": None}, "model_type", "None"),
    "unknown model type": (LLAMA, {"model_type": "lama"}, "model_type", r"'lama'.*did you mean 'llama'"),
    "encoder": (LLAMA, {"model_type": "bert"}, "model_type", "'bert'"),
    "latent attention in a family without": (LLAMA, {"kv_lora_rank": 512}, "kv_lora_rank", "no such field in this model type"),
    "missing latent rank": (DEEPSEEK, {"kv_lora_rank": ...}, "kv_lora_rank", "missing"),
    "missing query rank": (DEEPSEEK, {"q_lora_rank": ...}, "q_lora_rank", "missing.*or null"),
    "zero query rank": (DEEPSEEK, {"q_lora_rank": 0}, "q_lora_rank", "0"),
    "null latent rank": (DEEPSEEK, {"kv_lora_rank": None}, "kv_lora_rank", "None"),
    "fewer latents than heads": (DEEPSEEK, {"num_key_value_heads": 2}, "num_key_value_heads", r"num_attention_heads \(4\)"),
    "odd rotated part": (DEEPSEEK, {"qk_rope_head_dim": 5}, "qk_rope_head_dim", "even"),
    "parts of a key that do not add up": (DEEPSEEK, {"qk_head_dim": 13}, "qk_head_dim", r"qk_nope_head_dim \+ qk_rope_head_dim \(12\)"),
    "another head size beside latents": (DEEPSEEK, {"head_dim": 16}, "head_dim", r"qk_rope_head_dim \(4\)"),
    "missing routed experts": (DEEPSEEK, {"n_routed_experts": ...}, "n_routed_experts", "missing"),
    "missing shared experts": (DEEPSEEK, {"n_shared_experts": ...}, "n_shared_experts", "missing"),
    "missing dense layers": (DEEPSEEK, {"first_k_dense_replace": ...}, "first_k_dense_replace", "missing"),
    "only dense layers": (DEEPSEEK, {"first_k_dense_replace": 2}, "first_k_dense_replace", r"fewer than num_hidden_layers \(2\)"),
    "dense layers between": (DEEPSEEK, {"moe_layer_freq": 2}, "moe_layer_freq", "want 1"),
    "experts under another family's name": (DEEPSEEK, {"num_experts": 16}, "num_experts", "no such field in this model type"),
    "sparse attention": (DEEPSEEK, {"model_type": "deepseek_v32"}, "model_type", "'deepseek_v32'"),
    "unknown field": (LLAMA, {"num_hidden_layer": 2}, "num_hidden_layer", r"did you mean 'num_hidden_layers'"),
    "field of another design": (LLAMA, {"logit_softcapping": 50.0}, "logit_softcapping", "unknown field"),
    "missing layers": (LLAMA, {"num_hidden_layers": ...}, "num_hidden_layers", "missing"),
    "missing vocabulary": (LLAMA, {"vocab_size": ...}, "vocab_size", "missing"),
    "missing context": (LLAMA, {"max_position_embeddings": ...}, "max_position_embeddings", "missing"),
    "missing format": (LLAMA, {"torch_dtype": ...}, "torch_dtype", "missing"),
    "missing kv heads where the family's default differs": (QWEN2, {"num_key_value_heads": ...}, "num_key_value_heads", "missing"),
    "missing window where the family has its own": (MISTRAL, {"sliding_window": ...}, "sliding_window", "missing"),
    "missing head size where the family has its own": (QWEN3, {"head_dim": ...}, "head_dim", "missing"),
    "missing experts": (MIXTRAL, {"num_local_experts": ...}, "num_local_experts", "missing"),
    "missing expert width": (QWEN3_MOE, {"moe_intermediate_size": ...}, "moe_intermediate_size", "missing"),
    "zero size": (LLAMA, {"hidden_size": 0}, "hidden_size", "0"),
    "negative size": (LLAMA, {"intermediate_size": -1}, "intermediate_size", "-1"),
    "fractional size": (LLAMA, {"num_hidden_layers": 2.5}, "num_hidden_layers", "2.5"),
    "float size": (LLAMA, {"num_hidden_layers": 2.0}, "num_hidden_layers", "2.0"),
    "size as text": (LLAMA, {"vocab_size": "1000"}, "vocab_size", "'1000'"),
    "size as a boolean": (LLAMA, {"num_key_value_heads": True}, "num_key_value_heads", "True"),
    "overlong size": (LLAMA, {"vocab_size": 10**30}, "vocab_size", "1000"),
    "heads not divisible by kv heads": (LLAMA, {"num_key_value_heads": 3}, "num_key_value_heads", "divisor of num_attention_heads"),
    "more kv heads than heads": (LLAMA, {"num_key_value_heads": 8}, "num_key_value_heads", "divisor"),
    "hidden size not divisible by heads": (LLAMA, {"hidden_size": 66}, "hidden_size", "multiple of num_attention_heads"),
    "zero head size": (LLAMA, {"head_dim": 0}, "head_dim", "0"),
    "flag as a number": (LLAMA, {"tie_word_embeddings": 1}, "tie_word_embeddings", "true or false"),
    "bias in the feed-forward block": (LLAMA, {"mlp_bias": True}, "mlp_bias", "want false"),
    "another activation": (LLAMA, {"hidden_act": "gelu"}, "hidden_act", "'silu'"),
    "encoder-decoder": (LLAMA, {"is_encoder_decoder": True}, "is_encoder_decoder", "want false"),
    "another head": (LLAMA, {"architectures": ["LlamaForSequenceClassification"]}, "architectures", "causal language model"),
    "automatic format": (LLAMA, {"torch_dtype": "auto"}, "torch_dtype", "'auto'"),
    "other quantisation": (LLAMA, {"quantization_config": {"quant_method": "hqq"}}, "quantization_config: quant_method", "fp8, awq, gptq"),
    "no method": (LLAMA, {"quantization_config": {"bits": 4}}, "quantization_config: quant_method", "missing"),
    "other fp8": (LLAMA, {"quantization_config": {"quant_method": "fp8", "fmt": "e5m2"}}, "quantization_config: fmt", "'e5m2'"),
    "other blocks": (
        LLAMA,
        {"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64]}},
        "quantization_config: weight_block_size",
        r"\[128, 128\]",
    ),
    "eight bits of gptq": (
        LLAMA,
        {"quantization_config": {"quant_method": "gptq", "bits": 8, "group_size": 128}},
        "quantization_config: bits",
        "4",
    ),
    "other groups of awq": (
        LLAMA,
        {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 64}},
        "quantization_config: group_size",
        "128",
    ),
    "a converted head": (
        LLAMA,
        {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128, "lm_head": True}},
        "quantization_config: lm_head",
        "False|false",
    ),
    "other algorithm": (
        LLAMA,
        {"quantization_config": {"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}},
        "quantization_config: quant_algo",
        "FP8, NVFP4",
    ),
    "layers left unconverted": (
        LLAMA,
        {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "model.layers.0.self_attn*"]}},
        "quantization_config: ignore",
        "stays in 16 bit.*formats.weights",
    ),
    "unconverted modules as text": (
        LLAMA,
        {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128, "modules_to_not_convert": "lm_head"}},
        "quantization_config: modules_to_not_convert",
        "a list of module names",
    ),
    "unknown quantisation field": (
        LLAMA,
        {"quantization_config": {"quant_method": "fp8", "weight_block": 1}},
        "quantization_config: weight_block",
        "did you mean 'weight_block_size'",
    ),
    "quantisation as text": (LLAMA, {"quantization_config": "fp8"}, "quantization_config", "an object or null"),
    "window in a family without": (LLAMA, {"sliding_window": 128}, "sliding_window", "null for this model type"),
    "zero window": (MISTRAL, {"sliding_window": 0}, "sliding_window", "0"),
    "window over some layers": (
        QWEN2,
        {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 1},
        "max_window_layers",
        "some layers only",
    ),
    "window switch in a family without": (MISTRAL, {"use_sliding_window": True}, "use_sliding_window", "no such switch"),
    "mixed layer types": (QWEN2, {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types", "layers of one type"),
    "other layer type": (QWEN2, {"layer_types": ["linear_attention"] * 2}, "layer_types", "full_attention or sliding_attention"),
    "layer types at odds with the window": (MISTRAL, {"layer_types": ["sliding_attention"] * 2}, "layer_types", "what sliding_window says"),
    "too few layer types": (QWEN2, {"layer_types": ["full_attention"]}, "layer_types", "2 layers"),
    "more experts per token than experts": (MIXTRAL, {"num_experts_per_tok": 9}, "num_experts_per_tok", "at most num_local_experts"),
    "experts in a dense family": (LLAMA, {"num_local_experts": 8}, "num_local_experts", "no such field in this model type"),
    "experts of another family": (MIXTRAL, {"moe_intermediate_size": 8}, "moe_intermediate_size", "no such field in this model type"),
    "dense layers by step": (QWEN3_MOE, {"decoder_sparse_step": 2}, "decoder_sparse_step", "not modelled"),
    "dense layers by list": (QWEN3_MOE, {"mlp_only_layers": [0]}, "mlp_only_layers", "not modelled"),
}


@pytest.mark.parametrize("case", BAD_CONFIGS)
def test_a_wrong_configuration_names_the_field_and_the_fix(case):
    base, changes, field, finding = BAD_CONFIGS[case]
    config = {key: value for key, value in {**base, **changes}.items() if value is not ...}
    with pytest.raises(SpecError, match=finding) as caught:
        model(config)
    error = caught.value
    assert error.where == f"config.json: {field}"
    assert all((error.got, error.want, error.fix))
    assert "\n" not in str(error)


BAD_FILES = {
    "empty": ("", "empty"),
    "not JSON": ("model_type: llama\n", "not valid JSON"),
    "cut off": (json.dumps(LLAMA)[:-9], "not valid JSON"),
    "a list": ("[1]", "a JSON list at the top"),
    "a key twice": ('{"model_type": "llama", "model_type": "mistral"}', "twice"),
    "NaN": ('{"vocab_size": NaN}', "NaN"),
    "an endless integer": ('{"vocab_size": ' + "9" * 5000 + "}", "thousands of digits"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_malformed_file_is_one_sentence(tmp_path: Path, case):
    text, finding = BAD_FILES[case]
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(SpecError, match=finding) as caught:
        read_model(tmp_path / "config.json")
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in caught.value.where


def test_an_unknown_name_lists_the_shipped_models_and_the_nearest():
    with pytest.raises(SpecError, match=r"did you mean 'llama-3\.1-8b'") as caught:
        read_model("llama-3-8b")
    assert all(name in caught.value.want for name in catalog_models())


def test_a_missing_file_and_a_folder_without_config_are_errors(tmp_path):
    with pytest.raises(SpecError, match="no such model or file"):
        read_model(tmp_path / "absent.json")
    with pytest.raises(SpecError, match="a folder"):
        read_model(tmp_path)
