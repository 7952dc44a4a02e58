"""The regression: weights, outliers, standard errors."""

from __future__ import annotations

import numpy as np
import pytest

from pagesim.experiments.fit.regression import regress


def drawn(seed: int, rows: int = 400, noise: float = 0.03, alike: float = 0.0):
    """Return features, seconds with noise, their scale, and groups whose rows have a share of it together."""
    draw = np.random.default_rng(seed)
    features = np.column_stack([np.ones(rows), draw.uniform(1, 50, rows), draw.uniform(1e3, 1e5, rows)])
    scale = features @ [7e-3, 5e-5, 2e-8]
    groups = np.arange(rows) // 20
    errors = noise * draw.standard_normal(rows) + alike * draw.standard_normal(rows // 20)[groups]
    return features, scale * (1 + errors), scale, groups


@pytest.mark.parametrize("alike", [0.0, 0.03])
def test_standard_errors_are_those_of_many_draws(alike: float) -> None:
    off = []
    for seed in range(40):
        features, seconds, scale, groups = drawn(seed, alike=alike)
        found = regress(features, seconds, np.zeros(400), scale, np.ones(400), groups)
        off.append((found.values - [7e-3, 5e-5, 2e-8]) / found.errors)
    spread = np.sqrt(np.mean(np.square(off), axis=0))
    assert (spread > 0.6).all()
    assert (spread < 1.4).all()


def test_outliers_are_left_out_and_rows_without_weight_count_for_nothing() -> None:
    features, seconds, scale, groups = drawn(1)
    seconds[:5] *= 10
    seconds[5:10] *= 0.1
    weights = np.ones(400)
    weights[5:10] = 0
    found = regress(features, seconds, np.zeros(400), scale, weights, groups)
    assert not found.kept[:10].any()
    assert found.kept[10:].mean() > 0.99
    assert abs(found.values[0] / 7e-3 - 1) < 0.05


def test_nothing_is_known_of_a_column_of_zeros() -> None:
    features, seconds, scale, groups = drawn(2)
    wider = np.column_stack([features, np.zeros(400)])
    found = regress(wider, seconds, np.zeros(400), scale, np.ones(400), groups)
    assert found.values[3] == 0
    assert np.isinf(found.errors[3])
    assert np.isfinite(found.errors[:3]).all()


def test_what_is_known_beforehand_is_not_fitted_again() -> None:
    features, seconds, scale, groups = drawn(3, noise=0.0)
    known = features[:, 2] * 2e-8
    found = regress(features[:, :2], seconds, known, scale, np.ones(400), groups)
    assert found.values == pytest.approx([7e-3, 5e-5])
