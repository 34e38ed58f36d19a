"""Paired replicates: both arms on the same resampled traffic and under the same shared errors, whatever does the work."""

import math
from dataclasses import replace

import numpy as np
import pytest

from gates.judge import judge
from gates.measure.points import measure_points
from gates.resimulation.errors import Arm, KernelError, draw_errors, kernel_errors
from gates.resimulation.judging import Judged, judge_by_replays
from gates.resimulation.replicates import can_resimulate, resimulate
from gates.resimulation.stitch import stitched
from gates.statistics.blocks import block_length, draw_blocks
from replay.assembly.assemble import assemble
from replay.assembly.headline import Headline, headline_of
from replay.assembly.percentile import percentile
from replay.catalog.hardware import read_hardware
from replay.execution.engine import replay
from replay.pipeline import Replayer
from replay.provenance import Load
from replay.seeds import stream
from tests.models import LLAMA_8B, mapping
from tests.resimulation.resimulated_cells import BASELINE, CANDIDATE, P95, TILED, planned, replayer_on, traffic
from tests.runs import make_run

WIDE = P95 + (
    'tpot_s = { p95 = "3 %" }\nsustained_flops_per_s = "3 %"\n[advisory]\npreemptions_per_request = 0.01\nthroughput_tokens_per_s = "3 %"\n'
    'mfu_ratio = "1 point"\n[advisory.by_layer_type]\nmemory_stall_ratio = "5 points"\n'
)
SEATS = ("[batching]", "max_running = 4", "max_batched_tokens = 256", "max_context_tokens = 4096")
CROWDED = 0.08
"""Gap between requests at which seats are scarce."""


@pytest.fixture(scope="module")
def replayer():
    return replayer_on(traffic(gap_s=CROWDED))


def resimulated(replayer, candidate, *, text=P95, seed=7, jobs=1, settled=lambda found: True):
    return resimulate(planned(replayer, text, seed), replayer, (BASELINE, candidate), jobs=jobs, settled=settled)


def same(one, other):
    return np.array_equal(one.baseline, other.baseline, equal_nan=True) and np.array_equal(one.candidate, other.candidate, equal_nan=True)


def test_replicates_depend_on_the_seed_and_not_on_the_threads_or_on_what_was_done_before(replayer):
    first = resimulated(replayer, CANDIDATE)
    assert first.replicates_count == 24
    assert not np.array_equal(first.baseline, first.candidate)
    assert same(first, resimulated(replayer, CANDIDATE, jobs=3))
    assert same(first, resimulated(replayer_on(traffic(gap_s=CROWDED)), CANDIDATE))
    assert not np.array_equal(first.baseline, resimulated(replayer, CANDIDATE, seed=8).baseline)


def test_the_baseline_s_figures_do_not_depend_on_the_candidate(replayer):
    assert np.array_equal(resimulated(replayer, CANDIDATE).baseline, resimulated(replayer, TILED).baseline)


@pytest.mark.parametrize(
    "candidate",
    [
        BASELINE,
        replace(BASELINE, name="other"),
        mapping("[batching]", "max_running = 400", "max_batched_tokens = 256", "max_context_tokens = 4096"),
    ],
)
def test_an_arm_against_its_equal_has_ratio_exactly_one_in_every_replicate(candidate):
    """Equal mappings, the same one under another name, and one whose change is never felt."""
    quiet = replayer_on(traffic(gap_s=2.0))
    found = resimulated(quiet, candidate)
    assert np.array_equal(found.baseline, found.candidate)
    assert np.isfinite(found.baseline).all()
    [claim] = judge_by_replays(planned(quiet), quiet, (BASELINE, candidate), 1).claims
    assert (claim.outcome, claim.interval.lower, claim.interval.upper) == ("holds", 1.0, 1.0)
    assert claim.method == "paired_resimulation"


@pytest.mark.parametrize("candidate", [CANDIDATE, TILED])
def test_each_replicate_is_the_whole_run_on_its_traffic_under_its_errors(replayer, candidate):
    cell = planned(replayer, WIDE, 7)
    found = resimulated(replayer, candidate, text=WIDE)
    trace, arms = replayer.trace, (BASELINE, candidate)
    n = trace.requests.num_rows
    draw = draw_blocks(n, length=block_length(n, 10), replicates=24 * 3, generator=stream(7, "resimulation.blocks"))
    sides = (Arm.of(replayer.table(arm), replayer.run(arm).steps) for arm in arms)
    errors = draw_errors(kernel_errors(*sides, replayer.hardware), 24 * 3, 7)
    assert any(error.changed for error in errors.errors) == (candidate is TILED)
    for replicate in (0, 23):
        runs = []
        for arm in arms:
            table = replayer.table(arm)
            factors, offered = errors.factors(replicate, table, candidate=arm is candidate), stitched(trace, draw, replicate)
            replayed = replay(offered, table, kernel_factors=factors)
            fixed = {"model": "m", "hardware": "h", "mapping_digest": arm.digest, "seed": 1}
            runs.append(headline_of(assemble(trace=offered, table=table, replayed=replayed, kernel_factors=factors, **fixed)))
        wanted = measure_points([claim.spec for claim in cell.claims], None, *runs)
        for place, claim in enumerate(cell.claims):
            pair = found.baseline[replicate, place], found.candidate[replicate, place]
            if claim.spec.layer_type is not None:
                assert np.isnan(pair).all()
            else:
                assert pair == pytest.approx(wanted[place], rel=1e-9)
                assert np.isfinite(pair).all()


def test_blocking_claims_by_layer_type_have_their_figures_too():
    replayer = replayer_on(traffic(n=40, gap_s=CROWDED))
    figures = "alpha = 0.25\nresimulations = 20\nmax_resimulations = 20\n"
    text = figures + '[blocking]\nttft_s = { p95 = "3 %" }\n[blocking.by_layer_type]\nmemory_stall_ratio = "5 points"\n'
    found = resimulated(replayer, CANDIDATE, text=text)
    claims = len(planned(replayer, text).claims)
    assert claims > 5
    assert found.replicates_count == 4 * claims  # as many as Holm needs to reject at all: claims / alpha
    assert np.isfinite(found.candidate).all()


def test_more_replicates_are_drawn_once_up_to_the_cap_and_the_first_ones_stay(replayer):
    text = P95.replace("max_resimulations = 24", "max_resimulations = 40")
    seen = []

    def never(found):
        seen.append(found.replicates_count)
        return False

    more, few = resimulated(replayer, TILED, text=text, settled=never), resimulated(replayer, TILED, text=text)
    assert seen == [24, 40]
    assert (few.replicates_count, more.replicates_count) == (24, 40)
    assert np.array_equal(more.baseline[:24], few.baseline)
    assert np.array_equal(more.candidate[:24], few.candidate)
    assert np.array_equal(more.specific[:24], few.specific)
    assert more.specific.shape == (40, len(more.errors))


def test_a_changed_kernel_s_own_error_moves_the_candidate_alone_and_widens_the_interval(replayer):
    found = resimulated(replayer, TILED)
    known = resimulated(replayer, CANDIDATE)
    own = np.array([error.specific_sd > 0 for error in found.errors])
    assert own.any()
    assert np.std(np.log(found.candidate / found.baseline)) > 2 * np.std(np.log(known.candidate / known.baseline))


@pytest.mark.parametrize("change", ["replicas", "closed"])
def test_several_replicas_and_closed_loops_are_resimulated_from_whole_runs(change):
    trace = traffic(n=60)
    if change == "closed":
        trace, arms = replace(trace, provenance=replace(trace.provenance, load=Load(concurrency=14))), (mapping(*SEATS), BASELINE)
    else:
        arms = mapping(*SEATS, "[fleet]", "replicas = 2"), mapping(*SEATS, "[fleet]", "replicas = 3")
    replayer = replayer_on(trace)
    found = resimulate(planned(replayer, baseline=arms[0]), replayer, arms, jobs=1, settled=lambda found: True)
    assert np.isfinite(found.baseline).all()
    assert not np.array_equal(found.baseline, found.candidate)


def test_sessions_are_judged_from_resamples_of_the_two_runs(replayer):
    trace = replace(replayer.trace, provenance=replace(replayer.trace.provenance, load=Load(sessions=True)))
    waiting = replayer_on(trace)
    cell = planned(waiting)
    assert not can_resimulate(cell, waiting)
    assert can_resimulate(cell, replayer)
    judged = judge_by_replays(cell, waiting, (BASELINE, CANDIDATE), 1)
    assert judged.claims == judge(cell, waiting.run(BASELINE), waiting.run(CANDIDATE))
    assert judged.errors == ()
    assert judged.claims[0].method == "paired_circular_block_bootstrap"


def test_without_claims_nothing_is_resimulated(replayer):
    assert not can_resimulate(replace(planned(replayer), claims=()), replayer)


def test_a_metric_that_no_request_of_a_replicate_has_leaves_the_claim_undecided():
    trace = traffic()
    single = replace(trace, requests=trace.requests.set_column(3, "output_tokens", [[1] * 239 + [9]]))
    replayer = replayer_on(single)
    text = P95.replace("ttft_s", "tpot_s")
    found = resimulate(planned(replayer, text), replayer, (BASELINE, TILED), jobs=1, settled=lambda found: True)
    assert found.of_claim(0) is None  # some replicates lack the one request with a second token
    [claim] = judge_by_replays(planned(replayer, text), replayer, (BASELINE, TILED), 1).claims
    assert claim.outcome == "undecided"


def test_unestimated_errors_are_named_the_largest_first_and_known_ones_are_not():
    def error(kernel, sd, changed=True, estimated=False):
        return KernelError(kernel=kernel, shared_sd=0.1, specific_sd=sd, changed=changed, estimated=estimated)

    errors = [error(f"k{number}", 0.01 * number) for number in range(1, 8)]
    [finding] = Judged(claims=(), errors=(*errors, error("pair", 0.5, estimated=True), error("same", 0.0, changed=False))).findings()
    assert (finding.code, finding.effect) == ("model_error_unestimated", "informs")
    assert finding.message.endswith("their full error counts: k7 (7 %), k6 (6 %), k5 (5 %), k4 (4 %), k3 (3 %) and 2 more")
    assert list(Judged(claims=(), errors=(error("pair", 0.5, estimated=True),)).findings()) == []


def test_points_are_the_product_s_percentiles_means_and_ratios_of_sums():
    """By hand: the 95th of 20 is the 19th; FLOPs over busy seconds."""
    text = P95 + 'sustained_flops_per_s = "3 %"\n[advisory]\npreemptions_per_request = 0.01\nmfu_ratio = "1 point"\n'
    replayer = replayer_on(traffic(n=40))
    specs = [claim.spec for claim in planned(replayer, text).claims]
    latency_s = np.arange(1.0, 21.0)
    run = make_run(latency_s, metrics={"preemptions_per_request": [1] * 5 + [0] * 15})
    arms = [
        Headline(
            requests=run.requests, sums={("all", "time_s"): seconds, ("all", "flops"): 6e15}, reference_flops_per_s=1e15, replicas_count=2
        )
        for seconds in (10.0, 12.0)
    ]
    ttft, sustained, preempted, mfu = measure_points(specs, None, *arms)
    assert ttft == (19.0, 19.0) == (percentile(latency_s, 95.0),) * 2
    assert sustained == (pytest.approx(12e14), pytest.approx(10e14))  # of two replicas: what both do while each is busy
    assert preempted == (0.25, 0.25)
    assert mfu == (pytest.approx(0.6), pytest.approx(0.5))
    idle = replace(arms[1], sums={("all", "time_s"): 0.0, ("all", "flops"): 0.0})
    assert math.isnan(measure_points(specs, None, arms[0], idle)[1][1])


@pytest.mark.parametrize(("lines", "estimated"), [(("[parallelism]", "tensor = 2"), True), (("[gemm]", "tile = [64, 64, 64]"), False)])
def test_pairs_of_shapes_that_ranks_split_count_where_the_ranks_change_and_not_where_the_tile_does(lines, estimated):
    replayer = Replayer(trace=traffic(n=30), model=LLAMA_8B, hardware=read_hardware("a100-sxm-80gb"), seed=1)
    batching = ("[batching]", "max_running = 16", "max_batched_tokens = 256", "max_context_tokens = 4096")
    arms = mapping(*batching), mapping(*batching, *lines)
    found = resimulate(planned(replayer, baseline=arms[0]), replayer, arms, jobs=1, settled=lambda found: True)
    [product] = [error for error in found.errors if error.kernel == "down_proj"]
    assert (product.changed, product.estimated) == (True, estimated)
    assert (product.specific_sd == pytest.approx(product.shared_sd)) == (not estimated)
