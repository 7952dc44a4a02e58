"""``pagesim run``: one system in depth."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from pagesim.cli.options import JSON, OUT, SCENARIO, scenario_from, with_flags
from pagesim.setup.scenario import Scenario


@with_flags(Scenario)
def command(
    *,
    scenario: SCENARIO = None,
    serve: Annotated[
        str | None,
        typer.Option(
            "--serve",
            metavar="LINE",
            help="Command that serves the model: 'vllm serve MODEL …', of release 0.33.0, or "
            "'sglang serve MODEL …', of 0.5.23; needs --gpu.",
        ),
    ] = None,
    out: OUT = None,
    json: JSON = False,
    trace_events: Annotated[
        bool,
        typer.Option("--trace-events", help="Store a time line for Perfetto or chrome://tracing, too."),
    ] = False,
    flags: dict[str, Any],
) -> None:
    """Replay a trace under one policy: its memory and latency.

    Example: pagesim run --trace sharegpt --arrivals poisson --rate 2 --duration 900 --policy vllm-sosp
    """
    served = None
    if serve is not None:
        from pagesim.setup.serve import read_serve

        served = read_serve(serve)
    chosen = scenario_from(Scenario, scenario, flags, served)
    from pagesim.accounting.timeline import Timeline
    from pagesim.api import run
    from pagesim.cli import show
    from pagesim.cli.runs import all_rejected
    from pagesim.errors import PagesimError
    from pagesim.setup.files import check_target, publish

    if out is not None:
        check_target(out, "run")
    elif trace_events:
        raise PagesimError("trace_events needs a folder to store the file in; give --out DIR")
    timeline = Timeline(every=chosen.steps) if trace_events else None
    result = show.replay(chosen, stored=out is not None, run=partial(run, timeline=timeline))
    if out is not None:
        publish(out, lambda folder: store(result, folder, timeline), "run")
    rejected = all_rejected([result.summary])
    show.say_notes((*(() if served is None else served.notes), *result.notes))
    if json:
        show.as_json(result.summary)
    else:
        show.one(result)
        show.stored(out)
    if rejected:
        raise typer.Exit(1)


def store(result: Any, folder: Path, timeline: Any = None) -> None:
    """Write a result, its figures and, if it was listened to, its time line into an empty folder."""
    from pagesim.accounting.metrics import capacity_in
    from pagesim.results import trace_events
    from pagesim.results.plots import save_run_figures

    result.write(folder)
    save_run_figures(result, folder)
    if timeline is not None:
        trace_events.write(
            folder / trace_events.FILE,
            timeline,
            result.steps,
            title=result.scenario.policy,
            capacity=capacity_in(result.summary["memory"]),
        )
