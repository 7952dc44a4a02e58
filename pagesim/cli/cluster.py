"""``pagesim cluster``: several replicas of a system behind a router."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pagesim.cli.options import JSON, OUT, SCENARIO, scenario_from, with_flags
from pagesim.setup.scenario import Cluster

if TYPE_CHECKING:
    from pagesim.experiments.clusters import ClusterResult


@with_flags(Cluster, leave_out=("steps",))
def command(
    *,
    scenario: SCENARIO = None,
    out: OUT = None,
    json: JSON = False,
    flags: dict[str, Any],
) -> None:
    """Replay a trace on several replicas behind a router.

    With --prefill and --decode, replicas of one pool compute prompts and those of the other continue them.

    Example: pagesim cluster --replicas 8 --router least-loaded --trace sharegpt --rate 12 --duration 300
    """
    chosen = scenario_from(Cluster, scenario, flags)
    from pagesim.cli import show
    from pagesim.cli.runs import all_rejected
    from pagesim.setup.files import check_target, publish

    if out is not None:
        check_target(out, "cluster")
    result = show.replay_cluster(chosen, stored=out is not None)
    if out is not None:
        publish(out, lambda folder: _store(result, folder), "cluster")
    rejected = all_rejected([result.summary])
    show.say_notes(result.notes)
    if json:
        show.as_json(result.summary)
    else:
        show.cluster(result)
        show.stored(out)
    if rejected:
        raise typer.Exit(1)


def _store(result: ClusterResult, folder: Path) -> None:
    """Write a result into an empty folder, of two pools with a figure."""
    result.write(folder)
    if result.steps is not None:
        from pagesim.experiments.clusters.figures import pools_over_time
        from pagesim.results.plots import save

        save(pools_over_time(result), folder / "pools")
