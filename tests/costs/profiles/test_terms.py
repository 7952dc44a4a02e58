"""Curves and attention: what is true of a machine is found again from its measurements."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagesim.costs.profiles import Curve, DecodeAttention, PrefillAttention, Sample, fit_terms
from pagesim.costs.profiles.attention_terms import fit_decode, fit_prefill
from pagesim.costs.profiles.curves import fit_curve, fit_rest
from pagesim.errors import PagesimError

TRUE = DecodeAttention(launch_s=2e-5, sequence_s=1e-7, context_s=4e-9, round_s=6e-8, slots=132, kv_heads=8)
BATCHES, MEANS = (1, 2, 4, 8, 16, 32, 64, 128), (64, 200, 500, 1000, 2000, 4000)


@pytest.mark.parametrize(
    ("at", "seconds", "why"),
    [
        ((1, 1), (1.0, 2.0), "sizes must rise"),
        ((1, 2), (2.0, 1.0), "times must not fall"),
        ((1, 2), (1.0,), "2 sizes and 1 times"),
        ((1,), (float("nan"),), "is nan"),
        ((1,), (-1.0,), "is -1.0"),
    ],
)
def test_a_curve_that_means_nothing_is_refused(at, seconds, why) -> None:
    with pytest.raises(ValueError, match=why):
        Curve(at=at, seconds=seconds)


def test_a_fitted_curve_goes_through_what_lies_on_one() -> None:
    true = Curve(at=(1, 64, 512), seconds=(0.01, 0.011, 0.05))
    sizes = [1, 2, 8, 20, 64, 100, 256, 300, 512]
    fitted = fit_curve(sizes, [true(size) for size in sizes])
    assert [fitted(size) for size in sizes] == pytest.approx([true(size) for size in sizes], rel=1e-9)


@given(st.lists(st.tuples(st.integers(1, 5000), st.floats(1e-6, 10)), min_size=1, max_size=60))
def test_a_fitted_curve_never_falls_whatever_was_measured(measured) -> None:
    sizes, seconds = zip(*measured, strict=True)
    curve = fit_curve(sizes, seconds)
    times = [curve(size) for size in range(1, 6000, 7)]
    assert times == sorted(times)
    assert min(times) >= 0


def test_few_knots_are_kept_of_many_sizes() -> None:
    curve = fit_curve(range(1, 2000), [1e-3 + 1e-5 * size for size in range(1, 2000)])
    assert len(curve.at) <= 32
    assert (curve.at[0], curve.at[-1]) == (1, 1999)


def test_decode_attention_is_found_again_with_its_rounds() -> None:
    batch, mean = (each.ravel() for each in np.meshgrid(BATCHES, MEANS))
    context = batch * mean
    fitted = fit_decode(
        batch, context, [TRUE(int(b), int(c)) for b, c in zip(batch, context, strict=True)], 8
    )
    assert fitted.slots == 132
    assert fitted.context_s == pytest.approx(TRUE.context_s, rel=1e-6)
    assert fitted.round_s == pytest.approx(TRUE.round_s, rel=1e-6)


def test_rounds_are_not_seen_where_there_are_none() -> None:
    batch, mean = (each.ravel() for each in np.meshgrid(BATCHES, MEANS))
    seconds = [1e-5 + 1e-6 * b + 1e-8 * b * m for b, m in zip(batch, mean, strict=True)]
    fitted = fit_decode(batch, batch * mean, seconds, 8)
    assert (fitted.slots, fitted.round_s) == (0, 0)
    assert fitted.sequence_s == pytest.approx(1e-6)


@given(st.integers(1, 300), st.integers(1, 5000))
def test_a_line_of_decode_attention_holds_until_it_says(batch, mean) -> None:
    fixed, a_token, until = TRUE.line(batch, batch * mean)
    last = mean + 300 if until is None else until
    for at in {mean, (mean + last) // 2, last}:
        assert TRUE(batch, batch * at) == pytest.approx(fixed + a_token * batch * at)
    if until is not None:
        assert TRUE.line(batch, batch * (until + 1))[1] != a_token


def test_prefill_attention_is_found_again() -> None:
    true = PrefillAttention(launch_s=1e-5, token_s=2e-8, pair_s=1e-10, key_s=3e-9)
    tokens, past = (each.ravel() for each in np.meshgrid([16, 100, 512, 2048], [0, 300, 4000]))
    pairs = tokens * past + tokens * (tokens + 1) // 2
    seconds = [true(int(t), int(p)) for t, p in zip(tokens, pairs, strict=True)]
    fitted = fit_prefill(tokens, pairs, seconds)
    assert fitted.pair_s == pytest.approx(true.pair_s)
    assert fitted.key_s == pytest.approx(true.key_s)


def test_held_out_errors_come_from_samples_that_no_term_has_seen() -> None:
    rng = np.random.default_rng(0)
    sizes = np.unique(rng.integers(1, 4096, 60)).tolist()
    samples = [Sample("linear", 0, size, 0, (1e-2 + 1e-5 * size) * rng.uniform(0.9, 1.1)) for size in sizes]
    fit = fit_terms(samples, kv_heads=8)
    unseen = [samples[index] for index in fit.held_out]
    assert len(unseen) == fit.errors["linear"].points >= len(samples) // 5
    without = fit_terms([sample for sample in samples if sample not in unseen], 8)
    curve = fit.terms["linear"]
    errors = [abs(curve(sample.size) / sample.seconds - 1) for sample in unseen]
    assert fit.errors["linear"].mean == pytest.approx(np.mean(errors))
    assert fit.errors["linear"].worst == pytest.approx(max(errors))
    assert 0.01 < fit.errors["linear"].mean < 0.2
    assert without.ranges["linear"] == fit.ranges["linear"], "neither end is held out"


@pytest.mark.parametrize(
    "sample",
    [
        Sample("lunar", 0, 1, 0, 1.0),
        Sample("linear", 0, 0, 0, 1.0),
        Sample("linear", 16, 1, 0, 1.0),
        Sample("copy", 0, 1, 0, 1.0),
        Sample("linear", 0, 1, 0, 0.0),
        Sample("linear", 0, 1, 0, float("nan")),
    ],
)
def test_a_sample_that_cannot_have_been_measured_is_refused(sample) -> None:
    with pytest.raises(PagesimError, match=r"must|needed"):
        fit_terms([sample], 8)


def test_a_rest_is_fitted_so_that_wholes_come_out_right() -> None:
    """A whole of which the parts are said to be more than all counts by how large it is."""
    sizes, parts = [1, 10, 100], [0.9, 1.1, 8.0]
    curve = fit_rest(sizes, parts, [1.0, 1.05, 10.0])
    assert curve.at == (1, 10, 100)
    assert curve(1) == curve(10) == pytest.approx(0.02866, rel=1e-3), "between 0.1 and -0.05, of equal weight"
    assert curve(100) == pytest.approx(2.0)
    exact = fit_rest(
        sizes, parts, [part + 0.1 + 0.01 * size for part, size in zip(parts, sizes, strict=True)]
    )
    assert exact.seconds == pytest.approx((0.11, 0.2, 1.1))
