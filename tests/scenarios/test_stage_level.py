"""Regressions from public reports, at the stage that caused them: the mapping sheet shows the fault, and its control does not.

Each test is named after what happened; the reports are named in its docstring. Figures are the model's own, not the reports'.
"""

from dataclasses import replace

import numpy as np
import pytest

from replay.catalog.hardware import read_hardware
from replay.mapping_sheet import StepShape, mapping_sheet
from replay.pipeline import compile_mapping
from replay.specs.hardware import HardwareSpec
from replay.specs.model import ExpertsSpec, ModelSpec
from tests.models import LLAMA_8B, mapping, round_hardware

DECODE, PREFILL = "decode", "prefill"
WIDE_HEADS = replace(LLAMA_8B, query_heads=16, kv_heads=8, head_size=256)
EXPERTS = replace(LLAMA_8B, experts=ExpertsSpec(experts_count=32, experts_per_token=4, intermediate_size=2880), hidden_size=2880)


class Sheet:
    """The sheet of one step under a mapping, and what lowering and tiling decided."""

    def __init__(self, step: StepShape, *lines: str, device: HardwareSpec | str = "h100-sxm", model: ModelSpec = LLAMA_8B) -> None:
        self.device = read_hardware(device) if isinstance(device, str) else device
        spec = mapping(*lines)
        compiled = compile_mapping(model, self.device, spec)
        self.rows = mapping_sheet(compiled, self.device, spec, (step,)).to_pylist()
        self.reasons = {decision.knob: decision.reason for decision in compiled.decisions if decision.reason}

    def time_s(self, *layers: str) -> float:
        return sum(row["time_s"] for row in self.rows if not layers or row["layer_type"] in layers)

    def row(self, kernel: str) -> dict:
        return next(row for row in self.rows if row["kernel"] == kernel)

    @property
    def kernels(self) -> set[str]:
        return {row["kernel"] for row in self.rows}


def decode(sequences: int, context: int = 512) -> StepShape:
    return StepShape(name=DECODE, decode_sequences=sequences, context_tokens=context)


def prefill(tokens: int) -> StepShape:
    return StepShape(name=PREFILL, prefill_tokens=tokens)


def test_a_tile_tuned_on_one_chip_spills_on_another():
    """ROCm/aiter 5063: 128 query rows at head size 256 win where the registers hold them, and spill where they do not."""
    tuned, before = ("[attention]", '"tile@prefill" = [128, 32]'), ("[attention]", '"tile@prefill" = [64, 32]')
    figures = {"cache_bytes": 4e6, "unit_cache_bytes_per_s": 200e9}
    roomy, tight = (round_hardware(unit_registers_bytes=size, **figures) for size in (512e3, 128e3))
    slower, told = {}, {}
    for name, device in (("roomy", roomy), ("tight", tight)):
        limits = ("[batching]", "max_batched_tokens = 8192")
        sheets = [Sheet(prefill(8192), *limits, *lines, device=device, model=WIDE_HEADS) for lines in (before, tuned)]
        slower[name] = sheets[1].row("attention_prefill")["time_s"] / sheets[0].row("attention_prefill")["time_s"]
        told[name] = (sheets[1].reasons, sheets[1].row("attention_prefill")["bottleneck_class"])
    assert slower["roomy"] <= 1.05
    assert slower["tight"] > 1.5
    assert told["roomy"][0] == {}
    assert "bytes of accumulators, and there are" in told["tight"][0]["attention.tile@prefill"]
    assert told["tight"][1] == "memory_bandwidth"


def test_a_product_that_needs_another_layout_drags_a_transpose_before_every_call():
    """sgl-project/sglang 3893: the candidate's product wins in every benchmark row, and what it needs before each call is not in them."""
    transposed = ("[layout]", '"activations@output_proj" = "column_major"')
    plain, changed = Sheet(decode(32)), Sheet(decode(32), *transposed)
    [added] = [row for row in changed.rows if row["layer_type"] == "transform"]
    assert (added["kernel"], added["calls_count"]) == ("transpose_o_proj", 32)
    assert changed.row("o_proj")["time_s"] == plain.row("o_proj")["time_s"]
    assert added["time_s"] > 0.1 * plain.row("o_proj")["time_s"]  # a product that is 10 % faster would be slower with it
    assert "transposing kernel runs before each product" in changed.reasons["layout.activations@output_proj"]
    # The control: a producer that writes the layout the product reads needs no kernel.
    fused = Sheet(decode(32), "[layout]", 'activations = "row_major"')
    assert (fused.kernels, fused.reasons) == (plain.kernels, {})


@pytest.mark.parametrize(("rows_each", "padded"), [(129, True), (150, True), (512, False), (1000, False)])
def test_a_row_tile_chosen_by_a_threshold_pads_half_of_what_it_computes(rows_each, padded):
    """sgl-project/sgl-kernel-xpu 446: 256 rows a tile from 129 rows an expert on; one row more, half the speed."""
    tokens = rows_each * 32 // 4
    rule, fill = ('"tile@moe" = [256, 128, 64]', '"tile@moe" = [64, 128, 64]')
    limits = ("[batching]", "max_batched_tokens = 8192", "[gemm]")
    threshold, filled = (Sheet(prefill(tokens), *limits, line, model=EXPERTS).row("experts") for line in (rule, fill))
    if padded:
        assert threshold["padding_ratio"] > 0.25
        assert threshold["padding_ratio"] > filled["padding_ratio"] + 0.1
        assert threshold["compute_s"] > 1.15 * filled["compute_s"]
        assert threshold["bottleneck_class"] == "compute"
    else:
        assert threshold["compute_s"] < 1.1 * filled["compute_s"]


def test_an_all_reduce_for_small_messages_is_slow_for_large_ones():
    """vllm-project/vllm 22086 and others: always one-shot is faster at 4 KB and much slower at 384 KB and beyond."""

    def collectives_s(tokens, threshold):
        lines = ("[parallelism]", "tensor = 4", "[all_reduce]", f"one_shot_max_bytes = {threshold}")
        return Sheet(prefill(tokens), *lines).time_s("all_reduce")

    always, ring, by_size = 10**12, 0, 131072
    assert collectives_s(4, always) < collectives_s(4, ring)
    assert collectives_s(2048, always) > 1.2 * collectives_s(2048, ring)
    for tokens in (4, 2048):  # the control: a threshold takes the better one on both sides
        assert collectives_s(tokens, by_size) == pytest.approx(min(collectives_s(tokens, rule) for rule in (always, ring)), rel=0.02)


def test_four_bit_weights_help_small_batches_and_not_full_ones():
    """casper-hansen/AutoAWQ 106, vllm-project/vllm 3399: widening weights costs what compute-bound steps do not have to spare."""
    four_bit = ("[formats]", 'weights = "int4"')
    device = "a100-sxm-80gb"
    gain = {}
    for name, step in (("one", decode(1)), ("loaded", prefill(2048))):
        gain[name] = Sheet(step, device=device).time_s("qkv", "mlp", "output_proj") / Sheet(step, *four_bit, device=device).time_s(
            "qkv", "mlp", "output_proj"
        )
    assert gain["one"] > 1.4
    assert gain["loaded"] < 1.1  # what is left of it is within the error of the model
    assert Sheet(prefill(2048), *four_bit, device=device).row("gate_up")["bottleneck_class"] == "compute"
    # The control: a format with a rate of its own keeps its gain under load.
    eight_bit = ("[formats]", 'weights = "int8"', 'activations = "int8"')
    assert Sheet(prefill(2048), device=device).time_s("mlp") > 1.2 * Sheet(prefill(2048), *eight_bit, device=device).time_s("mlp")


def moved(sheet: Sheet, column: str) -> float:
    """Sum of a column over the element-wise kernels of the feed-forward block."""
    return sum(row[column] for row in sheet.rows if row["layer_type"] == "mlp" and not row["weights_format"])


def test_a_fusion_that_stops_matching_adds_kernels_and_their_traffic():
    """microsoft/onnxruntime 23491: each old operator got faster, and the one that was inside them now reads and writes everything."""
    apart = ("[fusion]", "gated_activation = false")
    fused, unfused = Sheet(prefill(2048)), Sheet(prefill(2048), *apart)
    assert unfused.kernels - fused.kernels == {"activation", "gate_product"}
    traffic = [
        sum(row["bytes"] for row in sheet.rows if row["layer_type"] == "mlp" and not row["weights_format"]) for sheet in (fused, unfused)
    ]
    assert traffic[1] > 1.5 * traffic[0]
    assert unfused.time_s("mlp") > 1.02 * fused.time_s("mlp")
    # The control: what fits the on-chip cache costs launches only.
    small = [Sheet(decode(8), *lines) for lines in ((), apart)]
    assert moved(small[1], "memory_s") - moved(small[0], "memory_s") < 0.005 * small[0].time_s()


def _conv_costs(quantised: bool, *, fuse: bool):
    """Costs on one image of eight convolutions in 16 bit, or with quantise and dequantise nodes around each."""
    onnx = pytest.importorskip("onnx")
    from replay.tiling.family_pricer import FamilyPricer
    from replay.tiling.graph_costs import graph_costs
    from replay.tiling.library import KernelLibrary
    from tests.onnx_models import Net, lower

    half, narrow = onnx.TensorProto.FLOAT16, onnx.TensorProto.INT8
    net = Net(opset=21, element=half)
    value = net.input("x", ["n", 64, 56, 56])
    scale, zero = net.weight(), net.constant(0, np.int8)

    def stored(tensor: str) -> str:
        return net.add("DequantizeLinear", net.add("QuantizeLinear", tensor, scale, zero), scale, zero) if quantised else tensor

    for _ in range(8):
        weights = net.weight(64, 64, 3, 3, element=narrow if quantised else half)
        weights = net.add("DequantizeLinear", weights, scale, zero) if quantised else weights
        value = net.add("Relu", net.add("Conv", stored(value), weights, pads=[1] * 4))
    device = read_hardware("a100-sxm-80gb")
    return graph_costs(lower(net.model(value), fuse=fuse), FamilyPricer(library=KernelLibrary(device=device)), (1, 32)).to_pylist()


def test_an_int8_graph_whose_quantise_nodes_stay_apart_is_slower_than_sixteen_bit():
    """NVIDIA/TensorRT 3197: convolutions still take and give floats, and a quantise and a dequantise node stand before each."""
    plain, apart, fused = _conv_costs(False, fuse=True), _conv_costs(True, fuse=False), _conv_costs(True, fuse=True)

    def time_s(costs, batch):
        return sum(row["time_s"] for row in costs if row["batch_count"] == batch)

    transforms = [row for row in apart if row["op_type"] in ("QuantizeLinear", "DequantizeLinear") and row["batch_count"] == 32]
    assert len(transforms) == 16
    convolutions = [row for row in apart if row["op_type"] == "Conv" and row["batch_count"] == 32]
    assert {row["activations_format"] for row in convolutions} == {"fp16"}
    assert sum(row["bytes"] for row in transforms) > sum(row["bytes"] for row in convolutions)
    for batch in (1, 32):
        assert time_s(apart, batch) > 1.1 * time_s(plain, batch)
    assert sum(row["time_s"] for row in transforms) > 0.2 * time_s(apart, 32)
    # The control: nodes that fuse leave one at each end, and the products run in 8 bits.
    kept = [row for row in fused if row["op_type"] in ("QuantizeLinear", "DequantizeLinear") and row["batch_count"] == 32]
    assert len(kept) <= 2
    assert time_s(fused, 32) < time_s(plain, 32)
