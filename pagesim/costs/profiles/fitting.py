"""Fitting of terms to samples, with the error of each term on held-out samples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from pagesim.costs.held_out import TermError, held_out
from pagesim.costs.profiles.profile import Range, Reached
from pagesim.costs.profiles.samples import CURVES, Sample
from pagesim.costs.table import Table

MOST_KNOTS = 16
"""Maximum knots per axis of attention tables: more than enough for any real machine."""

NEAR = 0.001
"""Relative error of interpolation up to which a knot is dropped."""


class FittedTerms(NamedTuple):
    """Terms fitted to samples.

    Attributes:
        terms: fields of `Terms`.
        errors: error of each operator on the held-out samples.
        ranges: measured range of each operator.
        held_out: indices of the held-out samples.
    """

    terms: dict[str, Any]
    errors: dict[str, TermError]
    ranges: dict[str, Range]
    held_out: tuple[int, ...]


def fit_terms(samples: Sequence[Sample]) -> FittedTerms:
    """Fit a table to each operator's samples, except those that are held out.

    Args:
        samples: samples in any order; those of attention within a span must have one block size.

    Raises:
        PagesimError: a sample is invalid.
    """
    of: dict[tuple[str, int], list[int]] = defaultdict(list)
    for index, sample in enumerate(samples):
        sample.check()
        of[sample.term, sample.block_size].append(index)
    terms: dict[str, Any] = {}
    within: dict[str, dict[str, Any]] = defaultdict(dict)
    wrong: dict[str, list[float]] = defaultdict(list)
    unseen: set[int] = set()
    for (term, block_size), indices in of.items():
        chosen = {indices[place] for place in held_out([samples[index].point for index in indices], term)}
        unseen |= chosen
        table = table_of([samples[index] for index in indices if index not in chosen])
        base, _, span = term.partition(" ")
        if span:
            within[span][base] = table
        elif term in CURVES:
            terms[term] = table
        else:
            terms.setdefault(term, {})[block_size] = table
        wrong[term] += [relative_error(table, samples[index]) for index in sorted(chosen)]
    if within:
        terms["reached"] = {span: Reached(**each) for span, each in within.items()}
    return FittedTerms(
        terms,
        {term: TermError.of(each) for term, each in wrong.items()},
        {term: range_of([sample for sample in samples if sample.term == term]) for term in wrong},
        tuple(sorted(unseen)),
    )


def table_of(samples: Sequence[Sample]) -> Table:
    """Return the table of samples of one term at one block size; seconds never fall with a size."""
    axes, points = samples[0].axes, [(sample.point, sample.seconds) for sample in samples]
    if len(axes) == 1:
        return Table.of_points(axes, points, rising=axes).simplified(NEAR)
    return Table.of_points(axes, points, rising=axes, most=MOST_KNOTS)


def predict(term: Table, sample: Sample) -> float:
    """Return the seconds that a term predicts for a sample."""
    return term(*sample.point)


def relative_error(term: Table, sample: Sample) -> float:
    """Return a term's absolute error on a sample, relative to the measured seconds."""
    return abs(predict(term, sample) / sample.seconds - 1)


def range_of(samples: Sequence[Sample]) -> Range:
    """Return the measured range of a term, given all of its samples and no others."""
    sizes = [sample.size for sample in samples]
    decodes = samples[0].term.startswith("decode")
    contexts = [sample.context // sample.size if decodes else sample.context for sample in samples]
    return Range(least=min(sizes), most=max(sizes), most_context=max(contexts))
