"""Workload fit: cells are single runs, risk rises without a calibration, budgets fail closed, and what is dominated is told."""

from __future__ import annotations

from dataclasses import replace

import pyarrow.compute as pc
import pytest

from gates.fit.cell import FitCell, fit_cell
from gates.fit.shortlist import Budget, dominating, shortlist
from gates.owners import Owners, parse_owners
from gates.policy import SloLimits
from gates.sweep.load import Axis
from gates.sweep.sweep import Question, highest_load
from replay.assembly.percentile import percentile
from replay.catalog.hardware import read_hardware
from replay.errors import SpecError
from replay.pipeline import Replayer
from replay.specs.mapping import parse_mapping
from tests.models import LLAMA_8B
from tests.resimulation.resimulated_cells import BASELINE, traffic

NOBODY = Owners()


def asked(hardware, slo=None):
    replayer = Replayer(trace=traffic(300, gap_s=0.2), model=LLAMA_8B, hardware=hardware, seed=1)
    slo = slo or SloLimits(ttft_s=0.5)
    return Question(
        replayer=replayer, axis=Axis(name="rate_ratio"), loads=(1.0,), slo=slo, attainment=0.95, jobs=1, progress=lambda _: None
    )


@pytest.fixture(scope="module")
def a100():
    return asked(read_hardware("a100-sxm-80gb"))


def test_a_cell_holds_the_figures_of_a_single_run(a100):
    cell, run = fit_cell(a100, BASELINE, "b", NOBODY), a100.replayer.run(BASELINE)
    assert cell.e2e_p99_s == percentile(run.requests["e2e_s"].drop_null().to_numpy(), 99.0)
    assert cell.kv_headroom_ratio == 1 - pc.max(run.steps["kv_blocks"]).as_py() / a100.replayer.table(BASELINE).pool.blocks_count
    stalls = pc.sum(run.layers["memory_stall_s"]).as_py() / pc.sum(run.layers["time_s"]).as_py()
    assert cell.memory_stall_ratio == pytest.approx(stalls)
    assert cell.sustainable_ratio == highest_load(a100, BASELINE, a100.replayer.trace)
    assert (cell.devices, cell.fleet_devices) == (1, 1 if cell.sustainable_ratio >= 1 else 2)
    assert cell.goodput_per_device_per_s == cell.goodput_per_s


def test_ranks_and_replicas_are_devices(a100):
    spec = parse_mapping('name = "m"\n[parallelism]\ntensor = 2\n[fleet]\nreplicas = 3\n', "m")
    cell = fit_cell(a100, spec, "m", NOBODY)
    assert cell.devices == 6
    assert cell.goodput_per_device_per_s == pytest.approx(cell.goodput_per_s / 6)


def test_risk_rises_where_a_calibration_is_removed_and_owners_lower_its_reasons(a100):
    device = a100.replayer.hardware
    calibrated, bare = (fit_cell(asked(one), BASELINE, "b", NOBODY) for one in (device, replace(device, kernels=())))
    assert bare.risk_ratio > calibrated.risk_ratio
    assert any("datasheet" in reason for reason in bare.risk_reasons)
    assert "3 knobs that the mapping sets have no owner" in calibrated.risk_reasons
    owned = parse_owners('[[rules]]\nmatch = "*"\nteam = "t"\n', "o.toml")
    assert not any("owner" in reason for reason in fit_cell(a100, BASELINE, "b", owned).risk_reasons)


def cell(name, **figures):
    known = {
        "devices": 1,
        "fleet_devices": 2,
        "goodput_per_device_per_s": 1.0,
        "e2e_p99_s": 1.0,
        "risk_ratio": 0.1,
        "output_tokens_per_s": 1000.0,
    }
    return FitCell(trace="t", model="m", hardware=name, mapping="b", **{"problem": None, **known, **figures})


def test_the_shortlist_has_the_smallest_fleet_first_and_says_why_others_are_not_on_it():
    cells = [
        cell("big", fleet_devices=4, board_w=500.0),
        cell("small", board_w=700.0),
        cell("none", fleet_devices=None),
        cell("bad", problem="no"),
    ]
    rows = shortlist(cells, Budget(), {"small": 3.6})
    assert [row["hardware"] for row in rows if row["fit"]] == ["small", "big"]
    assert rows[0]["usd_per_million_tokens"] == pytest.approx(2.0)
    assert (rows[0]["fleet_w"], rows[1]["fleet_w"]) == (1400.0, 2000.0)
    why = {row["hardware"]: row["why_not"] for row in rows}
    assert why["bad"] == ["no"]
    assert "hold at no rate" in why["none"][0]
    tight = {row["hardware"]: row["why_not"] for row in shortlist([*cells, cell("dark")], Budget(device_w=600.0, rack_w=1900.0), {})}
    assert "a device may draw 700 W" in tight["small"][0]
    assert "the fleet may draw 2000 W" in tight["big"][0]
    assert "not described" in tight["dark"][0]


def test_a_budget_below_idle_power_is_refused():
    b200 = read_hardware("b200-sxm")
    with pytest.raises(SpecError, match="when idle"):
        Budget(device_w=b200.power.idle_w / 2).check([b200])
    Budget(device_w=b200.power.idle_w).check([b200, read_hardware("t4")])


def test_what_another_cell_beats_in_everything_known_is_dominated():
    best, worse, other = cell("best"), cell("worse", e2e_p99_s=2.0), cell("other", e2e_p99_s=0.5, goodput_per_device_per_s=0.5)
    assert dominating([best, worse, other, cell("bad", problem="no")]) == (True, False, True, False)
    assert dominating([best, replace(worse, trace="u")]) == (True, True)
    assert dominating([best, best]) == (True, True)
