"""``pagesim plan``: how a GPU's memory is divided and how many requests fit, without a trace."""

from __future__ import annotations

import math
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pagesim.cli import show
from pagesim.cli.flags import FORCE, JSON, OUT, SERVE, with_fields
from pagesim.cli.plan_step import STEP, price_step, show_step
from pagesim.cli.printing import put_table
from pagesim.cli.runs import JOBS
from pagesim.errors import PagesimError
from pagesim.hardware.gpus import GIB
from pagesim.setup.system import System, checked

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pagesim.experiments.plan import Plan
    from pagesim.experiments.plans import Planned
    from pagesim.sizing import BlockPlan

FIELDS = (
    *("model", "gpu", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"),
    *("enable_expert_parallel", "max_model_len", "vllm_version", "gpu_memory_utilization"),
    "kv_cache_memory_bytes",
    *("weight_dtype", "kv_cache_dtype", "block_size", "max_num_batched_tokens", "max_num_seqs"),
    *("enable_chunked_prefill", "enable_prefix_caching", "async_scheduling"),
    *("disable_hybrid_kv_cache_manager", "flashinfer_sampler"),
    *("language_model_only", "skip_mm_profiling", "max_pixels"),
    *("max_loras", "max_lora_rank", "cpu_offload_gb"),
    *("speculative_config", "speculative_method", "speculative_tokens"),
)
"""The fields of a system on which its memory depends."""

SHORT = {
    "tensor_parallel_size": "GPUs",
    "pipeline_parallel_size": "stages",
    "kv_cache_dtype": "KV type",
    "weight_dtype": "weights",
    "speculative_tokens": "drafts",
}
"""What options are called above a column; others as they are."""

AVAILABLE = Annotated[
    float | None,
    typer.Option(
        metavar="GIB",
        help='GiB left for the cache on each GPU, as in a log\'s "Available KV cache memory". '
        "Estimated by default.",
    ),
]
EAGER = Annotated[bool, typer.Option("--enforce-eager", help="Capture no CUDA graphs.")]
GRID = Annotated[
    list[str] | None,
    typer.Option(
        "--grid",
        metavar="OPTION=VALUE,…",
        help="Compare plans side by side over the values of one of these options. Repeatable.",
    ),
]
PLOT = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Draw where the memory goes into FILE.png and FILE.svg.")
]
FETCH = Annotated[
    bool,
    typer.Option(
        "--fetch",
        help="Take the config.json of a --model ORG/NAME that is not known from the Hugging Face Hub, by "
        "huggingface_hub if it is installed.",
    ),
]
LOG = Annotated[
    Path | None,
    typer.Option(
        "--log",
        metavar="FILE",
        help="Read the server's own start-up log, and print what it says of memory beside the plan.",
    ),
]
SATURATE = Annotated[
    bool,
    typer.Option("--saturate", help="Serve models until requests wait for blocks; show where memory goes."),
]
MODELS = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL,…",
        help="Comma-separated models, or their files, under --saturate. Defaults to the documentation's.",
    ),
]


@with_fields({name: System.model_fields[name] for name in FIELDS})
def command(
    *,
    serve: SERVE = None,
    grid: GRID = None,
    saturate: SATURATE = False,
    models: MODELS = None,
    jobs: JOBS = None,
    out: OUT = None,
    available_gib: AVAILABLE = None,
    enforce_eager: EAGER = False,
    plot: PLOT = None,
    fetch: FETCH = False,
    log: LOG = None,
    step: STEP = None,
    force: FORCE = False,
    json: JSON = False,
    flags: dict[str, Any],
) -> None:
    """Plan a GPU's memory under vLLM or SGLang, and how many requests fit.

    All but the weights is estimated. With --available-gib from a log the rest follows as in the engine.
    --model may also be a list of layers, in TOML or JSON. With --serve 'sglang serve …' the plan is of
    SGLang's pools.

    With --grid there is a row for every point, and a model that does not fit says so.

    With --saturate, models serve ShareGPT's questions and conversations from twice as many clients as their
    caches hold; --out gets gallery.csv, and the figure as PNG and SVG.

    Example: pagesim plan --model llama-3.1-8b --gpu h100 --max-model-len 32768
    """
    from pagesim.cli.plan_show import beside_log, show_sglang
    from pagesim.experiments.plan import POLICY, plan
    from pagesim.experiments.sglang_plan import plan_sglang
    from pagesim.experiments.startup_log import read_log

    if saturate:
        from pagesim.cli.saturate import saturate as serve_all

        if others := sorted(set(flags) - {"gpu"}):
            raise PagesimError(f"{others[0]} is not for --saturate, which takes --models and --gpu")
        serve_all(models, flags.get("gpu", "h100"), jobs, out, json=json)
        return
    for name, value in (("models", models), ("jobs", jobs), ("out", out)):
        if value is not None:
            raise PagesimError(f"{name} is for --saturate; give it, too")
    if step is not None and grid:
        raise PagesimError("step is for one plan: leave --grid out")
    if available_gib is not None and not 0 < available_gib < float("inf"):
        raise PagesimError(f"available_gib is {available_gib}; it must be above 0, in GiB")
    if fetch and "model" in flags:
        from pagesim.models.catalogue.fetch import fetched

        flags["model"] = fetched(flags["model"])
    given: dict[str, Any] = {"policy": POLICY, **flags}
    lines: tuple[str, ...] = ()
    full_graphs = True
    if serve is not None:
        from pagesim.setup.serve import read_serve

        served = read_serve(serve)
        given, lines, full_graphs = served.merged_with(flags), served.notes, served.full_graphs
    cache_bytes = None if available_gib is None else int(available_gib * GIB)
    if grid:
        how = {"cache_bytes": cache_bytes, "enforce_eager": enforce_eager, "full_graphs": full_graphs}
        _side_by_side(given, grid, how, plot, json, force)
        show.say_notes(lines)
        return
    written: list[Path] = []
    system = checked(System, given)
    logged = {} if log is None else read_log(log)
    priced = None if step is None else price_step(system, step)
    if system.policy == "sglang":
        if available_gib is not None or plot is not None:
            raise PagesimError("available_gib and plot are for plans of vLLM; leave them out")
        of_sglang = plan_sglang(system)
        rows = beside_log(logged, of_sglang, None)
        if json:
            show.as_json({**of_sglang.as_dict(), **_further(rows, priced)})
        else:
            show_sglang(of_sglang)
            _show_further(rows, priced)
        show.say_notes((*lines, *of_sglang.notes))
        return
    found = plan(system, cache_bytes=cache_bytes, enforce_eager=enforce_eager, full_graphs=full_graphs)
    if plot is not None:
        from pagesim.results.drawing import load_of
        from pagesim.results.gpu_memory import gpu_memory_bar

        parts = {part.name: part.bytes / GIB for part in found.parts}
        title = "Where the memory of each GPU goes"
        written += _draw(gpu_memory_bar(parts, title, load_of(system)), plot, force)
    exact = None
    if left := logged.get("KV cache, GiB"):
        exact = plan(
            system, cache_bytes=int(left * GIB), enforce_eager=enforce_eager, full_graphs=full_graphs
        )
    rows = beside_log(logged, found, exact)
    if json:
        show.as_json({**found.as_dict(), **_further(rows, priced)})
    else:
        _show(found, available_gib)
        _show_further(rows, priced)
    show.wrote(written, beside=json)
    show.say_notes((*lines, *found.notes))


def _further(rows: list[dict[str, Any]], priced: dict[str, Any] | None) -> dict[str, Any]:
    """Return the extras of a plan, for JSON: the comparison with a log and the time of an iteration."""
    return {**({"beside_log": rows} if rows else {}), **({} if priced is None else {"step": priced})}


def _show_further(rows: list[dict[str, Any]], priced: dict[str, Any] | None) -> None:
    from pagesim.cli.plan_show import show_log

    if rows:
        show_log(rows)
    if priced is not None:
        show_step(priced)


def _draw(figure: Figure, plot: Path, force: bool) -> list[Path]:
    """Write a figure under the user's file name; return its files."""
    stem = plot.with_suffix("") if plot.suffix in (".png", ".svg") else plot
    return show.put_figure(figure, stem.parent, stem.name, force)


def _side_by_side(
    given: dict[str, Any],
    grid: list[str],
    how: dict[str, Any],
    plot: Path | None,
    json: bool,
    force: bool,
) -> None:
    """Show the plans of a grid, one row each, and one bar each if a figure is drawn."""
    from pagesim.experiments.plans import MOST_PLANS, plans
    from pagesim.experiments.sweeps.grid import parse_axes

    axes = parse_axes(grid)
    for name in axes:
        if name not in FIELDS:
            raise PagesimError(f"grid: {name} cannot vary in a plan; choose of {', '.join(FIELDS)}")
    size = math.prod(len(values) for values in axes.values())
    if size > MOST_PLANS:
        raise PagesimError(f"the grid has {size} plans; the bound is {MOST_PLANS}")
    found = plans(given, axes, **how)
    written: list[Path] = []
    if plot is not None:
        from pagesim.results.drawing import load_of
        from pagesim.results.gpu_memory import plan_bars

        bars = [
            (
                ", ".join(str(value) for value in each.point.values()),
                {part.name: part.bytes / GIB for part in each.plan.parts} if each.plan else None,
                f"{each.plan.at_once:,}" if each.plan else "does not fit",
            )
            for each in found
        ]
        varied = ", ".join(SHORT.get(name, name.replace("_", " ")) for name in axes)
        shared = load_of(checked(System, {**given, **found[0].point}), list(axes))
        title = f"Where the memory of each GPU goes, by {varied}"
        written += _draw(plan_bars(bars, title, shared), plot, force)
    if json:
        show.as_json([each.as_dict() for each in found])
    else:
        _show_plans(found, list(axes))
    show.wrote(written, beside=json)


def _show_plans(found: list[Planned], names: list[str]) -> None:

    rows = []
    for each in found:
        point = [str(value) for value in each.point.values()]
        if each.plan is None:
            rows.append((*point, *("–",) * 6, "0"))
            continue
        of = each.plan
        cells = (
            f"{of.cache_bytes / GIB:,.2f}",
            f"{of.sized.num_blocks:,}",
            f"{of.blocks.scheduler_block:,}",
            f"{of.tokens:,}",
            f"{of.settled['max_model_len']:,}",
            f"{of.concurrency:,.2f}x",
            f"{of.at_once:,}",
        )
        rows.append((*point, *cells))
    header = (
        *(SHORT.get(name, name.replace("_", " ")) for name in names),
        "KV, GiB",
        "blocks",
        "tokens a block",
        "tokens",
        "longest",
        "concurrency",
        "at once",
    )
    put_table(
        "Memory of each GPU, plan beside plan", header, rows, texts=tuple(range(len(names))), wraps=True
    )
    for each in found:
        if each.plan is None:
            which = ", ".join(f"{name} {value}" for name, value in each.point.items())
            show.say(f"{which}: {each.refusal}")


def _show(found: Plan, available_gib: float | None) -> None:
    from pagesim.experiments.plan import blocks_behind

    of, settled = found.sized, found.settled
    rows = [(part.name, f"{part.bytes / GIB:,.2f}", part.known) for part in found.parts]
    staged = len(found.stages) > 1
    which = " of the stage with the fewest blocks" if staged else ""
    title = f"Memory of each GPU{which}: {found.system.model} on {found.system.gpu}"
    put_table(title, ("", "GiB", ""), rows, texts=(0, 2))
    if staged:
        _show_stages(found)
    if found.off_by is not None:
        logs, middle, most = found.off_by
        show.say(
            f"On {logs} posted start-up logs of such models the estimate of the cache is off by {middle} GiB "
            f"in the median, by {most} at most where no cause is known"
        )
    options = ", ".join(f"{name} {value}" for name, value in settled.items() if name != "vllm_version")
    show.say(f"vLLM {settled['vllm_version']}: {options}")
    if found.keeps_all:
        show.say(
            f"{of.num_blocks:,} blocks of {of.block_size} tokens, {of.block_bytes:,} bytes each on each GPU"
            + (" of all stages together" if staged else "")
        )
    else:
        show.say("")
        _show_groups(found.blocks)
    show.say("")
    for line in found.log:
        show.say(line)
    if len(found.blocks_of_ranks) > 1:
        show.say(
            f"This is the first of {len(found.blocks_of_ranks)} ranks, which together hold "
            f"{found.tokens_of_ranks:,} tokens"
        )
    if found.experts:
        alike = [f"{len(list(gpus))} with {number}" for number, gpus in groupby(found.experts)]
        how = "experts each" if settled.get("enable_expert_parallel") else "experts each, a part of every one"
        show.say(f"GPUs of all ranks: {', '.join(alike)} {how}")
    if available_gib is not None:
        behind = blocks_behind(available_gib, max(found.blocks.stage_bytes))
        least, most = (found.tokens_in(blocks) for blocks in behind)
        show.say(f"A log's GiB have two decimals: behind these are {least:,} to {most:,} tokens")
    requests = "request" if found.at_once == 1 else "requests"
    them = f"{found.at_once} {requests} of {settled['max_model_len']:,} tokens at once"
    if found.is_bound:
        show.say(f"By what each holds in the end, its drafts included, at most {them}")
    else:
        show.say(f"Found by replaying them: {them}, none preempted")


def _show_stages(found: Plan) -> None:
    """Print the memory of the GPUs of each pipeline stage."""
    rows = [
        (
            str(number),
            str(stage.layers),
            "–" if stage.weights is None else f"{stage.weights / GIB:,.2f}",
            f"{stage.cache_bytes / GIB:,.2f}",
            f"{stage.block_bytes:,}",
            f"{stage.blocks:,}",
        )
        for number, stage in enumerate(found.stages)
    ]
    header = ("stage", "layers", "weights, GiB", "left for KV, GiB", "bytes a block", "blocks alone")
    put_table("Stages of the pipeline, each GPU", header, rows)


def _show_groups(plan: BlockPlan) -> None:
    """Print the KV cache groups, with equal ones merged into one row."""
    from pagesim.experiments.plan import rule_of

    each = [
        (
            rule_of(group),
            str(len(group.layers)),
            f"{group.block_size:,}",
            " and ".join(f"{page:,}" for page in dict.fromkeys(group.pages)),
            f"{100 * plan.padding_of(group):.1f}",
            f"{group.most_blocks:,}",
        )
        for group in plan.groups
    ]
    rows = [(f"{len(list(alike))} × {rule}", *cells) for (rule, *cells), alike in groupby(each)]
    header = ("", "layers", "tokens", "page, bytes", "padding, %", "at most")
    put_table("Groups of layers and their blocks", header, rows)
    show.say(
        f"{plan.num_blocks:,} blocks of {plan.bytes_per_block:,} bytes each on each GPU"
        f"{' of all stages together' if len(plan.stage_bytes) > 1 else ''}, "
        f"{100 * plan.padding:.1f} % of them padding; a longest request takes up to {plan.most_blocks:,}"
    )
