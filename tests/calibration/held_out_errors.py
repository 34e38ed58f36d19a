"""Errors of a fit on the shape groups that it did not see."""

import os
from collections import defaultdict

import numpy as np
import pyarrow.csv

from replay.calibration.fit import fit_family, predict
from replay.calibration.split import fitted_mask
from replay.catalog.hardware import read_hardware


def held_out_errors(kind, path, label):
    """Return the absolute relative errors on unseen rows of a measurement file by `label(set)`, all sets of a label together."""
    found = defaultdict(list)
    for part in kind.read(pyarrow.csv.read_csv(path), os.path.basename(path)):
        device, fitted = read_hardware(part.hardware), fitted_mask(part.group_key)
        groups = np.unique(np.stack(part.group_key, axis=1), axis=0, return_inverse=True)[1].reshape(-1)
        fit = fit_family(part.family, part.shapes, part.seconds, groups, fitted, device, seed=1)
        predicted = predict(part.family, part.shapes, device, fit.parameters, fit.residual)
        found[label(part)].append(np.abs(predicted / part.seconds - 1.0)[~fitted])
    return {name: np.concatenate(errors) for name, errors in found.items()}
