"""Terms of a profile: what is true of a machine is found again from its measurements."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagesim.costs.profiles import Sample, fit_terms, table_of
from pagesim.costs.table import Table
from pagesim.errors import PagesimError

BATCHES, MEANS = (1, 2, 4, 8, 16, 32, 64, 128), (64, 200, 500, 1000, 2000, 4000)


def linear(sizes: list[int], seconds: list[float]) -> list[Sample]:
    return [Sample("linear", 0, size, 0, each) for size, each in zip(sizes, seconds, strict=True)]


def test_a_term_goes_through_what_was_measured() -> None:
    true = Table(axes={"tokens": (1, 64, 512)}, seconds=(0.01, 0.011, 0.05))
    sizes = [1, 2, 8, 20, 64, 100, 256, 300, 512]
    term = table_of(linear(sizes, [true(size) for size in sizes]))
    assert [term(size) for size in sizes] == pytest.approx([true(size) for size in sizes], rel=1e-5)
    assert term.axes == true.axes, "the others are on lines between these"


@given(st.lists(st.tuples(st.integers(1, 5000), st.floats(1e-6, 10)), min_size=1, max_size=60))
def test_a_term_never_falls_whatever_was_measured(measured) -> None:
    sizes, seconds = zip(*measured, strict=True)
    term = table_of(linear(sizes, seconds))
    times = [term(size) for size in range(1, 6000, 7)]
    assert all(before <= after * (1 + 1e-9) for before, after in pairwise(times))
    assert min(times) >= 0


def decode_s(batch: int, mean: int) -> float:
    """Programs run in rounds of 132, eight a sequence, so that seconds are no line over either size."""
    return 2e-5 + 1e-7 * batch + 4e-9 * batch * mean + 6e-8 * mean * -(-batch * 8 // 132)


def test_decode_attention_in_rounds_is_found_again() -> None:
    samples = [
        Sample("decode", 16, batch, batch * mean, decode_s(batch, mean))
        for batch in BATCHES
        for mean in MEANS
    ]
    fit = fit_terms(samples)
    assert len(fit.held_out) == fit.errors["decode"].points == 9, "a fifth of 44: corners are never held out"
    assert fit.errors["decode"].mean < 0.05
    term = fit.terms["decode"][16]
    seen = [sample for index, sample in enumerate(samples) if index not in fit.held_out]
    assert [term(*sample.point) for sample in seen] == pytest.approx(
        [sample.seconds for sample in seen], rel=1e-4
    )


@given(st.integers(1, 300), st.integers(1, 5000), st.integers(0, 300))
def test_a_line_of_decode_attention_holds_until_it_says(batch, mean, more) -> None:
    table = Table.of({"sequences": BATCHES, "context": MEANS}, decode_s)
    lines = table.lines(batch)
    line = next(each for each in lines if each.until is None or mean <= each.until)
    last = mean + 300 if line.until is None else line.until
    at = min(mean + more, last)
    assert table(batch, at) == pytest.approx(line.seconds + line.unit_s * at)


def test_prompts_of_any_kind_are_one_table() -> None:
    """Chunks behind a history and several prompts differ in tokens and in the keys of each alone."""

    def seconds(tokens: int, keys: float) -> float:
        return 1e-5 + 2e-8 * tokens + 1e-10 * tokens * keys + 3e-9 * keys

    chunks = [
        (tokens, before + (tokens + 1) / 2) for tokens in (16, 100, 512, 2048) for before in (0, 300, 4000)
    ]
    several = [(count * each, (each + 1) / 2) for count in (2, 8) for each in (16, 64, 256)]
    samples = [
        Sample("prefill", 16, tokens, round(tokens * keys), seconds(tokens, keys))
        for tokens, keys in (*chunks, *several)
    ]
    term = fit_terms(samples).terms["prefill"][16]
    for tokens, keys in ((300, 150.5), (300, 1150.5), (1024, 32.5), (64, 2032.5)):
        assert term(tokens, keys) == pytest.approx(seconds(tokens, keys), rel=0.05)


def test_held_out_errors_come_from_samples_that_no_term_has_seen() -> None:
    rng = np.random.default_rng(0)
    sizes = np.unique(rng.integers(1, 4096, 60)).tolist()
    samples = [Sample("linear", 0, size, 0, (1e-2 + 1e-5 * size) * rng.uniform(0.9, 1.1)) for size in sizes]
    fit = fit_terms(samples)
    unseen = [samples[index] for index in fit.held_out]
    assert len(unseen) == fit.errors["linear"].points >= (len(samples) - 2) // 5
    term = fit.terms["linear"]
    assert term == table_of([sample for sample in samples if sample not in unseen])
    errors = [abs(term(sample.size) / sample.seconds - 1) for sample in unseen]
    assert fit.errors["linear"].mean == pytest.approx(np.mean(errors))
    assert fit.errors["linear"].worst == pytest.approx(max(errors))
    assert 0.01 < fit.errors["linear"].mean < 0.2
    ends = fit.ranges["linear"]
    assert (ends.least, ends.most) == (sizes[0], sizes[-1])
    assert {sample.size for sample in unseen}.isdisjoint({sizes[0], sizes[-1]}), "neither end is held out"


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
        fit_terms([sample])
