"""Streams of a serving step: each has calibrations that can stand for it, with the bytes of the step and the shapes of their timings."""

from dataclasses import replace

import numpy as np
import pytest

from replay.calibration.kinds import layers, streams
from replay.catalog.hardware import read_hardware
from replay.lowering.op_graph import ElementwiseShape
from replay.lowering.select import plan_kernels
from replay.tiling.families import stream_shapes
from replay.tiling.families.serving_streams import serving_stream, stream_rows
from replay.tiling.families.streams import ELEMENTWISE, NORM, QUANTISE, ROPE, SOFTMAX
from tests.models import MIXTRAL, mapping

ROWS = np.array([0, 1, 7, 4096])
H100 = read_hardware("h100-sxm")
UNFUSED = tuple(f"fusion.{name} = false" for name in ("qkv", "gate_up", "gated_activation", "residual_norm", "rope_kv_write"))
LOW_PRECISION = ('formats.weights = "fp8"', 'formats.activations = "fp8"', 'layout.activations = "column_major"')


def stream_kernels():
    for model in (MIXTRAL, replace(MIXTRAL, experts=None, qk_norm=True)):
        for lines in ((), UNFUSED, LOW_PRECISION):
            plan = plan_kernels(model, H100, mapping(*lines))
            yield from (kernel for kernel in plan.kernels if isinstance(kernel.shape, ElementwiseShape))


def produced_variants():
    """Return the (family, variant) pairs that the kinds of measurements of streams make."""
    eager = {(ELEMENTWISE.name, f"fp32-{op}") for op in streams.INPUTS} | {(ELEMENTWISE.name, "fp16-gelu")}
    eager |= {(SOFTMAX.name, "fp32-softmax"), (SOFTMAX.name, "fp16-softmax"), (NORM.name, "fp32-ln"), (NORM.name, "fp16-layernorm")}
    return eager | {(op.family.name, name) for name, op in layers.OPERATORS.items()} | {(QUANTISE.name, name) for name in ("fp8", "int8")}


def test_every_stream_of_a_step_has_stand_ins_that_measurements_can_make():
    produced = produced_variants()
    kernels = list(stream_kernels())
    assert {kernel.layer_type for kernel in kernels} == {
        "embedding", "norm", "rope", "residual", "mlp", "moe", "sampling", "transform"
    }  # fmt: skip
    for kernel in kernels:
        found = serving_stream(kernel.ops, kernel.layer_type)
        assert found, kernel.id
        assert {(stand_in.family.name, stand_in.variant) for stand_in in found} <= produced, kernel.id


def test_every_stand_in_moves_the_bytes_of_the_step_and_none_for_no_rows():
    for kernel in stream_kernels():
        shape = kernel.elementwise
        for stand_in in serving_stream(kernel.ops, kernel.layer_type):
            shapes = stream_rows(stand_in, shape, ROWS)
            moved = shapes["rows"] * shapes["columns"] * (shapes["read_bytes"] + shapes["written_bytes"])
            assert moved == pytest.approx(ROWS * (shape.read_elements + shape.written_elements) * shape.element_bytes)
            parameters = {part.name: part.start for part in stand_in.family.parameters}
            with np.errstate(all="raise"):
                seconds = stand_in.family.seconds(shapes, H100, parameters)
            assert seconds[0] == 0.0
            assert (np.diff(seconds) > 0).all(), kernel.id


SIZES = {name: np.array([float(value)]) for name, value in {
    "num_tokens": 48, "n_embd": 4096, "n_head": 32, "n_kv_head": 8, "tp": 2, "n_expanded_embd": 14336, "gates": 1,
}.items()}  # fmt: skip


@pytest.mark.parametrize(
    ("ops", "layer_type", "read", "written"),
    [
        (("mlp_norm",), "norm", 4096, 4096),
        (("rope",), "rope", 20 * 128, 20 * 128),
        (("activation", "gate_product"), "mlp", 2 * 7168, 7168),
        (("mlp_residual",), "residual", 2 * 4096, 4096),
    ],
)
def test_layer_operators_are_shaped_as_their_timings_are(ops, layer_type, read, written):
    stand_in = serving_stream(ops, layer_type)[0]
    want = layers.OPERATORS[stand_in.variant].shapes(SIZES)
    found = stream_rows(stand_in, ElementwiseShape(read_elements=read, written_elements=written), np.array([48]))
    assert found.keys() == want.keys()
    assert all(found[name] == pytest.approx(want[name]) for name in want)


def test_softmax_and_quantising_are_shaped_as_their_timings_are():
    for columns in (128, 32000):
        found = stream_rows(serving_stream(("route",), "moe")[0], ElementwiseShape(read_elements=columns, written_elements=columns), ROWS)
        want = stream_shapes.softmax(ROWS.astype(float), columns, element_bytes=2.0)
        assert all(found[name] == pytest.approx(want[name]) for name in want)
    stand_in = serving_stream(("quantise:o_proj",), "transform")[0]
    found = stream_rows(stand_in, ElementwiseShape(read_elements=512, written_elements=512, element_bytes=1.5), ROWS)
    want = stream_shapes.quantise(ROWS.astype(float), 512, from_bytes=2.0, to_bytes=1.0)
    assert all(found[name] == pytest.approx(want[name]) for name in ("rows", "columns", "work_columns", "passes", "rows_per_unit"))


def test_a_norm_after_an_addition_walks_the_sum_once_more():
    eager = serving_stream(("attention_residual", "mlp_norm"), "norm")[-1]
    shape = ElementwiseShape(read_elements=2 * 4096, written_elements=2 * 4096)
    found = stream_rows(eager, shape, np.array([10]))
    assert (found["columns"][0], found["read_bytes"][0], found["written_bytes"][0], found["passes"][0]) == (4096, 4.0, 4.0, 0.5)
    assert found["rows_per_unit"][0] == stream_shapes.norm(10, 4096, element_bytes=2.0)["rows_per_unit"][0]


def test_writing_keys_is_a_copy_and_rotating_them_is_not():
    assert serving_stream(("rope", "kv_write"), "rope")[0].family == ROPE
    assert serving_stream(("kv_write",), "rope")[0].family != ROPE
    assert serving_stream(("transpose:qkv",), "transform")[0].family == ELEMENTWISE
