"""``pagesim bench simulator``: what a replayed request costs, in bare SimPy timeouts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pagesim.cli.options import JSON, OUT

POLICIES = "vllm-sosp,vllm-v0,vllm-v1,orca-max,orca-pow2,orca-oracle"


def command(
    *,
    policies: Annotated[str, typer.Option(help="Which, separated by commas.")] = POLICIES,
    loads: Annotated[
        str, typer.Option(help="light, saturated, overload, or recorded for the trace's own arrivals.")
    ] = "light,saturated,overload",
    sizes: Annotated[str, typer.Option(help="Requests, as 10000,100000,1000000.")] = "10000,100000",
    trace: Annotated[str, typer.Option(help="A bundled workload, or a trace file.")] = "sharegpt",
    num_blocks: Annotated[int, typer.Option(help="Blocks of the cache.")] = 983,
    prefix_caching: Annotated[bool, typer.Option("--prefix-caching", help="For vllm-v1.")] = False,
    model: Annotated[str, typer.Option(help="See `pagesim models`.")] = "opt-13b",
    gpu: Annotated[str, typer.Option(help="For a cost that asks for one; see `pagesim gpus`.")] = "",
    cost: Annotated[str, typer.Option(help="As for `pagesim run`.")] = "affine:0.024,1e-4,8.2e-7",
    block_size: Annotated[int | None, typer.Option(help="Tokens a block.")] = None,
    max_num_batched_tokens: Annotated[int | None, typer.Option(help="Tokens an iteration.")] = None,
    against: Annotated[
        Path | None, typer.Option(metavar="BASE.json", help="Rows of another run to compare with.")
    ] = None,
    out: OUT = None,
    as_json: JSON = False,
) -> None:
    """Replay traces and print what a request and a decision cost, in bare SimPy timeouts of the same minute.

    --out stores simulator.json, which --against takes, and a plot of the cost against the size.

    Example: pagesim bench simulator --policies vllm-sosp --sizes 10000,100000 --out out/speed
    """
    from pagesim.cli import show, show_speed
    from pagesim.errors import PagesimError
    from pagesim.policies import POLICIES as KNOWN
    from pagesim.results import to_json
    from pagesim.speed import Point, compared, measure_all

    names = policies.split(",")
    if unknown := [name for name in names if name not in KNOWN]:
        raise PagesimError(f"policies holds {unknown[0]!r}; it may hold {', '.join(KNOWN)}")
    counts = [_number(size) for size in sizes.split(",")]
    points = [
        Point(
            policy,
            load,
            size,
            trace,
            prefix_caching=prefix_caching and policy == "vllm-v1",
            num_blocks=num_blocks,
            model=model,
            gpu=gpu,
            cost=cost,
            block_size=block_size or 0,
            max_num_batched_tokens=max_num_batched_tokens or 0,
        )
        for policy in names
        for load in loads.split(",")
        for size in counts
    ]
    base = show_speed.read_rows(against) if against is not None else []
    with show_speed.progress(len(points)) as watch:
        rows = compared(measure_all(points, watch), base)
    if out is not None:
        from pagesim.plots import simulator_cost

        show.put_figure(simulator_cost(rows), out, "simulator")
        show.write_text(out / "simulator.json", to_json({"rows": rows}))
    if as_json:
        show.as_json({"rows": rows})
        return
    show_speed.table(rows)
    show.stored(out)


def _number(text: str) -> int:
    from pagesim.errors import PagesimError

    try:
        return int(text)
    except ValueError:
        raise PagesimError(f"sizes holds {text!r}; whole numbers are needed, as 10000,100000") from None
