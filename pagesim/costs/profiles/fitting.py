"""From samples to terms, and how wrong each is on samples that it has not seen."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean, median
from typing import Any, NamedTuple

from pagesim.costs.profiles.attention_terms import SLOTS, fit_decode, fit_prefill
from pagesim.costs.profiles.curves import Curve, fit_curve
from pagesim.costs.profiles.profile import Decode, Prefill, Range, Reached, TermError
from pagesim.costs.profiles.samples import ATTENTION, CURVES, Sample, is_decode

EVERY = 4
"""One sample in so many is held out of the fit."""

Term = Curve | Decode | Prefill


class FittedTerms(NamedTuple):
    """What was fitted to samples.

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


def fit_terms(samples: Sequence[Sample], kv_heads: int, slots: Sequence[int] = SLOTS) -> FittedTerms:
    """Fit every operator that was measured.

    Args:
        samples: in any order; those of attention within a span at one block size.
        kv_heads: on the device.
        slots: numbers of programs that may run at once there, 0 for a device that has no such thing.

    Raises:
        PagesimError: a sample is off, or scipy is not installed.
    """
    of: dict[tuple[str, int], list[int]] = defaultdict(list)
    for index, sample in enumerate(samples):
        sample.check()
        of[sample.term, sample.block_size].append(index)
    terms: dict[str, Any] = {}
    within: dict[str, dict[str, Any]] = defaultdict(dict)
    wrong: dict[str, list[float]] = defaultdict(list)
    held_out: set[int] = set()
    for (term, block_size), indices in of.items():
        indices.sort(key=lambda index: samples[index][2:])
        # Neither end is held out: beyond the ends a term is extrapolated, and that is another question.
        unseen = unseen_of(indices)
        held_out.update(unseen)
        fitted = _fit(term, [samples[index] for index in indices if index not in held_out], kv_heads, slots)
        base, _, span = term.partition(" ")
        if span:
            within[span][base] = fitted
        elif term in CURVES:
            terms[term] = fitted
        else:
            terms.setdefault(term, {})[block_size] = fitted
        wrong[term] += [relative_error(fitted, samples[index]) for index in unseen]
    if within:
        terms["reached"] = {span: Reached(**each) for span, each in within.items()}
    return FittedTerms(
        terms,
        {term: error_of(each) for term, each in wrong.items()},
        {term: range_of([sample for sample in samples if sample.term == term]) for term in wrong},
        tuple(sorted(held_out)),
    )


def unseen_of(indices: list[int]) -> list[int]:
    """Return which samples of a term are held out of its fit.

    Args:
        indices: of all its samples, in order of size; neither end is held out.
    """
    return [] if len(indices) <= EVERY else indices[EVERY // 2 : -1 : EVERY]


def predict(term: Term, sample: Sample) -> float:
    """Return the seconds that a term gives for a sample."""
    return term(sample.size) if isinstance(term, Curve) else term(sample.size, sample.context)


def relative_error(term: Term, sample: Sample) -> float:
    """Return by what share of a sample's measured seconds a term is wrong, in absolute value."""
    return abs(predict(term, sample) / sample.seconds - 1)


def _fit(term: str, samples: Sequence[Sample], kv_heads: int, slots: Sequence[int]) -> Term:
    sizes = [sample.size for sample in samples]
    contexts = [sample.context for sample in samples]
    seconds = [sample.seconds for sample in samples]
    if term.partition(" ")[0] not in ATTENTION:
        return fit_curve(sizes, seconds)
    if is_decode(term):
        return fit_decode(sizes, contexts, seconds, kv_heads, slots)
    return fit_prefill(sizes, contexts, seconds)


def error_of(errors: Sequence[float]) -> TermError:
    """Return mean, median and worst of relative errors, in absolute value."""
    if not errors:
        return TermError(mean=0.0, worst=0.0, points=0)
    return TermError(mean=fmean(errors), median=median(errors), worst=max(errors), points=len(errors))


def range_of(samples: Sequence[Sample]) -> Range:
    """Return what was measured of a term: by these samples, of it alone."""
    sizes = [sample.size for sample in samples]
    contexts = [
        sample.context // sample.size if is_decode(sample.term) else sample.context for sample in samples
    ]
    return Range(least=min(sizes), most=max(sizes), most_context=max(contexts))
