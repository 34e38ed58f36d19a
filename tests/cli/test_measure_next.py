"""Kernel shapes that the gate asks to have timed: filled in and given back, they decide what the model's error left open."""

import csv
import json
from dataclasses import replace

import numpy as np

from replay.calibration.kinds.gemm import TILE
from replay.catalog.hardware import read_hardware
from replay.tiling.families.gemm import gemm_family, gemm_shapes
from replay.tiling.library import KernelLibrary

MAPPING = 'name = "x"\n[kernels]\nstack = "{}"\n"stack@qkv" = "{}"\n"stack@output_proj" = "{}"\n[batching]\nmax_running = 256\n'
POLICY = 'allow_synthetic = true\nresimulations = 100\nmax_resimulations = 100\n[blocking]\ntpot_s = { p95 = "0.5 %" }\n'
STACKS = ("vllm_0.14.0", "trtllm_1.0.0")


def predicted_ms(row, stack):
    """What the shipped calibration says of a row: as good a timing as any, for what is tested is who is believed."""
    device = read_hardware(row["gpu"])
    library = KernelLibrary(device=device)
    sizes = [np.array([int(row[name])]) for name in "mnk"]
    model = library.model(gemm_family(row["dtype"], stack, device), library.find("gemm", (row["dtype"],), stack))
    return 1e3 * float(model.cost(gemm_shapes(*sizes), device).time_s[0])


def tiled_ms(row):
    """What the model says of a row with its tile, where it names one."""
    device = read_hardware(row["gpu"])
    library = KernelLibrary(device=device)
    stack = library.stack(("gemm",), "auto")
    tile = tuple(int(row[name]) for name in TILE) if row["tile_m"] else None
    family = replace(gemm_family(row["dtype"], stack, device), tile=tile)
    shapes = gemm_shapes(*(np.array([int(row[name])]) for name in "mnk"))
    model = library.model(family, library.find("gemm", (row["dtype"],), stack))
    return 1e3 * float(model.cost(shapes, device).time_s[0])


def gate(project, *arguments):
    result = project.replay("gate", "--baseline", "b.toml", "--candidate", "c.toml", "--format", "json", *arguments)
    return json.loads(result.stdout)["predicate"]


def test_timings_of_the_shapes_asked_for_take_the_models_error_out_of_the_verdict(project):
    for name, stack in zip(("b.toml", "c.toml"), STACKS, strict=True):
        project.write(name, MAPPING.format(STACKS[0], stack, stack))
    project.write("policy.toml", POLICY)
    before = gate(project)
    assert before["basis"] == "inconclusive"
    undecided = [claim for claim in before["claims"] if claim["reason_code"] == "model_error_too_large"]
    assert undecided
    assert "measure_next" in {reason["code"] for reason in before["reasons"]}
    path = project.folder / "replay-out" / "evidence" / "measure-next.csv"
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert {(row["n"], row["k"]) for row in rows} == {("4096", "4096"), ("6144", "4096")}
    for row in rows:
        row |= {f"ms_{stack}": f"{predicted_ms(row, stack):.6f}" for stack in STACKS}
    with (project.folder / "measured.csv").open("w") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    after = gate(project, "--measurements", "measured.csv")
    widths = [
        {claim["id"]: claim["interval"]["upper"] - claim["interval"]["lower"] for claim in found["claims"] if claim["blocking"]}
        for found in (before, after)
    ]
    assert all(widths[1][claim] < 0.6 * width for claim, width in widths[0].items())
    assert after["basis"] == "proven_safe"
    assert not any(claim["reason_code"] == "model_error_too_large" for claim in after["claims"])
    assert "measure_next" not in {reason["code"] for reason in after["reasons"]}


def test_a_tile_change_is_decided_by_timings_of_both_tiles(project):
    project.write("b.toml", 'name = "b"\n[gemm]\ntile = [128, 128, 64]\n')
    project.write("c.toml", 'name = "c"\n[gemm]\ntile = [128, 128, 64]\n"tile@mlp.decode" = [64, 64, 64]\n')
    project.write("policy.toml", POLICY)
    before = gate(project)
    assert before["basis"] == "inconclusive"
    path = project.folder / "replay-out" / "evidence" / "measure-next.csv"
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert {row["tile_n"] for row in rows} == {"64", "128"}
    [time] = [name for name in rows[0] if name.startswith("ms")]
    for row in rows:
        row[time] = f"{tiled_ms(row):.6f}"
    with (project.folder / "measured.csv").open("w") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    after = gate(project, "--measurements", "measured.csv")
    assert after["basis"] in ("proven_safe", "regression")
    assert not any(claim["reason_code"] == "model_error_too_large" for claim in after["claims"])
