"""The network residual: its gradient, what it learns and what it leaves alone, its document, and how it fades outside the fit."""

from types import SimpleNamespace

import numpy as np
import pytest

from replay import documents
from replay.calibration import network
from replay.calibration.fit import MOST_BUMP_FEATURES, fit_residual
from replay.calibration.network import fit_network, objective
from replay.specs.calibration import CalibrationDocument, ErrorFigures, FamilyCalibration, NetworkResidualSpec, ResidualSpec
from replay.tiling.residual import residual_factor

NAMES = ("a", "b", "c", "d")
FITTED = 300


@pytest.fixture(scope="module")
def learnt():
    """Return (residual, features, logs) of errors that turn over two of four features, among noise of 1 %."""
    draw = np.random.default_rng(3)
    features = draw.uniform(-2, 2, (2 * FITTED, len(NAMES)))
    logs = 0.3 * np.tanh(4 * (features[:, 0] - 0.5)) - 0.2 * np.tanh(4 * features[:, 1]) + draw.normal(0, 0.01, 2 * FITTED)
    return fit_network(NAMES, features[:FITTED], logs[:FITTED], np.arange(FITTED) // 6, seed=0).residual, features, logs


def test_the_gradient_is_the_slope_of_the_objective():
    draw, sizes = np.random.default_rng(1), (3, 5, 4, 1)
    points, logs, vector = draw.normal(size=(40, 3)), draw.normal(size=40), draw.normal(size=3 * 5 + 5 + 5 * 4 + 4 + 4 + 1)
    _, slopes = objective(vector, sizes, points, logs, 2.0)
    for index in range(len(vector)):
        step = np.zeros(len(vector))
        step[index] = 1e-6
        rise = objective(vector + step, sizes, points, logs, 2.0)[0] - objective(vector - step, sizes, points, logs, 2.0)[0]
        assert slopes[index] == pytest.approx(rise / 2e-6, abs=1e-7)


def test_what_turns_is_learnt_for_rows_that_were_not_seen(learnt):
    residual, features, logs = learnt
    left = np.abs(logs[FITTED:] - np.log(residual_factor(residual, features[FITTED:])))
    assert np.abs(logs[FITTED:]).mean() > 0.25
    assert left.mean() < 0.02


def test_noise_is_not_learnt():
    draw = np.random.default_rng(2)
    features, groups = draw.normal(size=(200, len(NAMES))), np.arange(200) // 5
    assert fit_network(NAMES, features, draw.normal(0, 0.1, 200), groups, seed=0) is None
    assert fit_network(NAMES, features, 0.001 * features[:, 0], groups, seed=0) is None


def test_too_few_groups_to_leave_some_out_have_no_residual():
    features = np.random.default_rng(2).normal(size=(60, len(NAMES)))
    assert fit_network(NAMES, features, features[:, 0], np.zeros(60, dtype=np.int64), seed=0) is None


def test_one_seed_gives_one_network(monkeypatch):
    monkeypatch.setattr(network, "STEPS", 50)
    features = np.random.default_rng(4).normal(size=(60, len(NAMES)))
    first, second = (fit_network(NAMES, features, features[:, 0], np.arange(60) // 2, seed=0) for _ in range(2))
    assert first is not None
    assert first == second


def test_outside_the_fit_the_correction_fades_and_the_physics_is_left(learnt):
    residual, features, _ = learnt
    edge = np.array([features[:FITTED].max(axis=0)])
    there = abs(float(np.log(residual_factor(residual, edge)[0])))
    beyond = [abs(float(np.log(residual_factor(residual, edge + shift)[0]))) for shift in (0.1, 1.0, 10.0)]
    assert there > beyond[0] > beyond[1]
    assert beyond[2] < 1e-9


def test_a_network_survives_its_document_and_is_valid(learnt):
    residual, features, _ = learnt
    error = ErrorFigures(n_fitted=1, n=1, mean_ratio=0.1, median_ratio=0.1, p90_ratio=0.1, bias_ratio=0.0)
    entry = FamilyCalibration(family="gemm", stack="s_1", variant="bf16", parameters={"floor_s": 1e-6}, residual=residual, error=error)
    document = CalibrationDocument(hardware="h100-sxm", families=(entry,), split="rule")
    documents.check(document.to_document(), "calibration.v1", "h100-sxm.json")
    assert CalibrationDocument.from_document(document.to_document()) == document
    assert len(str(document.to_document())) < 10_000
    assert residual_factor(residual, features[:0]).shape == (0,)


@pytest.mark.parametrize(("count", "kind"), [(2, ResidualSpec), (MOST_BUMP_FEATURES + 1, NetworkResidualSpec)])
def test_many_features_get_a_network_and_few_get_bumps(count, kind, monkeypatch):
    monkeypatch.setattr(network, "STEPS", 50)
    features = np.random.default_rng(5).uniform(-2, 2, (60, count))
    family = SimpleNamespace(residual_features=tuple(f"x{index}" for index in range(count)))
    assert isinstance(fit_residual(family, features, 0.3 * np.tanh(features[:, 0]), np.arange(60) // 2, seed=0), kind)
