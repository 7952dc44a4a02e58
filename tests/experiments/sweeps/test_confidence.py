"""Student's t and the margin of a mean."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pagesim.experiments.sweeps.sweep_tables import mean_and_margin


@pytest.mark.parametrize(
    ("degrees", "t"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (30, 2.042), (120, 1.980)]
)
def test_a_margin_takes_t_from_the_printed_tables(degrees, t):
    values = np.arange(degrees + 1.0)
    _, margin = mean_and_margin(values)
    assert margin == pytest.approx(t * values.std(ddof=1) / math.sqrt(len(values)), rel=5e-4)


def test_a_margin_covers_the_true_mean_nineteen_times_in_twenty():
    draws = np.random.default_rng(1).normal(5.0, 2.0, (4000, 4))
    both = [mean_and_margin(values) for values in draws]
    covered = np.mean([abs(mean - 5.0) <= margin for mean, margin in both])
    assert covered == pytest.approx(0.95, abs=0.01)


def test_what_is_missing_is_left_out():
    mean, margin = mean_and_margin(np.array([1.0, np.nan, 3.0]))
    assert mean == 2.0
    assert margin == pytest.approx(12.706 * 1.0, abs=1e-3)
    assert mean_and_margin(np.array([4.0, np.nan]))[0] == 4.0
    assert math.isnan(mean_and_margin(np.array([4.0, np.nan]))[1])
    assert math.isnan(mean_and_margin(np.array([np.nan]))[0])
