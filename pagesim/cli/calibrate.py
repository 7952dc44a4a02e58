"""``pagesim calibrate``: measure this machine's kernels, transfers and iterations for a profile."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel, Field

from pagesim.cli import show
from pagesim.cli.flags import SERVE, scenario_from, taken, with_fields
from pagesim.errors import PagesimError
from pagesim.setup.files import check_file
from pagesim.setup.scenario import Scenario
from pagesim.setup.system import System

TARGET = Annotated[Path, typer.Argument(metavar="OUT.json", help="File to write the profile to.")]

ASKED = ("model", "weight_dtype", "tensor_parallel_size", "kv_cache_dtype", "gpu", "seed")
"""Options of a system on which its operators depend, beside its engine's own."""


class How(BaseModel):
    """How to measure a system's operators; not part of the system."""

    device: str | None = Field(None, description="Device: cpu or cuda. Defaults to cuda where there is one.")
    quick: bool = Field(False, description="Measure fewer points, each for a shorter time.")
    block_sizes: str | None = Field(
        None, description="Comma-separated block sizes. Defaults to the system's, or 16."
    )
    cuda_graphs: bool = Field(False, description="Run iterations that only decode as CUDA graphs, on cuda.")
    swap: str = Field("gather", description="Swap strategy, one of pagesim bench swap.")
    seconds: float | None = Field(None, description="Seconds to measure each point.")


@with_fields({**{name: System.model_fields[name] for name in ASKED}, **How.model_fields}, engine=True)
def command(*, target: TARGET, serve: SERVE = None, flags: dict[str, Any]) -> None:
    """Measure what a system's operators cost; write a profile.

    The system is given as to pagesim run. What is measured is kept beside OUT.json at once: the same command
    goes on where a killed one was.

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
    how = taken(How, flags)
    served = None
    if serve is not None:
        from pagesim.setup.serve import read_serve

        served = read_serve(serve)
    system = scenario_from(Scenario, None, flags, served)
    journal = target.with_name(f"{target.stem}.rows")
    with show.bar() as progress:
        done = calibrate(
            system,
            device=selection.device(how.device),
            name=target.stem,
            quick=how.quick,
            block_sizes=() if how.block_sizes is None else numbers("block_sizes", how.block_sizes),
            cuda_graphs=how.cuda_graphs,
            swap=how.swap,
            seconds=how.seconds,
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
    """Return the integers of a comma-separated list.

    Raises:
        PagesimError: an entry is not an integer.
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise PagesimError(f"{option} is {text!r}; whole numbers separated by commas are needed") from None


def words(text: str) -> tuple[str, ...]:
    """Return the entries of a comma-separated list."""
    return tuple(part.strip() for part in text.split(","))
