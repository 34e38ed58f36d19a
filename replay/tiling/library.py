"""KernelLibrary: which calibrated kernels stand for a device's, under which software stack, and how far to trust them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

import numpy as np
import numpy.typing as npt

from replay.specs.calibration import Residual
from replay.specs.hardware import HardwareSpec, KernelFit
from replay.tiling.families.family import KernelFamily, Parameters, Shapes
from replay.tiling.measured_hull import HULLS, Timings, log_ratios, timings
from replay.tiling.residual import residual_factor
from replay.tiling.terms import Array, Terms, join, nothing

Source = Literal["measured", "calibrated", "datasheet"]
SOURCES: tuple[Source, ...] = ("measured", "calibrated", "datasheet")
"""From the most to the least trusted."""

TRANSFER_ERROR_RATIO = 0.15
"""Error of kernels that were calibrated on another device: H100 parameters predict B200 multiplies to 15 % (see the README's table)."""
UNCALIBRATED_ERROR_RATIO = 0.5
"""Error of kernels without any calibration: rooflines are 40 to 90 % off on real kernels (the README says on which)."""
TRUSTED_TIME_RATIO = 0.9
"""Share of a time that must be costed at least as well as what is said of the whole."""
AUTO = "auto"
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one call of a kernel costs for each row count, and how far to trust that."""

    terms: Terms
    """[rows]"""
    overlap_exponent: float
    source: Source
    error_ratio: float
    """Mean relative error to expect of one row."""
    stack: str
    """Software stack that the kernel was timed under; empty without a calibration."""
    measured: Mask
    """Rows that timings of the kernel itself decide [rows]: they are `measured`, whatever `source` says of the others."""
    calibration: str = ""
    """Label of the calibration (`FamilyCalibration.label`) that all rows rest on; empty where there is none, or several."""

    @property
    def time_s(self) -> Array:
        """Joined time of one call [rows]."""
        return self.terms.time_s(self.overlap_exponent)

    def take(self, rows: npt.NDArray[np.int64]) -> Cost:
        """Return the cost of some rows, in their order."""
        return replace(self, terms=self.terms.take(rows), measured=self.measured[rows])

    def after_nothing(self, rows: int) -> Cost:
        """Return the cost with `rows` rows of nothing before its own."""
        none = np.zeros(rows, dtype=np.bool_)
        return replace(self, terms=join([nothing(rows), self.terms]), measured=np.concatenate([none, self.measured]))

    def unmeasured(self, terms: Terms) -> Cost:
        """Return the cost with other `terms`, of a kernel that nothing was timed of."""
        return replace(self, terms=terms, measured=np.zeros_like(self.measured))


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Timings of the kernels that a model is of."""

    timings: Timings
    family: KernelFamily | None = None
    """The family as the timings ran it, where a serving step does not run it so (weights in rotation); None for the model's own."""
    exact: bool = True
    """Whether they are of the very kernel; else they only say how far its model is off."""

    @classmethod
    def of(cls, found: Timings | None, *, family: KernelFamily | None = None, exact: bool = True) -> Timed | None:
        """Return the record of what `KernelLibrary.timings` found, None where that is nothing."""
        return None if found is None else cls(timings=found, family=family, exact=exact)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelModel:
    """A kernel family with the parameters that stand for a device's kernels."""

    family: KernelFamily
    parameters: Parameters
    residual: Residual | None
    source: Source
    error_ratio: float
    stack: str
    timed: Timed | None = None
    calibration: str = ""
    """As of a `Cost`."""

    def cost(self, shapes: Shapes, device: HardwareSpec, terms: Terms | None = None) -> Cost:
        """Return the cost of one call for each shape [rows]: physics (or the given `terms`) times residual, never below the bound.

        Where kernels were timed, what they took over what the model says of them counts too.
        """
        exponent = self.family.overlap_exponent(self.parameters)
        physical = self.family.terms(shapes, device, self.parameters) if terms is None else terms
        seconds, measured = self._modelled_s(self.family, shapes, device, physical), np.zeros(len(physical.compute_s), dtype=np.bool_)
        if self.timed is not None and len((near := self.timed.timings.like(shapes, HULLS[self.family.name])).seconds):
            ran = self.timed.family or self.family
            expected_s = self._modelled_s(ran, near.shapes, device, ran.terms(near.shapes, device, self.parameters))
            logs, inside = log_ratios(near, expected_s, shapes, HULLS[self.family.name])
            seconds = np.maximum(seconds * np.exp(logs), self.family.bound_s(shapes, device))
            measured = inside if self.timed.exact else measured
        return Cost(
            terms=physical.scaled_to(seconds, exponent),
            overlap_exponent=exponent,
            source=self.source,
            error_ratio=self.error_ratio,
            stack=self._stack(measured),
            measured=measured,
            calibration=self.calibration,
        )

    def _stack(self, measured: Mask) -> str:
        """Return the stack of the calibration, and of the timings where they decide a row."""
        timed = self.timed.timings.stack if self.timed is not None and measured.any() else ""
        return "+".join(dict.fromkeys(name for name in (self.stack, timed) if name))

    def _modelled_s(self, family: KernelFamily, shapes: Shapes, device: HardwareSpec, terms: Terms) -> Array:
        """Return the time of a call with these physical `terms` [rows]."""
        seconds = terms.time_s(family.overlap_exponent(self.parameters))
        if self.residual is not None:
            seconds = seconds * residual_factor(self.residual, family.features(shapes))
        return np.maximum(seconds, family.bound_s(shapes, device))


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLibrary:
    """The calibrated kernels of one device."""

    device: HardwareSpec

    def stack(self, families: Iterable[str], asked: str) -> str:
        """Return the stack whose kernels run: the one asked for if any of `families` is calibrated or measured for it, else the newest.

        What was measured comes first, then the device's own calibrations; "" where there is nothing at all.
        """
        names = set(families)
        measured = [kernels.stack for kernels in self.device.measured if kernels.family in names and kernels.stack]
        there = [kernel for kernel in self.device.kernels if kernel.fit.family in names and kernel.fit.stack]
        if asked != AUTO and asked in (*measured, *(kernel.fit.stack for kernel in there)):
            return asked
        first = there[0].hardware if there else ""
        return max(measured or (kernel.fit.stack for kernel in there if kernel.hardware == first), key=_version, default="")

    def timings(self, family: str, variants: Iterable[str], stack: str, *, by_format: bool = False) -> Timings | None:
        """Return what was measured of the first of `variants` that anything was: under `stack`, else in tables that name none.

        With `by_format` a variant is a format and the kernel that a stack takes for it (``bf16-flash2``); a table that names no stack
        is of whichever kernel runs.
        """
        ours = [one for one in self.device.measured if one.family == family]
        for variant in variants:
            alike = variant.rpartition("-")[0] if by_format else variant
            unnamed = [one for one in ours if not one.stack and alike == (one.variant.rpartition("-")[0] if by_format else one.variant)]
            found = [one for one in ours if one.stack and (one.variant, one.stack) == (variant, stack)] or unnamed
            if found:
                return timings(found)
        return None

    def newest(self, prefix: str) -> str:
        """Return the newest stack that begins so, of any kernels that stand for the device's; "" where there is none."""
        stacks = {kernel.fit.stack for kernel in self.device.kernels}
        return max((stack for stack in stacks if stack.startswith(prefix)), key=_version, default="")

    def find(self, family: str, variants: tuple[str, ...], stack: str) -> KernelFit | None:
        """Return the calibration of the first of `variants` that there is one of: under `stack`, or under the newest other one."""
        for same_stack in (True, False):
            for variant in variants:
                found = [kernel for kernel in self.device.kernels if (kernel.fit.family, kernel.fit.variant) == (family, variant)]
                found = [kernel for kernel in found if (kernel.fit.stack == stack) is same_stack]
                if found:
                    return max(found, key=lambda kernel: _version(kernel.fit.stack))
        return None

    def units_count(self, found: KernelFit | None) -> int:
        """Return the units that a kernel's own decisions are made for: those of the device it was timed on, if that is this one."""
        return found.units_count if found is not None and found.hardware == self.device.name else self.device.units_count

    def model(
        self, family: KernelFamily, found: KernelFit | None, *, wanted: str = "", exact: bool = True, timed: Timed | None = None
    ) -> KernelModel:
        """Return `family` with the parameters of `found`, or with its start values where there is no calibration.

        A residual belongs to the device and kernel that it was fitted on. `exact` is False where the calibration stands for
        another kernel than its own; with `wanted`, also where it is not of that variant.
        """
        start = {definition.name: definition.start for definition in family.parameters}
        if found is None:
            error_ratio = UNCALIBRATED_ERROR_RATIO
            return KernelModel(
                family=family, parameters=start, residual=None, source="datasheet", error_ratio=error_ratio, stack="", timed=timed
            )
        own = exact and found.hardware == self.device.name and wanted in ("", found.fit.variant)
        known = {name: value for name, value in found.fit.parameters.items() if name in start}
        return KernelModel(
            family=family,
            parameters={**start, **known},
            residual=found.fit.residual if own else None,
            source="calibrated" if own else "datasheet",
            error_ratio=found.fit.error.mean_ratio if own else max(found.fit.error.mean_ratio, TRANSFER_ERROR_RATIO),
            stack=found.fit.stack,
            timed=timed,
            calibration=found.fit.label,
        )


def merged(costs: list[Cost]) -> Cost:
    """Return the costs of consecutive row ranges as one; the least trusted source and the largest error stand for all.

    Terms that were fitted to join with another exponent than the first are scaled so that they join to the same time.
    """
    exponent = costs[0].overlap_exponent
    parts = [cost.terms if cost.overlap_exponent == exponent else cost.terms.scaled_to(cost.time_s, exponent) for cost in costs]
    return Cost(
        terms=join(parts),
        overlap_exponent=exponent,
        source=max((cost.source for cost in costs), key=SOURCES.index),
        error_ratio=max(cost.error_ratio for cost in costs),
        stack="+".join(dict.fromkeys(cost.stack for cost in costs if cost.stack)),
        measured=np.concatenate([cost.measured for cost in costs]),
        calibration=costs[0].calibration if len({cost.calibration for cost in costs}) == 1 else "",
    )


def in_order(costs: list[Cost], places: Sequence[npt.NDArray[np.int64]]) -> Cost:
    """Return the costs of disjoint rows, each at its `places` [rows of that cost], as one."""
    return merged(costs).take(np.argsort(np.concatenate(places), kind="stable"))


def weakest_needed(seconds: Mapping[Source, float]) -> Source:
    """Return the weakest source that is needed to cost TRUSTED_TIME_RATIO of a time; `seconds` says what each source costs of it."""
    ordered = [seconds.get(source, 0.0) for source in SOURCES]
    needed_s = TRUSTED_TIME_RATIO * sum(ordered)
    return next(source for source, covered_s in zip(SOURCES, accumulate(ordered), strict=True) if covered_s >= needed_s)


def _version(stack: str) -> tuple[tuple[int, str], ...]:
    """Return a key that sorts ``vllm_0.9.0`` before ``vllm_0.24.0``."""
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", stack))
