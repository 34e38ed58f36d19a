"""What a mapping and a description of power become in a step table."""

import pytest

from replay.catalog.hardware import hardware_from_document, read_hardware
from replay.execution.engine import replay
from replay.pipeline import compile_mapping
from replay.specs.hardware import PowerSpec
from tests.models import LLAMA_8B, mapping, round_hardware
from tests.step_tables import make_trace

POWER = PowerSpec(
    idle_w=50.0, cap_w=300.0, compute_w=200.0, memory_energy_j_per_byte=1e-10, average_s=0.1, min_clock_hz=0.31e9, clock_step_hz=0.1e9,
    ambient_c=27.0, throttle_c=85.0, thermal_resistance_k_per_w=0.1, thermal_s=60.0,
)  # fmt: skip
DEVICE = round_hardware(power=POWER)


def compiled(*lines, device=DEVICE):
    return compile_mapping(LLAMA_8B, device, mapping("[batching]", "max_batched_tokens = 64", "max_running = 16", *lines))


def decision(schedule, knob):
    [found] = [found for found in schedule.decisions if found.knob == knob]
    return found.effective, found.reason


def test_clocks_run_from_the_full_one_down_in_whole_steps():
    power = compiled().table.power
    assert power.clocks_hz == pytest.approx([1.0e9, 0.9e9, 0.8e9, 0.7e9, 0.6e9, 0.5e9, 0.4e9])
    assert (power.full_clock_hz, power.cap_w, power.ranks_count) == (1e9, 300.0, 1)


@pytest.mark.parametrize(
    ("line", "cap_w", "most_hz", "effective", "reason"),
    [
        ("cap_w = 200", 200.0, 1.0e9, "200", None),
        ("cap_w = 400", 300.0, 1.0e9, "300", "round allows 300"),
        ("max_clock_hz = 0.8e9", 300.0, 0.8e9, "8e+08", None),
        ("max_clock_hz = 0.75e9", 300.0, 0.7e9, "7e+08", "the next of its clocks is 7e+08"),
        ("max_clock_hz = 2e9", 300.0, 1.0e9, "1e+09", "round allows 1e+09"),
        ("max_clock_hz = 0.1e9", 300.0, 0.4e9, "4e+08", "the next of its clocks is 4e+08"),
    ],
)
def test_a_mapping_lowers_the_cap_and_the_clock_and_never_raises_them(line, cap_w, most_hz, effective, reason):
    schedule = compiled("[power]", line)
    assert (schedule.table.power.cap_w, schedule.table.power.clocks_hz[0]) == (cap_w, pytest.approx(most_hz))
    assert decision(schedule, "power." + line.split(" ")[0]) == (effective, reason)


def test_a_power_knob_says_so_where_the_device_has_no_power():
    schedule = compiled("[power]", "cap_w = 200", device=round_hardware())
    assert schedule.table.power is None
    assert decision(schedule, "power.cap_w") == ("none", "the description of round has no power section")


def test_a_flop_costs_the_draw_at_the_peak_over_the_peak_of_its_format():
    def flops_j(*lines):
        table = compiled(*lines).table
        return dict(zip(table.kernels["kernel"].to_pylist(), table.power.flop_energy_j, strict=True))

    bf16, fp8 = flops_j(), flops_j("[formats]", 'weights = "fp8"', 'activations = "fp8"')
    assert bf16["qkv"] == bf16["attention_prefill"] == fp8["attention_prefill"] == 200.0 / 100e12
    assert fp8["qkv"] == 200.0 / 200e12


def test_a_step_of_a_real_model_costs_two_flops_a_weight_and_its_weights_once():
    table = compiled("[graph]", 'mode = "none"').table
    [step, *_] = replay(make_trace([0.0], [64], [1]), table).steps.to_pylist()
    weights, head = 32 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336), 4096 * 128256
    active_j = step["energy_j"] - 50.0 * (step["end_s"] - step["start_s"])
    assert active_j == pytest.approx(2 * (64 * weights + head) * 2e-12 + 2 * (weights + head) * 1e-10, rel=0.05)


def test_the_devices_of_all_stages_share_a_step():
    lines = ("inflight_microbatches = 1", "[graph]", 'mode = "none"', "[parallelism]", "tensor = 2")
    one, four = (compiled(*lines, f"pipeline = {stages}").table for stages in (1, 4))
    assert (one.power.ranks_count, four.power.ranks_count) == (2, 8)

    def active_j(table):
        [step] = replay(make_trace([0.0], [64], [1]), table).steps.to_pylist()
        return step["energy_j"] - table.power.ranks_count * 50.0 * (step["end_s"] - step["start_s"])

    assert active_j(four) == pytest.approx(active_j(one), rel=0.01)  # beside the hand-overs


def test_the_power_of_overlapping_steps_is_not_guessed():
    found = compiled("[power]", "cap_w = 300", "[parallelism]", "pipeline = 2")
    assert found.table.power is None
    effective, reason = decision(found, "power.cap_w")
    assert (effective, "several steps" in reason) == ("none", True)


def test_a_locked_clock_stretches_computing_for_good():
    trace = make_trace([0.0], [64], [4])
    free, locked = (replay(trace, compiled("[power]", f"max_clock_hz = {hz}").table).steps for hz in (1e9, 0.5e9))
    assert locked["device_s"][0].as_py() > free["device_s"][0].as_py()
    assert set(locked["clock_hz"].to_pylist()) == {0.5e9}


def test_a_recorded_description_of_power_is_read_back():
    device = read_hardware("b200-sxm")
    assert hardware_from_document(device.to_document(), "run.json") == device
    assert device.power.cap_w == 1000.0
    assert device.sources["power.cap_w"].endswith("TDP")
    assert "power" not in read_hardware("h100-sxm").to_document()
