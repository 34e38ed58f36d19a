"""Calibration documents: part of one is replaced by a later fit, and the rest survives."""

from dataclasses import replace

import pytest

from replay.errors import SpecError
from replay.specs.calibration import CalibrationDocument, ErrorFigures, FamilyCalibration

ERROR = ErrorFigures(n_fitted=1, n=1, mean_ratio=0.1, median_ratio=0.1, p90_ratio=0.1, bias_ratio=0.0)


def document(*entries, hardware="h100-sxm", split="rule"):
    """Return a document of (family, stack, variant, floor) entries."""
    families = tuple(
        FamilyCalibration(family=name, stack=stack, variant=variant, parameters={"floor_s": floor}, residual=None, error=ERROR)
        for name, stack, variant, floor in entries
    )
    return CalibrationDocument(hardware=hardware, families=families, split=split)


def test_a_later_fit_replaces_its_families_in_place_and_appends_new_ones():
    before = document(("gemm", "a_1", "bf16", 1.0), ("norm", "a_1", "", 2.0), ("gemm", "b_1", "bf16", 3.0))
    later = document(("gemm", "c_1", "bf16", 4.0), ("gemm", "b_1", "bf16", 5.0))
    expected = document(("gemm", "a_1", "bf16", 1.0), ("norm", "a_1", "", 2.0), ("gemm", "b_1", "bf16", 5.0), ("gemm", "c_1", "bf16", 4.0))
    assert before.updated(later) == expected
    assert expected.updated(later) == expected


@pytest.mark.parametrize("change", [{"hardware": "b200-sxm"}, {"split": "another rule"}])
def test_fits_that_do_not_belong_together_are_refused(change):
    before = document(("gemm", "a_1", "bf16", 1.0))
    with pytest.raises(SpecError, match="fit all families again"):
        before.updated(replace(before, **change))
