"""``pagesim run``: replay a trace under one or several policies, on replicas, or on this machine's device."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel, Field

from pagesim.cli.flags import JSON, OUT, SCENARIO, SERVE, scenario_from, with_flags
from pagesim.cli.runs import all_rejected
from pagesim.errors import PagesimError
from pagesim.setup.files import check_target, publish
from pagesim.setup.scenario import APART, SEVERAL, Cluster, Comparison, Scenario

TRACE_EVENTS = Annotated[
    bool,
    typer.Option("--trace-events", help="Store a time line for Perfetto, too."),
]


class Live(BaseModel):
    """How to execute a scenario on a device; not part of the scenario."""

    device: str | None = Field(None, description="Carry out every iteration on this device. [cpu|cuda|auto]")
    cuda_graphs: bool = Field(
        False, description="Capture iterations that only decode as CUDA graphs, on cuda."
    )
    swap: str = Field("gather", description="Swap strategy, one of pagesim bench swap.")
    check: bool = Field(False, description="Compare sequences with the same ones computed in one piece.")


@with_flags(Scenario, Comparison, Cluster, Live)
def command(
    *,
    scenario: SCENARIO = None,
    serve: SERVE = None,
    out: OUT = None,
    json: JSON = False,
    trace_events: TRACE_EVENTS = False,
    flags: dict[str, Any],
) -> None:
    """Replay a trace on one system, on several, or on a cluster.

    Compare policies with --policies, make a cluster with --replicas, or run every iteration on this machine
    with --device.

    Example: pagesim run --trace sharegpt --rate 2 --duration 900 --policy vllm-sosp
    """
    from pagesim.cli import replays, show

    live = {name: flags.pop(name) for name in Live.model_fields if name in flags}
    if live and "device" not in live:
        raise PagesimError(f"{next(iter(live))} is for a run on a device: give --device, too")
    served = None
    if serve is not None:
        from pagesim.setup.serve import read_serve

        served = read_serve(serve)
    told = {**_written(scenario), **({} if served is None else served.options), **flags}
    kind = _kind(told, live=bool(live))
    chosen = scenario_from(kind, scenario, flags, served)
    target = {Comparison: "comparison", Cluster: "cluster"}.get(kind, "run")
    if out is not None:
        check_target(out, target)
    if trace_events and (out is None or kind is not Scenario):
        raise PagesimError(
            "trace_events needs a folder to store the file in; give --out DIR"
            if out is None
            else "trace_events are those of one policy: leave --policies and --replicas out"
        )
    replayed = replays.replay(chosen, stored=out is not None, live=live, trace_events=trace_events)
    if out is not None:
        publish(out, replayed.store, target)
    rejected = all_rejected(replayed.runs)
    show.say_notes((*(() if served is None else served.notes), *replayed.notes))
    if json:
        show.as_json(replayed.summary)
    else:
        replayed.show()
        show.stored(out)
    if rejected or replayed.failed:
        raise typer.Exit(1)


def _written(scenario: Path | None) -> dict[str, Any]:
    """Return the options of a scenario file without validating them."""
    if scenario is None:
        return {}
    from pagesim.setup.scenario_files import read_toml

    return read_toml(scenario)


def _kind(given: dict[str, Any], *, live: bool) -> type[Scenario]:
    """Return the kind of scenario that these options describe: a comparison, a cluster or one system."""
    of_cluster = [name for name in ("replicas", "router", *APART) if name in given]
    of_cluster += [name for name in SEVERAL if given.get(name, 1) not in (1, "1", None)]
    kinds: dict[str, type[Scenario]] = {
        **({"policies": Comparison} if "policies" in given else {}),
        **({of_cluster[0]: Cluster} if of_cluster else {}),
        **({"device": Scenario} if live else {}),
    }
    if len(kinds) > 1:
        raise PagesimError(
            f"{' and '.join(kinds)} do not go together: a run has several policies, replicas or a device"
        )
    return next(iter(kinds.values()), Scenario)
