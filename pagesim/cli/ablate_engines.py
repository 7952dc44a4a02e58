"""``pagesim ablate engines``: compare engines on one saturating load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, Field

from pagesim.accounting.fragmentation import INTERNAL
from pagesim.api import trace_of
from pagesim.cli import show
from pagesim.cli.flags import OUT, SCENARIO, scenario_from, taken, with_fields
from pagesim.cli.printing import put_table
from pagesim.cli.runs import counted, say_notes
from pagesim.experiments.engines import POLICIES, TERMS, Loop, Sizing, serve_engines
from pagesim.setup.scenario import Scenario


class EngineAblation(BaseModel):
    """What to compare; not part of the scenario."""

    policies: str = Field(
        ",".join(POLICIES), description="Comma-separated policies; the first one sizes the cache of all."
    )
    clients: int | None = Field(
        None,
        ge=1,
        description="Number of clients. Defaults to twice as many as the first engine's cache holds "
        "requests.",
    )


_LEFT_OUT = ("policy", "steps", "num_blocks", "cpu_blocks", "sizing", "max_concurrency", "arrivals", "rate")
_FIELDS = {name: field for name, field in Scenario.model_fields.items() if name not in _LEFT_OUT}

_TITLES: dict[Sizing, str] = {
    "same": "The same KV bytes for all",
    "own": "Each engine sizes its own cache",
}
_LOOPS: dict[Loop, str] = {"none": "engines' loops take no time", "own": "each engine's loop takes its time"}

_HEADS = {
    **{"kv_gib": "KV,\nGiB", "used_percent": "used\n%", "reserved_percent": "reserved\n%"},
    "internal_percent": "internal\nfragmen-\ntation, %",
    **{"cached_percent": "cached\n%", "batch": "batch", "finished": "served", "preempted": "pre-\nempted"},
    **{"repeated_percent": "repeat-\ned, %", "hit_percent": "hits\n%", "tokens_per_s": "tokens/s"},
    **{"ttft_p50_s": "TTFT\np50, s", "tpot_p50_s": "TPOT\np50, s"},
}
"""Columns of the tables, and their heads."""


@with_fields({**EngineAblation.model_fields, **_FIELDS}, engine=True)
def engines(*, scenario: SCENARIO = None, out: OUT = None, flags: dict[str, Any]) -> None:
    """Compare engines on one load at saturation.

    It shows memory, repeated work and latency of today's engines and of the paper's.

    Each client sends its next request when its last one has finished. There are four tables: equal KV memory
    or each engine's own, each with equal step costs or with the engine's own CPU time added.

    Example: pagesim ablate engines --trace sharegpt --num-requests 20000 --model llama-3.1-8b --gpu h100
    """
    asked = taken(EngineAblation, flags)
    chosen = scenario_from(Scenario, scenario, flags)
    from pagesim.results.drawing import load_of
    from pagesim.results.engine_plots import engine_bars

    policies = [name.strip() for name in asked.policies.split(",")]
    runs = serve_engines(chosen, trace_of(chosen), policies, clients=asked.clients)
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    for row, said in counted("runs", runs, len(TERMS) * len(policies)):
        rows.append(row)
        notes += said
    for sizing, loop in TERMS:
        title = f"{_TITLES[sizing]}, {_LOOPS[loop]}"
        _put(title, [row for row in rows if (row["sizing"], row["loop"]) == (sizing, loop)])
    say_notes(notes)
    load = load_of(chosen, ("trace", "rate"))
    show.put_study(out, "engines", rows, lambda: engine_bars({str(chosen.trace): rows}, load=load))
    show.stored(out)


def _put(title: str, rows: Sequence[Mapping[str, Any]]) -> None:

    whole = [
        {**row, "internal_percent": sum(row.get(f"{entry}_percent", 0.0) for entry in INTERNAL)}
        if "batch" in row
        else row
        for row in rows
    ]
    cells = [(row["policy"], *(_number(row.get(name)) for name in _HEADS)) for row in whole]
    put_table(title, ("", *_HEADS.values()), cells)


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
