"""Tables of whole layers, passes and servers made by tests, and errors of their predictions."""

import io

import numpy as np
import pyarrow.csv

from replay.calibration.fidelity import compare
from replay.catalog.calibration import shipped_calibration


def table(head, *rows):
    return pyarrow.csv.read_csv(io.BytesIO("\n".join([head, *rows]).encode()))


def errors(kind, path, wanted=lambda whole: True):
    """Return the signed relative errors of the forecasts of a file's wanted wholes by (hardware, stack, variant)."""
    found = {}
    for whole in filter(wanted, kind.read(pyarrow.csv.read_csv(path), path.name)):
        one = compare(kind.name, whole, shipped_calibration)
        rows = one.held_out
        found[whole.hardware, whole.stack, whole.variant] = np.array(one.predicted_s[rows] / whole.seconds[rows] - 1.0)
    return found
