"""``pagesim calibrate``: from the kernels, transfers and iterations on this machine to a profile."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from pagesim.cli import show
from pagesim.errors import PagesimError
from pagesim.setup.files import check_file

TARGET = Annotated[Path, typer.Argument(metavar="OUT.json", help="File to write the profile to.")]


def command(
    *,
    target: TARGET,
    device: Annotated[
        str | None, typer.Option(help="Device: cpu or cuda. Defaults to cuda where there is one.")
    ] = None,
    model: Annotated[
        str, typer.Option(help="Model whose costs are measured (pagesim list models).")
    ] = "opt-13b",
    tensor_parallel_size: Annotated[int, typer.Option(help="Tensor parallel degree: 1.")] = 1,
    quick: Annotated[
        bool, typer.Option("--quick", help="Measure fewer points, each for a shorter time.")
    ] = False,
    block_sizes: Annotated[str, typer.Option(help="Comma-separated block sizes.")] = "16",
    kv_cache_dtype: Annotated[
        str,
        typer.Option(help="Data type of weights and cache on a GPU: fp16 or bf16; a CPU computes in fp32."),
    ] = "fp16",
    cuda_graphs: Annotated[
        bool, typer.Option("--cuda-graphs", help="Run iterations that only decode as CUDA graphs, on cuda.")
    ] = False,
    swap: Annotated[str, typer.Option(help="Swap strategy, one of pagesim bench swap.")] = "gather",
    seconds: Annotated[float | None, typer.Option(help="Seconds to measure each point.")] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
) -> None:
    """Measure what a model's iterations cost; write a profile.

    What is measured is kept beside OUT.json at once: the same command goes on where a killed one was.

    Example: pagesim calibrate --device cuda --model opt-13b --cuda-graphs opt-13b-h200.json
    """
    from pagesim.cli import show_profile
    from pagesim.device.calibration import calibrate
    from pagesim.kernels.bench import selection

    if target.suffix != ".json":
        raise PagesimError(f"OUT.json is {target}; it must end in .json, or no command would find it")
    if not target.absolute().parent.is_dir():
        raise PagesimError(f"{target}: cannot be written, {target.absolute().parent} is not a folder")
    check_file(target, "profile")
    journal = target.with_name(f"{target.stem}.rows")
    with show.bar() as progress:
        done = calibrate(
            model,
            device=selection.device(device),
            name=target.stem,
            tp=tensor_parallel_size,
            quick=quick,
            block_sizes=numbers("block_sizes", block_sizes),
            kv_dtype=kv_cache_dtype,
            cuda_graphs=cuda_graphs,
            swap=swap,
            seconds=seconds,
            seed=seed,
            journal=journal,
            progress=progress,
        )
    done.profile.save(target)
    # The profile holds every measurement now.
    for name in ("rows.jsonl", "rows.json", "rows.parquet"):
        (journal / name).unlink(missing_ok=True)
    with suppress(OSError):  # it holds something else
        journal.rmdir()
    show_profile.terms(done.profile)
    show.say_notes(done.profile.notes)
    before = f", {done.stored} were measured before" if done.stored else ""
    show.say(f"{done.measured} points measured{before}; profile {done.profile.name} written to {target}")


def numbers(option: str, text: str) -> tuple[int, ...]:
    """Return the whole numbers of a list with commas.

    Raises:
        PagesimError: one is none.
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise PagesimError(f"{option} is {text!r}; whole numbers separated by commas are needed") from None


def words(text: str) -> tuple[str, ...]:
    """Return the words of a list with commas."""
    return tuple(part.strip() for part in text.split(","))
