"""``pagesim compare``: one trace, several systems, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from pagesim.cli.options import JSON, OUT, SCENARIO, scenario_from, with_flags
from pagesim.setup.scenario import Comparison


@with_flags(Comparison, leave_out=("policy",))
def command(
    *,
    scenario: SCENARIO = None,
    out: OUT = None,
    json: JSON = False,
    flags: dict[str, Any],
) -> None:
    """Replay a trace under several policies, side by side.

    Example: pagesim compare --trace sharegpt --arrivals poisson --rate 2 --duration 900 --out out/first
    """
    chosen = scenario_from(Comparison, scenario, flags)
    from pagesim.cli import show
    from pagesim.cli.runs import all_rejected
    from pagesim.results.drawing import load_of
    from pagesim.results.plots import save_comparison_figures
    from pagesim.results.result import to_json
    from pagesim.setup.files import check_target, publish, seal
    from pagesim.setup.scenario_files import to_toml

    if out is not None:
        check_target(out, "comparison")
    results = show.replay_all(chosen, stored=out is not None)
    summaries = {"runs": {policy: result.summary for policy, result in results.items()}}

    def store(folder: Path) -> None:
        (folder / "scenario.toml").write_text(to_toml(chosen), encoding="utf-8")
        (folder / "summary.json").write_text(to_json(summaries), encoding="utf-8")
        for policy, result in results.items():
            (folder / policy).mkdir()
            result.write(folder / policy)
            seal(folder / policy, "run")
        save_comparison_figures(summaries["runs"], folder, load_of(chosen))

    if out is not None:
        publish(out, store, "comparison")
    rejected = all_rejected(summaries["runs"].values())
    show.say_notes(tuple(dict.fromkeys(note for result in results.values() for note in result.notes)))
    if json:
        show.as_json(summaries)
    else:
        show.side_by_side(summaries["runs"])
        show.stored(out)
    if rejected:
        raise typer.Exit(1)
