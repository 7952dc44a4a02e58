"""``pagesim run``: one system in depth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pagesim.cli.options import JSON, OUT, SCENARIO, scenario_from, with_flags
from pagesim.scenario import Scenario


@with_flags(Scenario)
def command(
    *,
    scenario: SCENARIO = None,
    out: OUT = None,
    json: JSON = False,
    flags: dict[str, Any],
) -> None:
    """Replay a trace under one policy and show what became of memory and latency.

    Example: pagesim run --trace sharegpt --arrivals poisson --rate 2 --duration 900 --policy vllm-sosp
    """
    chosen = scenario_from(Scenario, scenario, flags)
    from pagesim.cli import show
    from pagesim.storage import check_target, publish

    if out is not None:
        check_target(out)
    result = show.replay(chosen, stored=out is not None)
    if out is not None:
        publish(out, lambda folder: store(result, folder))
    show.say_notes(result.notes)
    if json:
        show.as_json(result.summary)
    else:
        show.one(result)
        show.stored(out)


def store(result: Any, folder: Path) -> None:
    """Write a result and its figures into an empty folder."""
    from pagesim.plots import save_run_figures

    result.write(folder)
    save_run_figures(result, folder)
