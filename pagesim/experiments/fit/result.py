"""Result: the fitted profile, the range that it covers, and its error on each load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pagesim.costs.profiles import Profile, Range
from pagesim.experiments.fit.costs import Coefficients, tokens_table
from pagesim.experiments.fit.equations import COLUMNS
from pagesim.experiments.fit.fitting import Fitted
from pagesim.experiments.fit.iterations import AFFINE, PAIRS, REGRESSORS, RISES, Simulated, check, replay
from pagesim.experiments.recorded.errors import RecordedComparison, as_json
from pagesim.experiments.recorded.recording import Floats, RecordedRun, Rows
from pagesim.experiments.recorded.simulate import compared

NAMES = dict(zip((*AFFINE, PAIRS, COLUMNS[-1]), (*Coefficients._fields, "front_end_s"), strict=True))
"""Names of the columns' values, except those of the curve over tokens."""


NO_MOVES = "copies and swaps of blocks take no time: no gpu was named, whose datasheet would say how long"


def comparisons(fitted: Fitted, held_out: Sequence[RecordedRun] = ()) -> list[RecordedComparison]:
    """Return the comparison of each load with its simulation.

    If only the first requests of a load were used, it yields two: those, and the predicted others.

    Raises:
        PagesimError: no request of a load was answered in the simulation.
    """
    found: list[RecordedComparison] = []
    front_end, first = fitted.value("front_end"), fitted.first
    for load, run in zip(fitted.loads, fitted.found.runs, strict=True):
        parts: dict[str, Rows | None] = {load.name: None}
        if first is not None and first < len(load):
            rows = np.arange(len(load)) < first
            parts = {f"{load.name}, first {first}": rows, f"{load.name}, others": ~rows}
        for name, part in parts.items():
            found.append(compared(load, run.result, name=name, rows=part, front_end_s=front_end))
    for load in held_out:
        check(load)
        run = replay(load, fitted.costs.system, fitted.costs.cost(fitted.found.values))
        found.append(compared(load, run.result, name=f"{load.name}, held out", front_end_s=front_end))
    return found


def report(fitted: Fitted, of: Sequence[RecordedComparison]) -> dict[str, Any]:
    """Return everything as JSON: values and errors, what does not come from the logs, misses by load."""
    return {
        "values": {name: _value(fitted, column) for column, name in NAMES.items() if column in fitted.form},
        "tokens": _curve(fitted),
        "miss": fitted.found.miss,
        "rows": int(fitted.found.kept.sum()),
        "left_out": int((~fitted.found.kept).sum()),
        "notes": list(fitted.notes),
        "errors": {each.name: as_json(each.residuals) for each in of},
    }


def profile(fitted: Fitted, name: str, summary: dict[str, Any]) -> Profile:
    """Return the fitted profile.

    Args:
        fitted: values and errors from a server's logs.
        name: name of the profile.
        summary: output of `report`, stored with the profile.
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
        *(() if "gpu" in system.model_fields_set else (NO_MOVES,)),
    )
    update: dict[str, Any] = {
        "name": name,
        "sentence": f"{made.model.name}, fitted to logs: {logs}",
        "notes": (*made.notes, *notes),
        "machine": {**made.machine, "fit": summary},
        "ranges": ranges,
    }
    if "context" in fitted.fixed:
        update["origins"] = {**made.origins, "decode": "datasheet"}
    if "gpu" in system.model_fields_set:
        update["gpu"] = system.gpu
    return made.model_copy(update=update)


def _curve(fitted: Fitted) -> dict[str, list[float]] | None:
    """Return the curve over tokens; None in a form without a curve."""
    if RISES[0] not in fitted.form:
        return None
    table = tokens_table([fitted.value(name) for name in RISES])
    return {"at": list(table.knots[0]), "seconds": list(table.seconds)}


def _ranges(runs: Sequence[Simulated]) -> Iterator[tuple[str, Range]]:
    """Yield each term's name and the range of sizes in the iterations of these runs."""
    each = np.concatenate([np.diff(run.windows.sums, axis=0) for run in runs])
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
