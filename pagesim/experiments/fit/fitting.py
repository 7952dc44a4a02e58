"""Fitting: from several loads of a server to what its iterations take, and what the logs cannot tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pagesim.costs.profiles import Profile
from pagesim.errors import PagesimError
from pagesim.experiments.fit.costs import Costs
from pagesim.experiments.fit.equations import COLUMNS
from pagesim.experiments.fit.loads import Floats, Load
from pagesim.experiments.fit.search import Found, search
from pagesim.setup.scenario import System

SURE = 2.0
"""Standard errors by which a value must exceed 0, or what is known of it beforehand."""


DATASHEET, LEFT_OUT, OTHERS = "datasheet", "counted elsewhere", "other servers"
"""Where a value comes from that logs do not give."""

APART = 1.5
"""By which factor the batches of several loads, or their contexts, must differ: what only the beginning and
the end of a run tell apart is not told."""


@dataclass(frozen=True)
class Fitted:
    """What a server's logs say.

    Attributes:
        costs: from values to costs.
        found: values, errors, and the loads as simulated by them.
        fixed: by column, where a value comes from that the logs do not give.
        loads: that were fitted.
        first: of how many requests of each the log was looked at; all when None.
        notes: what the logs cannot tell, a sentence each.
    """

    costs: Costs
    found: Found
    fixed: dict[str, str]
    loads: tuple[Load, ...]
    first: int | None
    notes: tuple[str, ...]

    def value(self, name: str) -> float:
        """Return a value by its column's name."""
        return float(self.found.values[COLUMNS.index(name)])

    def error(self, name: str) -> float:
        """Return a standard error by its column's name; 0 where the value is not the logs'."""
        return float(self.found.errors[COLUMNS.index(name)])


def fit(
    loads: Sequence[Load], system: System, *, start: Profile | None = None, first: int | None = None
) -> Fitted:
    """Fit what a server's iterations take to its logs.

    Seconds of an iteration = a + b · sequences + c · tokens of context + d · prompt tokens + e if there are
    any; on top of a profile's operators a and b alone. TTFT has a front end's time in addition.

    Args:
        loads: several, of one server.
        system: the server; its cost does not count.
        start: a profile of the operators.
        first: of how many requests of each load the log is looked at; all when left out.

    Raises:
        PagesimError: a log or an option is off, or scipy is not installed.
    """
    if not loads:
        raise PagesimError("there is no log to fit to; give at least one")
    for load in loads:
        load.check()
    costs = Costs.of(system, start, loads[0])
    fixed = {name: 0.0 for name in COLUMNS if name not in costs.fitted}
    sources: dict[str, str] = {}
    notes: list[str] = []
    found = search(loads, costs, _first_values(loads, costs), fixed, first)
    if start is None and (why := _context_unknown(loads, found, costs)):
        known = costs.context_s()
        sources["context"], fixed["context"] = (DATASHEET, known) if known is not None else (LEFT_OUT, 0.0)
        notes.append(f"{why}: {_instead(costs, known)}")
        found = search(loads, costs, found.values, fixed, first)
    engine = costs.engine()
    b, error = (each[COLUMNS.index("sequences")] for each in (found.values, found.errors))
    if SURE * error > max(b, engine.sequence_s):
        notes.append(
            f"these loads do not tell a time an iteration from a time a sequence ({_us(b)} ± {_us(error)} "
            f"µs), their batches are too much alike: the latter is that of {engine.source}, "
            f"{_us(engine.sequence_s)} µs"
        )
        sources["sequences"], fixed["sequences"] = OTHERS, engine.sequence_s
        found = search(loads, costs, found.values, fixed, first)
    return Fitted(costs, found, sources, tuple(loads), first, tuple(notes))


def _first_values(loads: Sequence[Load], costs: Costs) -> Floats:
    """Return values to begin with: an idle server's TPOT and TTFT are upper bounds of the first two times."""
    values = np.zeros(len(COLUMNS))
    if costs.start is not None:
        engine = costs.engine()
        values[:2] = engine.iteration_s, engine.sequence_s
        return values
    tpot, a_token = [], []
    for load in loads:
        several = (load.output_tokens > 1) & (load.last_s > load.first_s)
        tpot.append((load.last_s - load.first_s)[several] / (load.output_tokens[several] - 1))
        a_token.append(load.ttft_s / load.prompt_tokens)
    values[COLUMNS.index("iterations")] = np.percentile(np.concatenate(tpot), 5)
    values[COLUMNS.index("prompt_tokens")] = np.percentile(np.concatenate(a_token), 5)
    return values


def _context_unknown(loads: Sequence[Load], found: Found, costs: Costs) -> str | None:
    """Return why the logs cannot tell a time a token of context from a time a sequence; None if they can."""
    column = COLUMNS.index("context")
    value, error = float(found.values[column]), float(found.errors[column])
    if len(loads) == 1:
        return (
            "one load alone does not tell a time a sequence from a time a token of context, as batch and "
            "context grow and shrink together; fit to logs of several concurrencies and lengths"
        )
    if SURE * error > max(value, costs.context_s() or 0.0) or _alike(found):
        return (
            "these loads do not tell a time a sequence from a time a token of context "
            f"({1e9 * value:.3g} ± {1e9 * error:.3g} ns), their batches and contexts are too much alike"
        )
    return None


def _alike(found: Found) -> bool:
    """Return whether all loads have much the same batch, and much the same context a sequence."""
    whole = np.array([run.windows.sums[-1] for run in found.runs])
    iterations, sequences, context = (whole[:, COLUMNS.index(name)] for name in COLUMNS[:3])
    return all(
        float(ratio.max() / ratio.min()) < APART for ratio in (sequences / iterations, context / sequences)
    )


def _instead(costs: Costs, known: float | None) -> str:
    """Return what a time a token of context is that the logs did not give."""
    if known is None:
        return (
            "both are counted as a time a sequence, which is good for contexts of these lengths only; name "
            "the gpu, and its datasheet gives the latter"
        )
    return f"the latter is that of the {costs.system.gpu}'s datasheet, {1e9 * known:.3g} ns"


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:.3g}"
