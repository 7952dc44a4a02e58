"""``pagesim bench``: time the kernels, swaps, copies and GEMMs that make up an iteration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel, Field

from pagesim.cli import show
from pagesim.cli.flags import JSON, OUT, taken, with_fields

cli = typer.Typer(
    help="Time the kernels on a GPU or the reference path on a CPU.\n\n"
    "Example: pagesim bench copy --quick --out out/bench",
    no_args_is_help=True,
    rich_markup_mode=None,
)

TIME_LIMIT_S = 360.0
"""After which ``all`` begins no further point by default."""


class BenchRun(BaseModel):
    """How to run a benchmark."""

    device: str | None = Field(None, description="Device: cpu or cuda. Defaults to cuda where there is one.")
    quick: bool = Field(False, description="Measure only a few points.")
    seconds: float | None = Field(None, description="Time for each point [default: 0.2, on a CPU 0.05].")
    time_limit: float | None = Field(
        None, description="Begin no point after this many seconds; the same command resumes."
    )
    retry_failed: bool = Field(False, description="Retry points that failed before.")
    seed: int = Field(0, description="Random seed.")


class AttentionGrid(BaseModel):
    """What ``bench attention`` measures; separate several values by commas."""

    batch: str | None = Field(None, description="Batch sizes, such as 1,8,64.")
    context: str | None = Field(None, description="Context lengths, in tokens.")
    query: str | None = Field(
        None, description="New tokens of each sequence: measures prefill instead of decode."
    )
    block_size: str | None = Field(None, description="Tokens a block, 1 to 4096, as 16,128.")
    heads: str | None = Field(None, description="Query heads / KV heads, as 32/8,40/40.")
    head_size: str | None = Field(
        None, description="Width of a head: 32, 64, 72, 80, 96, 112, 120, 128, 160, 192, 256 or 512."
    )
    dtype: str | None = Field(None, description="fp16, bf16, fp32; for the cache fp8, too.")
    ops: str | None = Field(None, description="Which ops, as paged-decode-v1,mla-decode.")


class SwapGrid(BaseModel):
    """What ``bench swap`` measures; separate several values by commas."""

    pieces: str | None = Field(None, description="Pieces a block: two a layer, its keys and its values.")
    piece_bytes: str | None = Field(None, description="Bytes of a piece, a multiple of 16.")
    blocks: str | None = Field(None, description="Blocks per swap.")


class GemmGrid(BaseModel):
    """What ``bench gemm`` measures; separate several values by commas."""

    model: str | None = Field(None, description="Whose linear layers; see pagesim list models.")
    tokens: str | None = Field(None, description="Tokens of an iteration.")


def _of_grid(bench: str, grid: type[BaseModel], does: str, example: str) -> None:
    """Add the command of one benchmark."""

    def measure(*, out: OUT = None, json: JSON = False, flags: dict[str, Any]) -> None:
        _measure((bench,), flags, out, json)

    replaces = "Any option of the grid replaces all of what is measured without one.\n\n"
    measure.__doc__ = (
        f"{does}\n\n{replaces if grid.model_fields else ''}"
        f"Example: pagesim bench {bench} {example} --out out/bench"
    )
    cli.command(bench)(with_fields({**grid.model_fields, **BenchRun.model_fields})(measure))


_of_grid(
    "attention",
    AttentionGrid,
    "Time paged attention beside contiguous and peer kernels.",
    "--batch 1,64 --context 4096 --block-size 16,128",
)
_of_grid(
    "swap",
    SwapGrid,
    "Time the swap strategies.",
    "--pieces 1 --piece-bytes 4096,65536 --blocks 16,256",
)
_of_grid("copy", BaseModel, "Time cache writes, block copies, gather and scatter.", "--quick")
_of_grid(
    "gemm",
    GemmGrid,
    "Time the matrix products of a model's linear layers.",
    "--model opt-13b --tokens 1,64,1024",
)


@cli.command("all")
@with_fields(BenchRun.model_fields)
def everything(*, out: OUT = None, json: JSON = False, flags: dict[str, Any]) -> None:
    """Time everything, and compare decode and prefill with peers.

    It takes about six minutes.

    Example: pagesim bench all --device cuda --out out/bench
    """
    from pagesim.kernels.bench.rows import BENCHES

    _measure(BENCHES, {"time_limit": TIME_LIMIT_S, **flags}, out, json)


RESULTS = Annotated[
    list[Path], typer.Argument(metavar="RESULT_DIR...", help="Folders that pagesim run wrote with --out.")
]
BATCHES_OUT = Annotated[Path, typer.Option("--out", metavar="DIR", help="Store the batches in this folder.")]
BATCHES = Annotated[
    int,
    typer.Option("--batches", help="Number of batches of each run, evenly over its time.", min=1, max=4096),
]


@cli.command("export")
def export(results: RESULTS, *, out: BATCHES_OUT, batches: BATCHES = 16) -> None:
    """Write the block tables, lengths and slot mappings of stored runs, as inputs for timing kernels.

    Each run is replayed, and batches at evenly spaced instants are written as an attention kernel receives
    them, with the replay's fragmentation, skew and shared prefixes. Models with multi-head or grouped-query
    attention also get files in FlashInfer's workload format.

    Example: pagesim bench export out/demo --out out/tables
    """
    from pagesim.results.kernel_workload import export_workload
    from pagesim.results.report.sources import find
    from pagesim.setup.files import check_target

    check_target(out, "workload")
    with show.doing("replaying"):
        counts = export_workload({s.name: s.result for s in find(results)}, out, batches)
    for name, count in counts.items():
        show.say(f"{out}: {count} batches of {name}")


def _measure(benches: tuple[str, ...], flags: dict[str, Any], out: Path | None, json: bool) -> None:
    from pagesim.cli import show_bench
    from pagesim.kernels.bench import selection
    from pagesim.kernels.bench.run import run_points

    how = taken(BenchRun, flags)
    device = selection.device(how.device)
    points = [point for bench in benches for point in selection.points(bench, device, how.quick, flags)]
    with show.bar() as progress:
        outcome = run_points(
            points,
            device,
            out,
            seconds=how.seconds,
            time_limit_s=how.time_limit,
            retry_failed=how.retry_failed,
            seed=how.seed,
            progress=progress,
        )
    if json:
        show.as_json({"rows": outcome.rows, "left": outcome.left})
        return
    show_bench.tables(outcome.rows)
    if device == "cuda":
        show_bench.beside_peers(outcome.rows)
    show_bench.ending(outcome, out)
