"""Errors of the hardware model in a comparison: what both arms share is drawn once for both, what a changed kernel has alone is not.

A kernel that both mappings run alike is wrong by the same factor in both. One that changed is wrong by that factor and by the error of the
ratio of the two kernels, which pairs of timings say (`replay.calibration.pairs`); where none do, by its full error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gates.statistics.blocks import Floats
from replay.seeds import stream
from replay.specs.calibration import FamilyCalibration
from replay.specs.hardware import HardwareSpec
from replay.tiling.step_table import MEASURED_ERROR_RATIO, MEASURED_REPEAT_RATIO, TERMS, StepTable

MEAN_TO_SD = math.sqrt(math.pi / 2.0)
"""Standard deviation over mean absolute value of a normal error."""
_AXES = {
    "tokens": ("token_terms", ("phase", "tokens")),
    "sequences": ("sequence_terms", ("sequences",)),
    "decode_attention": ("decode_terms", ("sequences", "context_tokens")),
    "prefill_attention": ("prefill_terms", ("tokens", "keys_tokens")),
}
_SAME = 1e-12  # relative; the same kernel tabulated for other limits agrees to rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelError:
    """What is not known about one kernel's time; standard deviations of its logarithm."""

    kernel: str
    shared_sd: float
    """Of the factor that a kernel of this name has in either arm; 0 for one that the baseline lacks."""
    specific_sd: float
    """Of the candidate's own factor on top; 0 for a kernel that did not change."""
    changed: bool
    """The baseline runs it otherwise, or not at all."""
    estimated: bool
    """Pairs of timings say `specific_sd`; otherwise it is the kernel's full error. True for one that did not change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One side's step table, and how much of its kernels' times timings decide."""

    table: StepTable
    kernels: Mapping[str, Mapping[str, Any]]
    """Rows of KERNEL_SCHEMA by name."""
    measured_ratio: Mapping[str, float]
    """Share of each kernel's time in the run that timings of the kernel itself decide; absent: none."""

    @classmethod
    def of(cls, table: StepTable, steps: pa.Table) -> Arm:
        """Return the arm that ran `steps` under `table`."""
        kernels = {row["kernel"]: row for row in table.kernels.to_pylist()}
        return cls(table=table, kernels=kernels, measured_ratio=_measured_ratios(table, steps))


def kernel_errors(baseline: Arm, candidate: Arm, device: HardwareSpec, *, split: bool = False) -> tuple[KernelError, ...]:
    """Return the errors of every kernel of either arm, the baseline's first; `split`: ranks share the operators otherwise."""
    fits = {kernel.fit.label: kernel.fit for kernel in device.kernels if kernel.hardware == device.name}
    names = dict.fromkeys(arm_kernel for arm in (baseline, candidate) for arm_kernel in arm.kernels)
    return tuple(_kernel_error(name, baseline, candidate, fits, split) for name in names)


def _kernel_error(name: str, baseline: Arm, candidate: Arm, fits: Mapping[str, FamilyCalibration], split: bool) -> KernelError:
    before, after = baseline.kernels.get(name), candidate.kernels.get(name)
    there = [arm for arm in (baseline, candidate) if name in arm.kernels]
    measured_ratio = min(arm.measured_ratio.get(name, 0.0) for arm in there)
    full = max(arm.kernels[name]["error_ratio"] for arm in there)
    shared_sd = MEAN_TO_SD * _mixed(measured_ratio, MEASURED_ERROR_RATIO, full) if before is not None else 0.0
    if after is None or (before is not None and _alike(baseline.table, candidate.table, before, after)):
        return KernelError(kernel=name, shared_sd=shared_sd, specific_sd=0.0, changed=False, estimated=True)
    of_ratio = _ratio_error(before, after, fits, split)
    specific_sd = _mixed(measured_ratio, MEAN_TO_SD * MEASURED_REPEAT_RATIO, MEAN_TO_SD * full if of_ratio is None else of_ratio)
    estimated = of_ratio is not None or measured_ratio == 1.0
    return KernelError(kernel=name, shared_sd=shared_sd, specific_sd=specific_sd, changed=True, estimated=estimated)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ErrorDraw:
    """Standard normal errors of each replicate and kernel, and the factors that they stand for."""

    errors: tuple[KernelError, ...]
    shared: Floats
    """[replicates, kernels]"""
    specific: Floats
    """[replicates, kernels]"""

    def factors(self, replicate: int, table: StepTable, *, candidate: bool) -> dict[str, float]:
        """Return the factor of each of a table's kernels in a replicate."""
        known = set(table.kernels["kernel"].to_pylist())
        logs = (
            (error.kernel, error.shared_sd * shared + (error.specific_sd * specific if candidate else 0.0))
            for error, shared, specific in zip(self.errors, self.shared[replicate], self.specific[replicate], strict=True)
        )
        return {kernel: math.exp(log) for kernel, log in logs if kernel in known}


def draw_errors(errors: Sequence[KernelError], replicates: int, seed: int) -> ErrorDraw:
    """Return the draws of all replicates; those of a kernel depend on its name and the seed alone, whatever else there is."""

    def normals(kind: str) -> Floats:
        columns = [stream(seed, f"model_error.{kind}.{error.kernel}").standard_normal(replicates) for error in errors]
        return np.stack(columns, axis=1) if columns else np.zeros((replicates, 0))

    return ErrorDraw(errors=tuple(errors), shared=normals("shared"), specific=normals("specific"))


def _mixed(share: float, measured: float, modelled: float) -> float:
    return share * measured + (1.0 - share) * modelled


def _ratio_error(
    before: Mapping[str, Any] | None, after: Mapping[str, Any], fits: Mapping[str, FamilyCalibration], split: bool
) -> float | None:
    """Return the error of the log ratio of two calibrated kernels that pairs of timings say, None where none do.

    Pairs within one calibration are of shapes that ranks split, and say nothing of a tile or a fusion that the mapping sets.
    """
    if before is None or {before["source"], after["source"]} != {"calibrated"}:
        return None
    old, new = fits.get(before["calibration"]), fits.get(after["calibration"])
    if old is None or new is None or old.family != new.family:
        return None
    if old == new and not split:
        return None
    pair = new.pair(old.stack, old.variant) or old.pair(new.stack, new.variant)
    return None if pair is None else pair.log_ratio_error


def _alike(baseline: StepTable, candidate: StepTable, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Return whether two tables say the same of a kernel wherever both say something."""
    told = ("axis", "calls_count", "overlap_exponent", "calibration", "stack", "source")
    if any(before[name] != after[name] for name in told):
        return False
    pairs = list(_common_terms(baseline, candidate, after["kernel"], after["axis"]))
    return bool(pairs) and all(len(old) > 0 and np.allclose(old, new, rtol=_SAME, atol=0.0) for old, new in pairs)


def _common_terms(baseline: StepTable, candidate: StepTable, kernel: str, axis: str) -> Iterator[tuple[Floats, Floats]]:
    """Yield each term of a kernel in both tables, at the rows that both have."""
    name, keys = _AXES[axis]
    tables = [getattr(table, name) for table in (baseline, candidate)]
    columns = [f"{kernel}.{term}" for term in TERMS]
    left, right = (table.select([*keys, *columns]) for table in tables)
    if all(left[key].equals(right[key]) for key in keys):
        yield from ((left[column].to_numpy(), right[column].to_numpy()) for column in columns)
        return
    joined = left.join(right, keys=list(keys), right_suffix=".other", join_type="inner")
    yield from ((joined[column].to_numpy(), joined[f"{column}.other"].to_numpy()) for column in columns)


def _measured_ratios(table: StepTable, steps: pa.Table) -> dict[str, float]:
    """Return the share of each kernel's time over `steps` that timings of the kernel itself decide."""
    from replay.execution.step_costs import price_kernels

    if table.measured.num_rows == 0:
        return {}
    shares = {}
    timed = set(pc.unique(table.measured["kernel"]).to_pylist())
    for priced in price_kernels(table, steps):
        if priced.kernel in timed:
            uses = np.bincount(priced.row, minlength=len(priced.time_s))
            total_s = float((uses * priced.time_s).sum())
            shares[priced.kernel] = float((uses * priced.time_s * priced.measured_ratio).sum()) / total_s if total_s > 0 else 0.0
    return shares
