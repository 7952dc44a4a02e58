"""Result: the profile of what was fitted, what it covers, and how wrong it is on each load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pagesim.costs.profiles import Profile, Range
from pagesim.errors import PagesimError
from pagesim.experiments.fit.coefficients import Coefficients
from pagesim.experiments.fit.costs import tokens_table
from pagesim.experiments.fit.equations import COLUMNS
from pagesim.experiments.fit.fitting import Fitted
from pagesim.experiments.fit.iterations import AFFINE, PAIRS, REGRESSORS, RISES, Simulated, check, replay
from pagesim.experiments.recorded.errors import Pair, as_json, pairs_of, residuals_of
from pagesim.experiments.recorded.recording import Floats, RecordedRun, Rows

NAMES = dict(zip((*AFFINE, PAIRS, COLUMNS[-1]), (*Coefficients._fields, "front_end_s"), strict=True))
"""What the values of columns are called, but for those of the curve over tokens."""


NO_MOVES = "copies and swaps of blocks take no time: no gpu was named, whose datasheet would say how long"


def tables(fitted: Fitted, held_out: Sequence[RecordedRun] = ()) -> dict[str, dict[str, Pair]]:
    """Return the metrics of each load, measured and simulated, by its name.

    A load of which only the first requests were looked at is two: those, and the others, which are predicted.
    """
    found: dict[str, dict[str, Pair]] = {}
    front_end = fitted.value("front_end")
    for load, run in zip(fitted.loads, fitted.found.runs, strict=True):
        first = fitted.first
        if first is None or first >= len(load):
            found[load.name] = pairs(load, run, front_end)
            continue
        rows = np.arange(len(load)) < first
        found[f"{load.name}, first {first}"] = pairs(load, run, front_end, rows)
        found[f"{load.name}, others"] = pairs(load, run, front_end, ~rows)
    for load in held_out:
        check(load)
        run = replay(load, fitted.costs.system, fitted.costs.cost(fitted.found.values))
        found[f"{load.name}, held out"] = pairs(load, run, front_end)
    return found


def pairs(load: RecordedRun, run: Simulated, front_end_s: float, rows: Rows | None = None) -> dict[str, Pair]:
    """Return TTFT, TPOT and E2E of each request that was answered, measured and simulated.

    Args:
        load: as measured.
        run: as simulated.
        front_end_s: what a TTFT has beside the engine's time; the simulation knows of no front end.
        rows: requests that are looked at, ``[N]``; all when left out.

    Raises:
        PagesimError: no request was answered in the simulation.
    """
    chosen = run.answered if rows is None else run.answered & rows
    if not chosen.any():
        raise PagesimError(
            f"{load.name}: none of its requests was answered in the simulation; look at the server's "
            "settings (num_blocks, max_model_len)"
        )
    ttft, _, e2e = run.seconds()
    both = pairs_of(load, ttft + front_end_s, e2e + front_end_s, chosen)
    return {name: pair for name, pair in both.items() if len(pair.measured)}


def report(fitted: Fitted, of: dict[str, dict[str, Pair]]) -> dict[str, Any]:
    """Return everything as JSON takes it: values and their errors, what is not the logs', misses by load."""
    return {
        "values": {name: _value(fitted, column) for column, name in NAMES.items() if column in fitted.form},
        "tokens": _curve(fitted),
        "miss": fitted.found.miss,
        "rows": int(fitted.found.kept.sum()),
        "left_out": int((~fitted.found.kept).sum()),
        "notes": list(fitted.notes),
        "errors": {load: as_json(residuals_of(both)) for load, both in of.items()},
    }


def profile(fitted: Fitted, name: str, summary: dict[str, Any]) -> Profile:
    """Return the profile of what was fitted.

    Args:
        fitted: values and errors that a server's logs gave.
        name: what it is called.
        summary: of `report`; it is kept with the profile.
    """
    costs, system = fitted.costs, fitted.costs.system
    made = costs.profile(fitted.found.values)
    ranges = dict(_ranges(fitted.found.runs))
    logs = ", ".join(load.name for load in fitted.loads)
    of = ranges["decode"]
    notes = (
        f"fitted to iterations of {of.least} to {of.most} sequences with at most {of.most_context:,} tokens "
        f"of context each, and at most {ranges['prefill'].most:,} prompt tokens: beyond these it is "
        "extrapolated",
        *fitted.notes,
        *(() if costs.start or "gpu" in system.model_fields_set else (NO_MOVES,)),
    )
    update: dict[str, Any] = {
        "name": name,
        "kind": "measured",
        "notes": (*made.notes, *notes),
        "machine": {**made.machine, "fit": summary},
    }
    if costs.start is None:
        origins = dict(made.origins)
        if "context" in fitted.fixed:
            origins["decode"] = "datasheet"
        named = {"gpu": system.gpu} if "gpu" in system.model_fields_set else {}
        update |= {
            "sentence": f"{made.model.name}, fitted to logs: {logs}",
            "origins": origins,
            "ranges": ranges,
            **named,
        }
    else:
        update |= {
            "kind": made.kind,
            "sentence": f"{made.sentence}; the engine's own time fitted to logs: {logs}",
            "origins": {**made.origins, "overhead": "measured"},
        }
    return made.model_copy(update=update)


def _curve(fitted: Fitted) -> dict[str, list[float]] | None:
    """Return the curve over tokens; None in a form without one."""
    if RISES[0] not in fitted.form:
        return None
    table = tokens_table([fitted.value(name) for name in RISES])
    return {"at": list(table.knots[0]), "seconds": list(table.seconds)}


def _ranges(runs: Sequence[Simulated]) -> Iterator[tuple[str, Range]]:
    """Yield by term the sizes that the iterations of these runs had."""
    each = np.concatenate([np.diff(run.windows.sums[:, : len(REGRESSORS)], axis=0) for run in runs])
    sequences, context, prompt = (
        each[:, REGRESSORS.index(name)] for name in ("sequences", "context", "prompt_tokens")
    )
    decoding = context > 0
    mean = context[decoding] / np.maximum(1, sequences[decoding])
    yield "linear", _range(sequences + prompt)
    yield "head", _range(sequences)
    yield "decode", _range(sequences[decoding], mean)
    yield "prefill", _range(prompt[prompt > 0])


def _range(sizes: Floats, context: Floats | None = None) -> Range:
    sizes = sizes[sizes > 0]
    if not len(sizes):
        return Range(least=0, most=0)
    most_context = 0 if context is None else int(np.ceil(context.max()))
    return Range(least=int(sizes.min()), most=int(sizes.max()), most_context=most_context)


def _value(fitted: Fitted, column: str) -> dict[str, Any]:
    error = fitted.error(column)
    return {
        "value": fitted.value(column),
        "standard_error": error if np.isfinite(error) else None,
        "source": fitted.fixed.get(column, "logs"),
    }
