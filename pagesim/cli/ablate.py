"""``pagesim ablate``: the effect of block size, swapping versus recomputing, offloading tiers and engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel, Field
from pydantic.fields import FieldInfo

from pagesim.accounting.fragmentation import fragmentation_of
from pagesim.api import trace_of
from pagesim.cli import show
from pagesim.cli.ablate_engines import engines
from pagesim.cli.ablate_offload import offload
from pagesim.cli.ablate_tier_size import tier_size
from pagesim.cli.calibrate import numbers
from pagesim.cli.flags import OUT, SCENARIO, Command, EngineCommand, scenario_from, taken, with_fields
from pagesim.cli.groups import Commands
from pagesim.cli.printing import put_table
from pagesim.cli.runs import counted
from pagesim.costs.profiles import Profile, find_profile
from pagesim.costs.profiles.analytic import analytic_profile
from pagesim.errors import PagesimError
from pagesim.experiments.ablations import PREEMPTIONS, best, crossover, notes_on, serve, sizes_of, undo
from pagesim.hardware import gpu
from pagesim.setup.engine_config import EngineConfig
from pagesim.setup.scenario import Scenario

cli = typer.Typer(
    cls=Commands,
    help="Ablate the block size, preemption, a tier or the engine.\n\n"
    "Example: pagesim ablate block-size --profile analytic-h200 --trace sharegpt --rate 2 --duration 30",
    no_args_is_help=True,
    rich_markup_mode=None,
)

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Block sizes of the PagedAttention paper's Fig. 18b and 19."""

HEADS = {
    **{f"{name}_s": f"{name.replace('_', ' ')}, s" for name in ("swap_out", "swap_in", "swap", "recompute")},
    "normalized_latency_s": "s/token, mean",
    "tokens_per_s": "tokens/s",
    "preemptions": "pre-\nemptions",
    "internal_fragmentation_pct": "internal\nfragmen-\ntation, %",
}
"""Of the columns whose names do not say their units, or are too long."""

SECONDS_A_TOKEN = "normalized latency, mean (s/token)"


class Ablation(BaseModel):
    """The source of costs; not part of the scenario."""

    profile: str | None = Field(
        None,
        description="Required: a profile by name (pagesim list profiles), or the file that pagesim calibrate "
        "wrote.",
    )
    block_sizes: str | None = Field(
        None, description="Comma-separated block sizes. Defaults to all that the profile knows."
    )


class Undoing(Ablation):
    """Adds the context length of the preemption microbenchmark."""

    tokens: int = Field(256, description="Length of the context that is swapped or recomputed, in tokens.")


POLICY = "vllm-sosp"
"""The policy of a sweep over block sizes that names none: that of the figures, which can swap."""

_FIELDS = {
    name: field
    for name, field in Scenario.model_fields.items()
    if name not in ("cost", "preemption", "steps")
} | {
    "policy": FieldInfo(
        annotation=str, default=POLICY, description=Scenario.model_fields["policy"].description
    )
}


@dataclass(frozen=True)
class _Asked:
    """A profile, its cost-model name, and the block sizes to compare."""

    profile: Profile
    cost: str
    sizes: tuple[int, ...]


@cli.command("block-size", cls=EngineCommand)
@with_fields({**Ablation.model_fields, **_FIELDS}, engine=True)
def block_size(*, scenario: SCENARIO = None, out: OUT = None, flags: dict[str, Any]) -> None:
    """Replay a trace over block sizes (the paper's figure 18b).

    Every block size gets the same memory; the best one is named.

    Example: pagesim ablate block-size --profile opt-13b-h200.json --trace sharegpt --rate 2 --duration 300
    """
    asked, chosen = _prepared(Ablation, scenario, out, flags)
    from pagesim.results.drawing import load_of

    lines: dict[str, dict[int, float]] = {}
    rows = []
    notes: list[str] = notes_on(asked.profile, asked.sizes)
    runs = serve(chosen, trace_of(chosen), asked.sizes, ("default",))
    for _, size, result in counted("block sizes", runs, len(asked.sizes)):
        rows.append({"block_size": size, **_served(result)})
        _keep(lines, chosen.policy, size, result)
        notes += result.notes
    latency = lines.get(chosen.policy, {})
    said = "no request finished: there is nothing to compare"
    marked = None
    if latency:
        marked, alike = best(latency)
        said = f"best block size: {marked}; within 5 % of it: {', '.join(map(str, alike))}"
    _show("Over block sizes", rows)
    show.say(said)
    show.say_notes(notes)
    _store(out, asked.profile, "block_size", rows, lines, SECONDS_A_TOKEN, marked, load_of(chosen))
    show.stored(out)


@cli.command("preemption", cls=EngineCommand)
@with_fields({**Undoing.model_fields, **_FIELDS}, engine=True)
def preemption(*, scenario: SCENARIO = None, out: OUT = None, flags: dict[str, Any]) -> None:
    """Compare swapping with recomputing (the paper's figure 19).

    They are compared at each block size, in isolation and end to end.

    Example: pagesim ablate preemption --profile opt-13b-h200.json --trace sharegpt --rate 2 --duration 300
    """
    tokens = flags.get("tokens", Undoing.model_fields["tokens"].default)
    asked, chosen = _prepared(Undoing, scenario, out, flags)
    from pagesim.results.drawing import load_of

    alone = undo(asked.profile, EngineConfig(chosen).model, asked.sizes, tokens)
    micro = {
        "swap out and in": {each.block_size: each.swap_s for each in alone},
        "recompute": {each.block_size: each.recompute_s for each in alone},
    }
    micro_rows = [each.row() for each in alone]
    crossing = crossover(micro["swap out and in"], micro["recompute"])
    lines: dict[str, dict[int, float]] = {}
    rows = []
    notes: list[str] = notes_on(asked.profile, asked.sizes)
    runs = serve(chosen, trace_of(chosen), asked.sizes, PREEMPTIONS)
    for way, size, result in counted("preemption", runs, len(asked.sizes) * len(PREEMPTIONS)):
        rows.append({"preemption": way, "block_size": size, **_served(result)})
        _keep(lines, way, size, result)
        notes += result.notes
    _show(f"A context of {tokens} tokens, alone", micro_rows)
    show.say(f"alone: {_crossing(crossing, asked.sizes)}")
    _show("End to end", rows)
    marked = None
    if lines.get("swap", {}).keys() == lines.get("recompute", {0: 0.0}).keys():
        marked = crossover(lines["swap"], lines["recompute"])
        preempted = sum(row["preemptions"] for row in rows)
        show.say(
            f"end to end: {_crossing(marked, asked.sizes)}"
            if preempted
            else "end to end: no request was preempted; try a smaller --num-blocks or a higher --rate"
        )
    show.say_notes(notes)
    label = f"to undo the preemption of {tokens} tokens (s)"
    on = f"{chosen.model}, {asked.profile.name}"
    _store(out, asked.profile, "preemption_alone", micro_rows, micro, label, crossing, on)
    _store(out, asked.profile, "preemption", rows, lines, SECONDS_A_TOKEN, marked, load_of(chosen))
    show.stored(out)


cli.command("engines", cls=EngineCommand)(engines)
cli.command("offload", cls=Command)(offload)
cli.command("tier-size", cls=EngineCommand)(tier_size)


def _prepared(
    kind: type[Ablation], scenario: Path | None, out: Path | None, flags: dict[str, Any]
) -> tuple[_Asked, Scenario]:
    """Create the results folder; return the cost source and the scenario that uses it."""
    asked = taken(kind, flags)
    chosen = scenario_from(Scenario, scenario, flags)
    if "policy" not in chosen.model_fields_set:
        chosen = chosen.model_copy(update={"policy": POLICY})
    sizes = None if asked.block_sizes is None else numbers("block_sizes", asked.block_sizes)
    if asked.profile is None:
        raise PagesimError("--profile is needed: a profile by name, or the file that pagesim calibrate wrote")
    if out is not None:
        show.make_folder(out)
    found = _found(asked.profile, chosen, sizes)
    return found, chosen.model_copy(update={"cost": f"profile:{found.cost}"})


def _found(given: str, chosen: Scenario, sizes: tuple[int, ...] | None) -> _Asked:
    name, comma, options = given.partition(",")
    config, tp = EngineConfig(chosen), chosen.tensor_parallel_size
    profile = find_profile(name, model=config.model, tp=tp, kv_dtype=config.kv_dtype)
    if profile.kind == "analytic" and profile.gpu is not None:  # made for whatever is asked
        profile = analytic_profile(
            gpu(profile.gpu),
            config.model,
            tp=tp,
            kv_dtype=config.kv_dtype,
            block_sizes=sizes or SIZES,
        )
    file = Path(name)
    cost = str(file.resolve()) if file.is_file() else name
    return _Asked(profile, cost + comma + options, sizes_of(profile, sizes))


def _served(result: Any) -> dict[str, Any]:
    summary = result.summary
    lost = fragmentation_of(summary["memory"])["mean over iterations"]["internal fragmentation"]
    return {
        "normalized_latency_s": summary["normalized_latency"]["mean"],
        "tokens_per_s": summary["throughput"]["tokens_per_s"],
        "mean_batch": summary["batch"]["mean"],
        "preemptions": sum(summary["preemptions"].values()),
        "internal_fragmentation_pct": None if lost is None else 100 * lost,
    }


def _keep(lines: dict[str, dict[int, float]], name: str, size: int, result: Any) -> None:
    latency = result.summary["normalized_latency"]["mean"]
    if latency is not None:
        lines.setdefault(name, {})[size] = latency


def _crossing(size: int | None, sizes: Sequence[int]) -> str:
    if size is None:
        return "swapping takes longer than recomputing at the largest block size: there is no crossover"
    if size == min(sizes):
        return f"swapping takes no longer than recomputing at any block size from {size}"
    return f"crossover at block size {size}: from there on swapping takes no longer than recomputing"


def _show(title: str, rows: Sequence[Mapping[str, Any]]) -> None:

    heads = [HEADS.get(name, name.replace("_", " ")) for name in rows[0]]
    texts = [place for place, name in enumerate(rows[0]) if name == "preemption"]
    put_table(title, heads, [[_cell(value) for value in row.values()] for row in rows], texts=texts)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _store(
    out: Path | None,
    profile: Profile,
    stem: str,
    rows: Sequence[Mapping[str, Any]],
    lines: Mapping[str, Mapping[int, float]],
    label: str,
    marked: int | None,
    load: str,
) -> None:
    from pagesim.results.plots import over_block_sizes

    show.put_study(
        out,
        stem,
        rows,
        lambda: over_block_sizes(lines, label, marked=marked, load=load),
        profile=profile.name,
        profile_kind=profile.kind,
    )
