"""Costs of operator graphs: sums and laws, kernels against their families called by hand, calibrations, and other pricers."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from replay.catalog.calibration import shipped_calibration
from replay.catalog.hardware import read_hardware
from replay.errors import SpecError
from replay.lowering.op_graph import (
    BatchedMatmulShape,
    ConvolutionShape,
    MatmulShape,
    Op,
    OpGraph,
    StreamShape,
    Traffic,
    UnknownShape,
)
from replay.specs.calibration import CalibrationDocument, ErrorFigures, FamilyCalibration
from replay.specs.hardware import KernelFit
from replay.tiling.families import gemm, stream_shapes, vector_gemm
from replay.tiling.families.convolution import ConvolutionFamily, convolution_shapes
from replay.tiling.families.streams import ELEMENTWISE, SOFTMAX
from replay.tiling.family_pricer import FamilyPricer
from replay.tiling.graph_costs import COST_SCHEMA, TOTALS_SCHEMA, OpTerms, graph_costs, graph_totals
from replay.tiling.library import KernelLibrary
from replay.tiling.spatial_pricer import SpatialPricer
from replay.tiling.terms import Terms

H100 = read_hardware("h100-sxm")
CONV = ConvolutionShape(
    in_channels=64, out_channels=128, groups=1, kernel=(3, 3), stride=(1, 1), dilation=(1, 1), padding=(1, 1, 1, 1), in_size=(56, 56),
    out_size=(56, 56),
)  # fmt: skip


def op(shape, name="op", *, layer_type="Op", rows=1, axis="batch", calls=1, weights=None, activations="fp32", traffic=(400.0, 400.0, 0.0)):
    read, written, shared = traffic
    return Op(
        name=name,
        layer_type=layer_type,
        shape=shape,
        axis=axis,
        calls_count=calls,
        inputs=(),
        rows_count=rows,
        weights_format=weights,
        activations_format=activations,
        traffic=Traffic(read_bytes=read, written_bytes=written, shared_bytes=shared),
    )


def costs(*ops, device=H100, calibration=None, batches=(1,), batch_axis="batch"):
    graph = OpGraph(ops=ops, ranks_count=1, batch_axis=batch_axis)
    if device.spatial is not None:
        return graph_costs(graph, SpatialPricer(device=device), batches)
    fits = () if calibration is None else calibration.families
    kernels = tuple(KernelFit(hardware=device.name, units_count=device.units_count, fit=fit) for fit in fits)
    return graph_costs(graph, FamilyPricer(library=KernelLibrary(device=replace(device, kernels=kernels))), batches)


def starts(family):
    return {parameter.name: parameter.start for parameter in family.parameters}


def row(*ops, **options):
    [found] = costs(*ops, **options).to_pylist()
    return found


PIXELS = (64 * 56 * 56 * 4.0, 128 * 56 * 56 * 4.0, 64 * 128 * 9 * 4.0)
MIXED = (
    op(CONV, "conv", weights="fp32", traffic=PIXELS),
    op(MatmulShape(columns=1000, depth=512), "dense", rows=49, weights="fp16", activations="fp16", traffic=(1024.0, 2000.0, 1024e3)),
    op(BatchedMatmulShape(count=12, rows=128, columns=128, depth=64), "scores", activations="fp16", traffic=(393216.0, 393216.0, 0.0)),
    op(StreamShape(kind="softmax", columns=128), "softmax", rows=1536, activations="fp16", traffic=(256.0, 256.0, 0.0)),
    op(StreamShape(kind="elementwise", columns=100), "relu", rows=50),
    op(StreamShape(kind="embedding", columns=64), "lookup", rows=50, axis="fixed"),
    op(UnknownShape(reason="no kernel is known for it"), "odd", traffic=(1e6, 1e6, 3e6), calls=3),
)


@pytest.fixture(scope="module")
def mixed():
    return costs(*MIXED, batches=(1, 8, 32))


def test_tables_have_their_schemas_and_a_row_for_every_operator_and_batch(mixed):
    assert mixed.schema == COST_SCHEMA
    assert graph_totals(mixed).schema == TOTALS_SCHEMA
    assert mixed["name"].to_pylist() == [entry.name for entry in MIXED] * 3
    assert mixed["batch_count"].to_pylist() == [1] * 7 + [8] * 7 + [32] * 7


def test_a_total_is_the_sum_of_its_parts(mixed):
    for total in graph_totals(mixed).to_pylist():
        parts = [entry for entry in mixed.to_pylist() if entry["batch_count"] == total["batch_count"]]
        for name in ("flops", "bytes", "time_s", "bound_s"):
            assert total[name] == pytest.approx(sum(part[name] for part in parts))
        assert sum(part["share_ratio"] for part in parts) == pytest.approx(1.0)
        assert (total["ops_count"], total["missing_kernels_count"]) == (7, 1)


def test_no_operator_is_faster_than_physics_allows(mixed):
    assert all(0 < entry["bound_s"] <= entry["time_s"] for entry in mixed.to_pylist())


def test_a_graph_costs_the_same_whatever_is_priced_beside_it(mixed):
    alone = [row(entry, batches=(8,)) for entry in MIXED]
    together = [entry for entry in mixed.to_pylist() if entry["batch_count"] == 8]
    assert [entry["time_s"] for entry in alone] == [entry["time_s"] for entry in together]


@pytest.mark.parametrize("name", ["h100-sxm", "v100-pcie-32gb", "p4", "mi300x", "tpu-v5e"])
def test_a_larger_batch_takes_longer_and_less_per_item(name):
    totals = graph_totals(
        costs(*(entry for entry in MIXED if entry.activations_format == "fp32"), device=read_hardware(name), batches=(1, 64))
    )
    one, many = totals["time_s"].to_pylist()
    assert one < many < 64 * one


@pytest.mark.parametrize("entry", MIXED, ids=lambda entry: entry.name)
def test_more_memory_bandwidth_is_never_slower(entry):
    faster = replace(H100, memory_bytes_per_s=2 * H100.memory_bytes_per_s)
    assert row(entry, device=faster, batches=(16,))["time_s"] <= row(entry, batches=(16,))["time_s"]


# --- the kernel of each operator ---------------------------------------------------------------------------------------------


def test_a_convolution_costs_what_its_family_says():
    family = ConvolutionFamily()
    sizes = {"images": 4, "channels": 64, "filters": 128, "rows": 56, "columns": 56, "filter_rows": 3, "filter_columns": 3}
    shapes = convolution_shapes(**{name: np.array([float(size)]) for name, size in sizes.items()}, row_padding=1, column_padding=1)
    found = row(op(CONV, weights="fp32", traffic=PIXELS), batches=(4,))
    assert found["time_s"] == family.seconds(shapes, H100, starts(family))[0]
    assert found["bound_s"] == family.bound_s(shapes, H100)[0]
    assert (found["kernel"], found["source"]) == ("convolution", "datasheet")
    assert found["flops"] == 4 * 2 * 56 * 56 * 128 * 64 * 9
    assert found["bytes"] == 4 * (PIXELS[0] + PIXELS[1]) + PIXELS[2]


def test_a_spread_filter_is_not_done_by_winograd():
    spread = replace(CONV, dilation=(2, 2), padding=(2, 2, 2, 2))
    assert row(op(spread), batches=(64,))["time_s"] > row(op(CONV), batches=(64,))["time_s"]
    strided = replace(CONV, kernel=(1, 9), padding=(0, 4, 0, 4))
    assert row(op(spread), batches=(64,))["time_s"] == pytest.approx(row(op(strided), batches=(64,))["time_s"], rel=0.05)


def test_a_dense_product_in_16_bits_runs_on_matrix_units_with_cold_weights():
    family = gemm.gemm_family("bf16", "", H100, cold=True)
    shapes = gemm.gemm_shapes(*(np.array([float(size)]) for size in (98, 1000, 512)))
    found = row(replace(MIXED[1], rows_count=98))
    assert (found["kernel"], found["time_s"]) == ("gemm", family.seconds(shapes, H100, starts(family))[0])


def test_a_product_in_fp32_runs_on_vector_units():
    family = vector_gemm.VectorGemmFamily()
    shapes = vector_gemm.gemm_shapes(*(np.array([float(size)]) for size in (49, 1000, 512)))
    found = row(replace(MIXED[1], weights_format="fp32", activations_format="fp32"))
    assert found["time_s"] == family.seconds(shapes, H100, starts(family))[0]


def test_products_of_activations_are_independent_ones():
    found, half = row(MIXED[2], batches=(64,)), row(MIXED[2], batches=(32,))
    assert found["kernel"] == "batched gemm"
    assert half["time_s"] < found["time_s"] < 2 * half["time_s"]


@pytest.mark.parametrize(("weights", "faster"), [("int8", True), ("int4", True), ("fp16", False)])
def test_narrow_weights_make_a_product_of_one_row_faster(weights, faster):
    wide = op(MatmulShape(columns=8192, depth=8192), weights="fp16", activations="fp16")
    assert (row(replace(wide, weights_format=weights))["time_s"] < row(wide)["time_s"]) is faster


def test_streams_move_the_bytes_of_their_traffic():
    shapes = {**stream_shapes.elementwise(5000.0, inputs=1.0, element_bytes=4.0), "rows": np.array([50.0]), "columns": np.array([100.0])}
    assert row(MIXED[4])["time_s"] == ELEMENTWISE.seconds(shapes, H100, starts(ELEMENTWISE))[0]
    shapes = stream_shapes.softmax(np.array([1536.0]), np.array([128.0]), element_bytes=2.0)
    assert row(MIXED[3])["time_s"] == SOFTMAX.seconds(shapes, H100, starts(SOFTMAX))[0]


def test_an_operator_without_a_kernel_takes_a_launch_and_its_bytes():
    found = row(MIXED[-1], batches=(2,))
    moved = 2 * 2e6 + 3e6
    start = starts(ELEMENTWISE)
    each = start["floor_s"] + moved / (start["memory_efficiency_ratio"] * H100.memory_bytes_per_s)
    assert (found["kernel"], found["bytes"], found["missing_kernel"]) == ("none", 3 * moved, "no kernel is known for it")
    assert 3 * each / 2 < found["time_s"] < 3 * each  # the cache holds what it moves, so that it is faster than DRAM


def test_a_product_in_a_format_without_kernels_is_flagged_and_costed_by_its_bytes():
    found = row(op(MatmulShape(columns=64, depth=64), weights="fp64", activations="fp64"))
    assert found["missing_kernel"] == "h100-sxm has no kernel for fp64 products"
    assert found["flops"] == 2 * 64 * 64
    assert row(op(CONV, weights="fp8", activations="fp8"), device=read_hardware("a100-sxm-80gb"))["kernel"] == "none"


@pytest.mark.parametrize(
    ("entry", "bound_by"),
    [
        (op(StreamShape(kind="elementwise", columns=4), rows=4, traffic=(16.0, 16.0, 0.0)), "launch_sync"),
        (op(StreamShape(kind="elementwise", columns=4096), rows=2**17, traffic=(4e4, 4e4, 0.0)), "memory_bandwidth"),
        (op(replace(CONV, in_channels=512, out_channels=512), rows=64), "compute"),
        (op(MatmulShape(columns=8192, depth=8192), rows=8, weights="fp16", activations="fp16"), "memory_bandwidth"),
        (op(MatmulShape(columns=8192, depth=8192), rows=8192, weights="fp16", activations="fp16"), "compute"),
    ],
)
def test_the_largest_term_is_what_bounds_an_operator(entry, bound_by):
    assert row(entry)["bottleneck_class"] == bound_by


# --- calibrations, and other pricers -----------------------------------------------------------------------------------------


def calibrated(family, variant, **changed):
    error = ErrorFigures(n_fitted=1, n=1, mean_ratio=0.0, median_ratio=0.0, p90_ratio=0.0, bias_ratio=0.0)
    entry = FamilyCalibration(
        family=family.name, stack="a_1", variant=variant, parameters={**starts(family), **changed}, residual=None, error=error
    )
    return CalibrationDocument(hardware="h100-sxm", families=(entry,), split="none")


@pytest.mark.parametrize(
    ("family", "variant", "entry"),
    [
        (ConvolutionFamily(), "fp32", MIXED[0]),
        (gemm.gemm_family("bf16", "a_1", H100), "bf16", MIXED[1]),
        (vector_gemm.VectorGemmFamily(), "fp16-matrix", MIXED[2]),
        (SOFTMAX, "fp16-softmax", replace(MIXED[3], layer_type="Softmax")),
        (ELEMENTWISE, "fp32-relu", replace(MIXED[4], layer_type="Relu")),
    ],
)
def test_a_calibration_is_used_where_there_is_one(family, variant, entry):
    found = row(entry, calibration=calibrated(family, variant, floor_s=1e-3))
    assert found["source"] == "calibrated"
    assert found["time_s"] > 1e-3 > row(entry)["time_s"]
    assert found["bottleneck_class"] == "launch_sync"
    assert row(entry, calibration=calibrated(family, "another"))["source"] == "datasheet"


def test_the_shipped_calibration_of_quantisation_prices_it():
    entry = op(StreamShape(kind="quantise", columns=512), rows=512, activations="fp8", traffic=(1024.0, 512.0, 0.0))
    document = shipped_calibration("l40s")
    assert document is not None
    assert row(entry, device=read_hardware("l40s"), calibration=document)["source"] == "calibrated"


@dataclass(frozen=True)
class Roofline:
    """A second pricer: the larger of FLOPs and bytes over round rates."""

    def terms(self, op, rows):
        compute_s = np.array([op.flops(1) / op.rows_count * count / 1e12 for count in rows])
        memory_s = np.array([op.traffic.total_bytes(count) / 1e9 for count in rows])
        nothing = np.zeros(len(rows))
        terms = Terms(compute_s=compute_s, memory_s=memory_s, launch_s=nothing, sync_s=nothing, bytes=memory_s * 1e9)
        time_s = terms.time_s(np.inf)
        return OpTerms(kernel="gemm", terms=terms, time_s=time_s, bound_s=time_s, source="datasheet")


def test_another_pricer_takes_the_place_of_kernel_families():
    graph = OpGraph(ops=MIXED, ranks_count=1, batch_axis="batch")
    found = graph_costs(graph, Roofline(), (3,)).to_pylist()
    for entry, cost in zip(MIXED, found, strict=True):
        expected = max(entry.flops(3) / 1e12, entry.calls_count * entry.traffic.total_bytes(entry.rows(3)) / 1e9)
        assert cost["time_s"] == pytest.approx(expected)


def test_a_graph_with_a_fixed_batch_has_no_other():
    with pytest.raises(SpecError, match="no axis of the model is dynamic"):
        costs(MIXED[0], batches=(1, 2), batch_axis=None)
    assert costs(MIXED[0], batch_axis=None).num_rows == 1
