"""Shipped calibrations: one document per accelerator, made by `replay calibrate`."""

from __future__ import annotations

from pathlib import Path

from replay import documents
from replay.specs.calibration import CalibrationDocument
from replay.specs.run_calibration import RunCalibration

_FOLDER = Path(__file__).resolve().parent / "calibrations"
_WHAT = "a calibration document (JSON)"


def shipped_calibration(hardware: str) -> CalibrationDocument | None:
    """Return the shipped calibration of an accelerator, or None where there is none."""
    path = _FOLDER / f"{hardware}.json"
    if not path.is_file():
        return None
    return CalibrationDocument.from_document(documents.read_json_object(path, _WHAT))  # a test holds shipped ones to the schema


def read_calibration(path: Path) -> CalibrationDocument:
    """Return the calibration in a file.

    Raises:
        SpecError: it cannot be read or violates the schema `calibration.v1`.
    """
    document = documents.read_json_object(path, _WHAT)
    documents.check(document, "calibration.v1", str(path))
    return CalibrationDocument.from_document(document)


def read_run_calibration(path: Path) -> RunCalibration:
    """Return the step model in a file that `replay calibrate --from-run` wrote.

    Raises:
        SpecError: it cannot be read or violates the schema `run-calibration.v1`.
    """
    document = documents.read_json_object(path, "a run calibration (JSON)")
    documents.check(document, "run-calibration.v1", str(path))
    return RunCalibration.from_document(document)
