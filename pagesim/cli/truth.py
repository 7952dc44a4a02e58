"""``pagesim validate --recorded``: simulate recorded runs and print the errors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pagesim.cli import show
from pagesim.errors import PagesimError
from pagesim.experiments.recorded.errors import RecordedComparison
from pagesim.experiments.recorded.find import read_all
from pagesim.experiments.recorded.simulate import simulate_recorded
from pagesim.setup.files import check_target, publish


def bound(text: str | None) -> float | None:
    """Return a bound on errors as a fraction; None if there is none.

    Raises:
        PagesimError: it is not a percentage from 0 to 1000.
    """
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,4}(?:\.\d+)?)\s*%", text.strip())
    if found is None or float(found[1]) > 1000:
        raise PagesimError(f"max_error is {text[:40]!r}; it must be from 0% to 1000%, such as 5%")
    return float(found[1]) / 100


def truth(
    files: Sequence[Path],
    flags: Mapping[str, Any],
    *,
    max_error: str | None = None,
    out: Path | None = None,
    as_json: bool = False,
) -> bool:
    """Simulate the recorded runs of these files, print errors, and return whether they are within a bound.

    Args:
        files: recordings; server logs and metrics among them apply to all runs.
        flags: options of the system; they override the recordings'.
        max_error: bound on the error of each mean, such as ``5%``.
        out: folder for JSON and figures.
        as_json: print JSON and nothing else.

    Raises:
        PagesimError: a file cannot be read, or the only run cannot be simulated.
    """
    from pagesim.cli import show_truth
    from pagesim.results.result import to_json

    most = bound(max_error)
    if out is not None:
        check_target(out, "validation")
    runs = read_all(files)
    found: list[RecordedComparison] = []
    left_out: dict[str, str] = {}
    for run in runs:
        try:
            found.append(simulate_recorded(run, **flags))
        except PagesimError as error:
            if len(runs) == 1:
                raise
            left_out[run.name] = str(error)
    if not found:
        raise PagesimError(
            f"none of {len(runs)} runs can be simulated; the first: {next(iter(left_out.values()))}"
        )
    passed = most is None or (not left_out and all(each.worst() <= most for each in found))
    summary = {
        "within": most,
        "passed": passed,
        "runs": [each.report() for each in found],
        "left_out": left_out,
        "absolute": show_truth.absolute(found),
    }
    if out is not None:

        def store(folder: Path) -> None:
            from pagesim.experiments.recorded.plots import measured_against_simulated
            from pagesim.results.plots import save

            (folder / "summary.json").write_text(to_json(summary), encoding="utf-8")
            save(measured_against_simulated(found), folder / "validation")

        publish(out, store, "validation")
    show.say_notes(tuple(dict.fromkeys(note for each in found for note in each.notes)))
    if as_json:
        show.as_json(summary)
        return passed
    show_truth.tables(found, left_out)
    if most is not None:
        worst = max(each.worst() for each in found)
        show.say(f"the largest error of a mean is {100 * worst:.1f} %; the bound is {100 * most:g} %")
    show.stored(out)
    return passed
