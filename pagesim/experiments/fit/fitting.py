"""Fitting: from several loads of a server to what its iterations take, and what the logs cannot tell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pagesim.costs.profiles import Profile
from pagesim.errors import PagesimError
from pagesim.experiments.fit.costs import Costs
from pagesim.experiments.fit.equations import COLUMNS, GROUPS
from pagesim.experiments.fit.identifiability import are_alike, settle
from pagesim.experiments.fit.iterations import check
from pagesim.experiments.fit.search import SearchResult, search
from pagesim.experiments.recorded.recording import Floats, RecordedRun
from pagesim.setup.system import System

ODDS = 1.3
"""Times by which a load's windows may be longer or shorter than fitted ones."""


@dataclass(frozen=True)
class Fitted:
    """What a server's logs say.

    Attributes:
        costs: from values to costs.
        form: columns that a time consists of.
        found: values, errors, and the loads as simulated by them.
        fixed: by column, where a value comes from that the logs do not give.
        loads: that were fitted.
        first: of how many requests of each the log was looked at; all when None.
        notes: what the logs cannot tell, a sentence each.
    """

    costs: Costs
    form: tuple[str, ...]
    found: SearchResult
    fixed: dict[str, str]
    loads: tuple[RecordedRun, ...]
    first: int | None
    notes: tuple[str, ...]

    def value(self, name: str) -> float:
        """Return a value by its column's name."""
        return float(self.found.values[COLUMNS.index(name)])

    def error(self, name: str) -> float:
        """Return a standard error by its column's name, by the logs alone."""
        return float(self.found.errors[COLUMNS.index(name)])


def fit(
    loads: Sequence[RecordedRun], system: System, *, start: Profile | None = None, first: int | None = None
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
        PagesimError: a log or an option is off.
    """
    if not loads:
        raise PagesimError("there is no log to fit to; give at least one")
    for load in loads:
        check(load)
    costs = Costs.of(system, start, loads[0])
    plain, *others = costs.forms
    form, found = plain, search(loads, costs, _first_values(loads, costs), plain, {}, first)
    for other in others if len(loads) > 1 and not are_alike(found) else ():
        bent = search(loads, costs, found.values, other, {}, first)
        if bent.describes_better(found):
            form, found = other, bent
    by_logs = found.errors
    found, sources, notes = settle(loads, costs, form, found, first)
    notes = (*notes, *_at_odds(loads, found))
    # Where a value is not the logs', their own errors are those of all values at once.
    found = found._replace(errors=np.maximum(by_logs, found.errors))
    return Fitted(costs, form, found, sources, tuple(loads), first, notes)


def _at_odds(loads: Sequence[RecordedRun], found: SearchResult) -> Iterator[str]:
    """Yield of each load that contradicts the others that it does."""
    rows = found.rows
    for number, load in enumerate(loads if len(loads) > 1 else ()):
        own = (rows.groups // GROUPS == number) & ~rows.of_ttft
        # A miss is of the simulated time, and what was measured is the rest of it.
        ratio = float(np.median(1 - found.misses[own])) if own.any() else 1.0
        if not 1 / ODDS <= ratio <= ODDS:
            yield (
                f"{load.name}: its requests took {ratio:.2f} times as long as by the values that fit the "
                "other loads: look at its log, and at whether the server was the same and alone"
            )


def _first_values(loads: Sequence[RecordedRun], costs: Costs) -> Floats:
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
