"""From samples to terms, and how wrong each is on samples that it has not seen."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from pagesim.costs.held_out import TermError, held_out
from pagesim.costs.profiles.profile import Range, Reached
from pagesim.costs.profiles.samples import CURVES, Sample
from pagesim.costs.table import Table

MOST_KNOTS = 16
"""Of each size of attention: more than enough for anything that a machine does."""

NEAR = 0.001
"""A knot is left out where the line between others comes as near to it, relatively."""


class FittedTerms(NamedTuple):
    """What was made of samples.

    Attributes:
        terms: fields of `Terms`.
        errors: of each operator, on the samples that were held out.
        ranges: what was measured of each operator.
        held_out: indices of those samples.
    """

    terms: dict[str, Any]
    errors: dict[str, TermError]
    ranges: dict[str, Range]
    held_out: tuple[int, ...]


def fit_terms(samples: Sequence[Sample]) -> FittedTerms:
    """Make a table of every operator that was measured, of the samples that are not held out.

    Args:
        samples: in any order; those of attention within a span at one block size.

    Raises:
        PagesimError: a sample is off.
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
    """Return the table of samples of one term, at one block size; a larger size never takes less."""
    axes, points = samples[0].axes, [(sample.point, sample.seconds) for sample in samples]
    if len(axes) == 1:
        return Table.of_points(axes, points, rising=axes).simplified(NEAR)
    return Table.of_points(axes, points, rising=axes, most=MOST_KNOTS)


def predict(term: Table, sample: Sample) -> float:
    """Return the seconds that a term gives for a sample."""
    return term(*sample.point)


def relative_error(term: Table, sample: Sample) -> float:
    """Return by what share of a sample's measured seconds a term is wrong, in absolute value."""
    return abs(predict(term, sample) / sample.seconds - 1)


def range_of(samples: Sequence[Sample]) -> Range:
    """Return what was measured of a term: by these samples, of it alone."""
    sizes = [sample.size for sample in samples]
    decodes = samples[0].term.startswith("decode")
    contexts = [sample.context // sample.size if decodes else sample.context for sample in samples]
    return Range(least=min(sizes), most=max(sizes), most_context=max(contexts))
