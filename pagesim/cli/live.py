"""``pagesim live``: one system, every iteration of it carried out on a device."""

from __future__ import annotations

from typing import Any

import typer
from pydantic import BaseModel, Field

from pagesim.cli.options import JSON, OUT, SCENARIO, scenario_from, with_fields
from pagesim.cli.run import store
from pagesim.setup.scenario import Scenario


class Live(BaseModel):
    """How a scenario is carried out; not part of the scenario."""

    device: str | None = Field(None, description="Device: cpu or cuda. Defaults to cuda where there is one.")
    attention: str = Field(
        "paged",
        description="Attention: paged, or gather, which copies contexts into a padded batch in every step.",
    )
    cuda_graphs: bool = Field(
        False, description="Capture iterations that only decode as CUDA graphs, on cuda."
    )
    swap: str = Field("gather", description="Swap strategy, one of pagesim bench swap.")
    swap_by_layer: bool = Field(False, description="Swap layer by layer, while earlier layers compute.")
    check: bool = Field(
        False, description="Compare sequences, between iterations, with the same ones computed in one piece."
    )


@with_fields({**Live.model_fields, **Scenario.model_fields}, of_scenario=True)
def command(
    *,
    scenario: SCENARIO = None,
    out: OUT = None,
    json: JSON = False,
    flags: dict[str, Any],
) -> None:
    """Run a trace on this machine's device: memory and latency.

    The exit code is 1 if --check finds a sequence whose keys and values are not its own.

    Example: pagesim live --model tiny --num-blocks 400 --trace sharegpt --num-requests 20 --check
    """
    how = {name: flags.pop(name) for name in Live.model_fields if name in flags}
    chosen = scenario_from(Scenario, scenario, flags)
    from pagesim.cli import show, show_live
    from pagesim.cli.runs import all_rejected
    from pagesim.device.live import run_live
    from pagesim.setup.files import check_target, publish

    if out is not None:
        check_target(out, "run")

    def run(system: Any, trace: Any, *, progress: Any, steps: Any) -> Any:
        return run_live(system, trace, progress=progress, **how)

    result = show.replay(chosen, stored=True, run=run)
    if out is not None:
        publish(out, lambda folder: store(result, folder), "run")
    rejected = all_rejected([result.summary])
    show.say_notes(result.notes)
    if json:
        show.as_json(result.summary)
    else:
        show.one(result)
        show_live.measured(result)
        show.stored(out)
    if rejected or (how.get("check") and not result.summary["live"]["check"]["passed"]):
        raise typer.Exit(1)
