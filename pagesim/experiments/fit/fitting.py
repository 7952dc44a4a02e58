"""Fitting: derives a server's iteration times from several loads, and finds what the logs cannot tell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pagesim.errors import PagesimError
from pagesim.experiments.fit.costs import Costs
from pagesim.experiments.fit.equations import COLUMNS, GROUPS
from pagesim.experiments.fit.identifiability import are_alike, settle
from pagesim.experiments.fit.iterations import check
from pagesim.experiments.fit.search import SearchResult, search
from pagesim.experiments.recorded.recording import Floats, RecordedRun
from pagesim.setup.system import System

ODDS = 1.3
"""Factor by which a load's windows may be longer or shorter than fitted before a note reports it."""


@dataclass(frozen=True)
class Fitted:
    """What a server's logs say about its iteration times.

    Attributes:
        costs: conversion from values to costs.
        form: columns that an iteration's time depends on.
        found: values, their errors, and the loads simulated with them.
        fixed: sources of values that do not come from the logs, by column.
        loads: loads used for the fit.
        first: number of leading requests of each load whose log was used; None for all.
        notes: what the logs cannot tell, one sentence each.
    """

    costs: Costs
    form: tuple[str, ...]
    found: SearchResult
    fixed: dict[str, str]
    loads: tuple[RecordedRun, ...]
    first: int | None
    notes: tuple[str, ...]

    def value(self, name: str) -> float:
        """Return the value of a column."""
        return float(self.found.values[COLUMNS.index(name)])

    def error(self, name: str) -> float:
        """Return the standard error of a column from the logs alone."""
        return float(self.found.errors[COLUMNS.index(name)])


def fit(loads: Sequence[RecordedRun], system: System, *, first: int | None = None) -> Fitted:
    """Fit a server's iteration times to its logs.

    Seconds of an iteration = a + b · sequences + c · tokens of context + d · prompt tokens + e if there are
    any of these. TTFT also includes the front end's time.

    Args:
        loads: several loads of the same server.
        system: the server; its own cost model is ignored.
        first: number of leading requests of each load whose log is used; all if omitted.

    Raises:
        PagesimError: a log or an option is invalid.
    """
    if not loads:
        raise PagesimError("there is no log to fit to; give at least one")
    for load in loads:
        check(load)
    costs = Costs.of(system, loads[0])
    form, curved = costs.forms
    found = search(loads, costs, _first_values(loads), form, {}, first)
    if len(loads) > 1 and not are_alike(found):
        bent = search(loads, costs, found.values, curved, {}, first)
        if bent.describes_better(found):
            form, found = curved, bent
    by_logs = found.errors
    found, sources, notes = settle(loads, costs, form, found, first)
    notes = (*notes, *_at_odds(loads, found))
    # For values that do not come from the logs, report the errors of the fit with all values free.
    found = found._replace(errors=np.maximum(by_logs, found.errors))
    return Fitted(costs, form, found, sources, tuple(loads), first, notes)


def _at_odds(loads: Sequence[RecordedRun], found: SearchResult) -> Iterator[str]:
    """Yield a note for each load that contradicts the others."""
    rows = found.rows
    for number, load in enumerate(loads if len(loads) > 1 else ()):
        own = (rows.groups // GROUPS == number) & ~rows.of_ttft
        # A miss is relative to the simulated time, so one minus the miss is measured over simulated.
        ratio = float(np.median(1 - found.misses[own])) if own.any() else 1.0
        if not 1 / ODDS <= ratio <= ODDS:
            yield (
                f"{load.name}: its requests took {ratio:.2f} times as long as by the values that fit the "
                "other loads: look at its log, and at whether the server was the same and alone"
            )


def _first_values(loads: Sequence[RecordedRun]) -> Floats:
    """Return initial values: an idle server's TPOT and TTFT are upper bounds of the first two times."""
    values = np.zeros(len(COLUMNS))
    tpot, a_token = [], []
    for load in loads:
        several = (load.output_tokens > 1) & (load.last_s > load.first_s)
        tpot.append((load.last_s - load.first_s)[several] / (load.output_tokens[several] - 1))
        a_token.append(load.ttft_s / load.prompt_tokens)
    values[COLUMNS.index("iterations")] = np.percentile(np.concatenate(tpot), 5)
    values[COLUMNS.index("prompt_tokens")] = np.percentile(np.concatenate(a_token), 5)
    return values
