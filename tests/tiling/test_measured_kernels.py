"""Measured kernels: inside their hull they are what a kernel costs, at its edges nothing jumps, elsewhere nothing changes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.errors import SpecError
from replay.execution.step_costs import price_kernels
from replay.mapping_sheet import StepShape, mapping_sheet
from replay.pipeline import Replayer, compile_mapping, source_seconds, trusted_source
from replay.specs.measured import MeasuredKernels
from replay.tiling.families.decode_attention import DecodeAttention, decode_shapes
from replay.tiling.families.decode_paths import FLASH3
from replay.tiling.families.gemm import gemm_family, gemm_shapes, pinned_variant
from replay.tiling.measured_hull import Hull, Timings, log_ratios
from replay.tiling.step_table import MEASURED_ERROR_RATIO
from replay.tiling.terms import combine
from tests.models import LLAMA_8B, mapping, round_hardware
from tests.step_tables import make_trace

ROWS = np.array([1.0, 2, 4, 8, 16, 32, 64, 128, 256])
SMALL = ("[batching]", "max_batched_tokens = 1024", "max_running = 64", "max_context_tokens = 8192")


def kernels(family, variant, shapes, seconds, stack=""):
    """Return measured kernels with the given columns."""
    columns = {**shapes, "seconds": seconds}
    lines = [
        ",".join(columns),
        *(",".join(map(repr, row)) for row in zip(*(np.asarray(c, float).tolist() for c in columns.values()), strict=True)),
    ]
    table = "\n".join(lines) + "\n"
    more = {"name": "m.csv", "digest": "sha256:0", "rows_count": len(lines) - 1, "set_aside_count": 0}
    return MeasuredKernels(family=family, variant=variant, stack=stack, table=table, **more)


def start(family):
    return {definition.name: definition.start for definition in family.parameters}


def product(columns=4096, depth=14336, factor=1.3, rows=ROWS, **more):
    """Return measured multiplies that take `factor` times what their model says; down_proj of the model unless said otherwise."""
    device = round_hardware()
    family, shapes = gemm_family("bf16", more.get("stack", ""), device), gemm_shapes(rows, columns, depth)
    return kernels("gemm", "bf16", shapes, factor * family.seconds(shapes, device, start(family)), **more)


def tables(*measured, lines=()):
    """Return the step tables without and with measured kernels."""
    spec = mapping(*SMALL, *lines)
    return [compile_mapping(LLAMA_8B, replace(round_hardware(), measured=found), spec).table for found in ((), measured)]


def seconds(table, kernel, terms="token_terms"):
    exponent = next(row["overlap_exponent"] for row in table.kernels.to_pylist() if row["kernel"] == kernel)
    names = ("compute_s", "memory_s", "launch_s", "sync_s")
    return combine(*(getattr(table, terms)[f"{kernel}.{name}"].to_numpy() for name in names), exponent)


def ratios(free, known, kernel="down_proj"):
    """Return measured over modelled times by row of the table; row 0 of a phase, which costs nothing, is NaN."""
    before = seconds(free, kernel)
    return seconds(known, kernel) / np.where(before > 0, before, np.nan)


def measured_rows(table, kernel):
    ranges = [row for row in table.measured.to_pylist() if row["kernel"] == kernel]
    return np.concatenate([np.arange(row["first_row"], row["last_row"] + 1) for row in ranges]) if ranges else np.array([])


def test_a_product_takes_what_was_measured_at_the_measured_rows_and_between_them():
    free, known = tables(product())
    assert ratios(free, known)[1:257] == pytest.approx(1.3, rel=1e-6)
    assert measured_rows(known, "down_proj").tolist() == [*range(1, 257), *range(1026, 1282)]


def test_outside_the_hull_and_for_other_kernels_nothing_changes_and_at_its_edge_nothing_jumps():
    free, known = tables(product())
    ratio = ratios(free, known)[1:1025]
    assert (ratio[511:] == 1.0).all()
    assert np.abs(np.diff(np.log(ratio[250:520]))).max() < np.log(1.3) / 100
    assert (np.diff(ratio[256:512]) < 0).all()
    for name in free.token_terms.column_names:
        if not name.startswith("down_proj."):
            assert free.token_terms[name].equals(known.token_terms[name])


def test_terms_keep_their_proportions_and_bytes():
    free, known = tables(product())
    for row in (1, 64, 200):
        parts = [
            [table.token_terms[f"down_proj.{name}"][row].as_py() for name in ("compute_s", "memory_s", "launch_s")]
            for table in (free, known)
        ]
        assert np.divide(parts[1], parts[0]) == pytest.approx(1.3, rel=1e-6)
    assert free.token_terms["down_proj.bytes"].equals(known.token_terms["down_proj.bytes"])


@pytest.mark.parametrize(
    "other",
    [{"columns": 4097}, {"depth": 4096 * 3}, {"rows": np.array([4096.0])}],
    ids=["columns", "depth", "rows beyond the table's reach"],
)
def test_another_shape_changes_nothing(other):
    free, known = tables(product(**other))
    assert free == known


def test_another_format_or_the_stack_that_is_not_asked_for_changes_nothing():
    ours = product()
    for other in (replace(ours, variant="fp8"), replace(ours, family="vector_gemm")):
        free, known = tables(other, lines=())
        assert seconds(free, "down_proj").tolist() == seconds(known, "down_proj").tolist()
    both = (product(stack="vllm_0.24.0", factor=2.0), product(stack="sglang_0.5.10", factor=1.5))
    for stack, factor in (("vllm_0.24.0", 2.0), ("sglang_0.5.10", 1.5), ("auto", 2.0)):
        free, known = tables(*both, lines=("[kernels]", f'stack = "{stack}"'))
        assert ratios(free, known)[[1, 100]] == pytest.approx(factor, rel=1e-6)
        assert next(row["stack"] for row in known.kernels.to_pylist() if row["kernel"] == "down_proj") == stack.replace(
            "auto", "vllm_0.24.0"
        )


def test_a_table_that_names_no_stack_stands_for_any():
    spec = ("[kernels]", 'stack = "vllm_0.24.0"')
    named = product(columns=28672, depth=4096, stack="vllm_0.24.0")
    free, known = tables(product(), lines=spec)
    assert ratios(free, known)[[1, 100]] == pytest.approx(1.3, rel=1e-6)
    _, known = tables(product(), named, lines=spec)
    assert len(measured_rows(known, "gate_up"))


def test_a_pinned_tile_shares_the_correction_and_is_not_measured():
    lines = ("[gemm]", '"tile@decode[rows<=16]" = [64, 64, 64]')
    free, known = tables(product(), lines=lines)
    assert ratios(free, known)[[1, 16, 17]] == pytest.approx(1.3, rel=1e-6)
    assert measured_rows(known, "down_proj")[0] == 17


def tiled(tile, split=None, factor=1.7, **more):
    """Measured multiplies with a tile of the caller's, which take `factor` times what their model says."""
    device = round_hardware()
    family = replace(gemm_family("bf16", "", device), tile=tile, split=split)
    shapes = gemm_shapes(ROWS, more.pop("columns", 4096), more.pop("depth", 14336))
    return kernels("gemm", pinned_variant("bf16", tile, split), shapes, factor * family.seconds(shapes, device, start(family)), **more)


@pytest.mark.parametrize(
    ("tile", "split", "lines"),
    [
        ((64, 64, 64), None, ("tile = [64, 64, 64]",)),
        ((64, 64, 64), 2, ("tile = [64, 64, 64]", "split_k = 2")),
        (None, 4, ("split_k = 4",)),
    ],
)
def test_timings_with_the_tile_that_a_mapping_pins_decide_that_kernel_alone(tile, split, lines):
    free, known = tables(tiled(tile, split), lines=("[gemm]", *lines))
    assert ratios(free, known)[[1, 16, 256]] == pytest.approx(1.7, rel=1e-6)
    assert len(measured_rows(known, "down_proj"))
    assert not len(measured_rows(known, "gate_up"))
    free, known = tables(tiled(tile, split))
    assert free == known
    free, known = tables(product(), tiled(tile, split), lines=("[gemm]", *lines))
    assert ratios(free, known)[[1, 256]] == pytest.approx(1.7, rel=1e-6)


def test_where_only_other_shapes_were_timed_with_the_tile_the_librarys_choice_corrects_it():
    lines = ("[gemm]", "tile = [64, 64, 64]")
    free, known = tables(product(), tiled((64, 64, 64), columns=28672, depth=4096), lines=lines)
    assert ratios(free, known)[[1, 256]] == pytest.approx(1.3, rel=1e-6)
    assert not len(measured_rows(known, "down_proj"))
    assert len(measured_rows(known, "gate_up"))


def test_weights_that_cross_the_link_are_not_measured():
    _, known = tables(product(), lines=("[placement]", '"weights@mlp" = "host"'))
    assert not len(measured_rows(known, "down_proj"))


def test_no_measured_kernel_is_faster_than_physics_once_the_weights_are_cold():
    _, known = tables(product(factor=1e-3))
    device, shapes = round_hardware(), gemm_shapes(ROWS, 4096, 14336)
    bound_s = gemm_family("bf16", "", device).bound_s(shapes, device)
    assert (seconds(known, "down_proj")[ROWS.astype(int)] >= bound_s * (1 - 1e-12)).all()


def attention(factor):
    sequences, context = (axis.ravel() for axis in np.meshgrid([1.0, 4, 16], [128.0, 256, 512, 1024], indexing="ij"))
    heads = {"query_heads": 32, "kv_heads": 8, "head_size": 128, "cache_warm_ratio": 1.0}
    shapes = decode_shapes({"sequences": sequences, "context_tokens": context, **heads})
    device = round_hardware()
    family = DecodeAttention(path=FLASH3, kv_bytes=2.0, planned_units=device.units_count)
    took_s = factor(sequences, context) * family.seconds(shapes, device, start(family))
    return kernels("decode_attention", "bf16-flash3", shapes, took_s)


def decode_ratios(free, known):
    """Return measured over modelled times [1..64 sequences, knots]."""
    before, after = (seconds(table, "attention_decode", "decode_terms").reshape(65, -1)[1:] for table in (free, known))
    return after / before


def steps_of(sequences, context):
    return 1.0 + np.log2(context) / 100 + np.log2(sequences) / 10


@pytest.mark.parametrize("lines", [(), ("[attention]", '"tile@decode" = [64, 64]')], ids=["own tile", "pinned tile"])
def test_decode_attention_is_corrected_along_context_and_sequences(lines):
    free, known = tables(attention(steps_of), lines=lines)
    knots, ratio = free.context_knots, decode_ratios(free, known)
    for sequences in (1, 4, 16):
        for context in (128, 256, 512, 1024):
            assert ratio[sequences - 1, knots == context] == pytest.approx(steps_of(sequences, context), rel=1e-9)
    assert (ratio[:, knots >= 2048] == 1.0).all()
    assert (ratio[31:] == 1.0).all()
    inside = np.zeros((65, len(knots)), dtype=bool)
    inside.ravel()[measured_rows(known, "attention_decode").astype(int)] = True
    between = (knots >= 128) & (knots <= 1024)
    assert inside.sum() == (0 if lines else 16 * between.sum())
    assert lines or inside[1:17, between].all()


def test_a_table_of_attention_that_names_no_stack_is_of_whichever_kernel_runs():
    found = attention(steps_of)
    for variant, stack, counts in (("bf16-flash2", "", True), ("bf16-flash2", "vllm_1.0", False), ("bf16-fp8kv-flash3", "", False)):
        _, known = tables(replace(found, variant=variant, stack=stack), product(stack="vllm_1.0"))
        assert bool(len(measured_rows(known, "attention_decode"))) is counts


def test_the_sheet_says_what_is_measured_row_by_row():
    device, spec = replace(round_hardware(), measured=(product(),)), mapping(*SMALL)
    done = compile_mapping(LLAMA_8B, device, spec)
    steps = (StepShape(name="decode", decode_sequences=16, context_tokens=1000), StepShape(name="prefill", prefill_tokens=1000))
    found = {(row["step"], row["kernel"]): row for row in mapping_sheet(done, device, spec, steps).to_pylist()}
    assert (found["decode", "down_proj"]["source"], found["decode", "down_proj"]["error_ratio"]) == ("measured", MEASURED_ERROR_RATIO)
    assert found["prefill", "down_proj"]["source"] == "datasheet"
    assert found["decode", "gate_up"]["source"] == "datasheet"


def test_device_time_is_shared_out_by_what_each_row_rests_on():
    trace = make_trace([0.0, 0.1, 0.2], [100, 200, 900], [8, 9, 10])
    device, spec = replace(round_hardware(), measured=(product(),)), mapping(*SMALL)
    replayer = Replayer(trace=trace, model=LLAMA_8B, hardware=device, seed=0)
    found, steps = source_seconds(replayer, spec), replayer.run(spec).steps
    [priced] = [kernel for kernel in price_kernels(replayer.table(spec), steps) if kernel.kernel == "down_proj"]
    took_s = (priced.weight * priced.time_s)[priced.row]
    inside = priced.row % (1024 + 1) <= 256  # rows as captured graphs pad them
    assert found["measured"] == pytest.approx(took_s[inside].sum())
    assert 0 < inside.sum() < len(inside)
    assert sum(found.values()) == pytest.approx(steps["device_s"].to_numpy().sum())
    assert trusted_source(replayer, spec) == "datasheet"


def test_a_record_without_a_column_of_its_family_is_refused():
    ours = product()
    with pytest.raises(SpecError, match="measured kernels: no column depth"):
        tables(replace(ours, table=ours.table.replace("depth", "deep")))


HULL = Hull(at=(), along=("rows", "columns"))


def timed(points, values):
    rows, columns = np.array(points, dtype=float).T
    return Timings(shapes={"rows": rows, "columns": columns}, seconds=np.exp(values), stack="")


def at(found, *queries):
    rows, columns = np.array(queries, dtype=float).T
    return log_ratios(found, np.ones(len(found.seconds)), {"rows": rows, "columns": columns}, HULL)


@given(
    st.dictionaries(st.tuples(st.sampled_from([1, 2, 4, 8, 64]), st.sampled_from([1, 2, 4, 8, 64])), st.floats(-1, 1), min_size=1),
    st.data(),
)
def test_a_hull_holds_its_points_fades_beyond_them_and_never_jumps(points, data):
    found = timed(list(points), list(points.values()))
    values, inside = at(found, *points)
    assert values == pytest.approx(list(points.values()), abs=1e-12)
    assert inside.all()
    where = [data.draw(st.floats(0.2, 300)) for _ in range(2)]
    near = [place * (1 + 1e-9) for place in where]
    (value, close), (within, _) = at(found, where, near)
    assert abs(value - close) < 1e-6
    assert abs(value) <= max(map(abs, points.values())) + 1e-12
    rows = [point[0] for point in points]
    if where[0] > 2 * max(rows) or max(where[0], 1) < min(rows) / 2:
        assert value == 0
        assert not within


def test_between_points_the_logarithm_is_linear_and_repeats_count_with_their_mean():
    found = timed([(1, 1), (4, 1), (4, 1)], [0.0, 0.2, 0.4])
    values, inside = at(found, (2, 1), (4, 1), (8, 1), (4 * 2**0.5, 1))
    assert values == pytest.approx([0.15, 0.3, 0.0, 0.15])
    assert inside.tolist() == [True, True, False, False]


def test_far_from_every_measured_shape_a_cost_is_corrected_and_not_measured():
    values, inside = at(timed([(1, 1), (64, 1)], [0.6, 0.6]), (2, 1), (8, 1), (32, 1))
    assert values == pytest.approx([0.6] * 3)
    assert inside.tolist() == [True, False, True]
