"""Identifiability: finds what a server's logs cannot tell, and replaces it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pagesim.experiments.fit.costs import Costs
from pagesim.experiments.fit.equations import COLUMNS
from pagesim.experiments.fit.search import SearchResult, search
from pagesim.experiments.recorded.recording import RecordedRun

SURE = 2.0
"""Number of standard errors that a value, or its prior estimate, must exceed to be identified by the logs."""

APART = 1.5
"""Factor by which the batch sizes, or the contexts, of several loads must differ. Without such a difference,
only the start and the end of a run would tell two coefficients apart, which is not enough."""

CONTRADICTS = 0.02
"""Relative increase of the residuals' scatter above which several loads contradict a fixed value."""

DATASHEET, LEFT_OUT, OTHERS = "datasheet", "counted elsewhere", "other servers"
"""Sources of values that the logs do not give."""

CONTEXT, SEQUENCES = COLUMNS.index("context"), COLUMNS.index("sequences")

Settled = tuple[SearchResult, dict[str, str], tuple[str, ...]]
"""The fit, the sources of values that the logs do not give, and the reasons, one sentence each."""


def settle(
    loads: Sequence[RecordedRun], costs: Costs, form: Sequence[str], found: SearchResult, first: int | None
) -> Settled:
    """Replace the values that the logs cannot tell.

    Args:
        loads: loads used for the fit.
        costs: prior knowledge.
        form: columns of the fit.
        found: fit with every column free.
        first: see `search`.
    """

    def anew(fixed: dict[str, float]) -> SearchResult:
        return search(loads, costs, found.values, form, fixed, first)

    engine, fixed = costs.engine(), {}
    sources: dict[str, str] = {}
    notes: list[str] = []
    if "context" in form and (why := _context_unknown(loads, found, costs)):
        known = costs.context_s()
        fixed["context"] = known or 0.0
        with_known = anew(fixed)
        if known and len(loads) > 1 and not with_known.values[SEQUENCES]:
            # The logs give less than that for the two together.
            notes.append(
                f"{why}: the former is that of {engine.source}, {_us(engine.sequence_s)} µs, as the "
                f"datasheet's {1e9 * known:.3g} ns for the latter is more than both together"
            )
            return anew({"sequences": engine.sequence_s}), {"sequences": OTHERS}, tuple(notes)
        found = with_known
        sources["context"] = DATASHEET if known else LEFT_OUT
        notes.append(f"{why}: {_instead(costs, known)}")
    b, error = found.values[SEQUENCES], found.errors[SEQUENCES]
    if SURE * error <= max(b, engine.sequence_s):
        return found, sources, tuple(notes)
    why = (
        f"these loads do not tell a time an iteration from a time a sequence ({_us(b)} ± {_us(error)} µs), "
        "their batches are too much alike"
    )
    fixed["sequences"] = engine.sequence_s
    with_known = anew(fixed)
    if len(loads) > 1 and with_known.scatter > (1 + CONTRADICTS) * found.scatter:
        notes.append(f"{why}; they contradict {engine.source}, so their own value is kept")
        return found, sources, tuple(notes)
    notes.append(f"{why}: the latter is that of {engine.source}, {_us(engine.sequence_s)} µs")
    sources["sequences"] = OTHERS
    return with_known, sources, tuple(notes)


def _context_unknown(loads: Sequence[RecordedRun], found: SearchResult, costs: Costs) -> str | None:
    """Return why the logs cannot separate time per token of context from time per sequence, or None."""
    value, error = float(found.values[CONTEXT]), float(found.errors[CONTEXT])
    if len(loads) == 1:
        return (
            "one load alone does not tell a time a sequence from a time a token of context, as batch and "
            "context grow and shrink together; fit to logs of several concurrencies and lengths"
        )
    if SURE * error > max(value, costs.context_s() or 0.0) or are_alike(found):
        return (
            "these loads do not tell a time a sequence from a time a token of context "
            f"({1e9 * value:.3g} ± {1e9 * error:.3g} ns), their batches and contexts are too much alike"
        )
    return None


def are_alike(found: SearchResult) -> bool:
    """Return whether all loads have similar batch sizes and a similar context per sequence."""
    whole = np.array([run.windows.sums[-1] for run in found.runs])
    iterations, sequences, context = (whole[:, COLUMNS.index(name)] for name in COLUMNS[:3])
    return all(
        float(ratio.max() / ratio.min()) < APART for ratio in (sequences / iterations, context / sequences)
    )


def _instead(costs: Costs, known: float | None) -> str:
    """Return a sentence on what replaces a time per token of context that the logs do not give."""
    if known is None:
        return (
            "both are counted as a time a sequence, which is good for contexts of these lengths only; name "
            "the gpu, and its datasheet gives the latter"
        )
    return f"the latter is that of the {costs.system.gpu}'s datasheet, {1e9 * known:.3g} ns"


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:.3g}"
