"""``pagesim cluster``: several replicas of a system behind a router."""

from __future__ import annotations

from typing import Any

from pagesim.cli.options import JSON, OUT, SCENARIO, scenario_from, with_flags
from pagesim.setup.scenario import Cluster


@with_flags(Cluster, leave_out=("steps",))
def command(
    *,
    scenario: SCENARIO = None,
    out: OUT = None,
    json: JSON = False,
    flags: dict[str, Any],
) -> None:
    """Replay a trace on several replicas of a system and show how evenly the router loads them.

    Example: pagesim cluster --replicas 8 --router least-loaded --trace sharegpt --rate 12 --duration 300
    """
    chosen = scenario_from(Cluster, scenario, flags)
    from pagesim.cli import show
    from pagesim.setup.files import check_target

    if out is not None:
        check_target(out)
    result = show.replay_cluster(chosen)
    if out is not None:
        result.save(out)
    show.say_notes(result.notes)
    if json:
        show.as_json(result.summary)
    else:
        show.cluster(result)
        show.stored(out)
