"""``pagesim profile``: show, compare, import and rescale profiles."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pagesim.cli import show, show_profile
from pagesim.cli.flags import JSON, OUT
from pagesim.cli.profile_import import cli as importing
from pagesim.costs.profiles import LAUNCH_S, find_profile
from pagesim.costs.profiles import rescale as carry
from pagesim.errors import PagesimError
from pagesim.hardware import gpu as gpu_of
from pagesim.models import model as model_of

cli = typer.Typer(
    help="Show, compare, import and rescale cost profiles.\n\n"
    "Example: pagesim profile show llama-2-7b-a100-tp1",
    no_args_is_help=True,
    rich_markup_mode=None,
)
cli.add_typer(importing, name="import")

PROFILE = Annotated[
    str,
    typer.Argument(metavar="PROFILE", help="A profile's name, or its JSON file."),
]
MODEL = Annotated[
    str,
    typer.Option(help="The model that an analytic profile is made for."),
]
TARGET = Annotated[Path, typer.Argument(metavar="OUT.json", help="File to write the profile to.")]


@cli.command("show")
def terms(*, profile: PROFILE, model: MODEL = "opt-13b", out: OUT = None, as_json: JSON = False) -> None:
    """Print a profile's terms, their sources and errors.

    With --out it draws them.

    Example: pagesim profile show analytic-h200 --model llama-3-8b
    """
    found = find_profile(profile, model=model_of(model))
    if as_json:
        show.as_json(found.model_dump(mode="json", by_alias=True))
        return
    if out is not None:
        from pagesim.results.plots import profile_fit

        show.put_figure(profile_fit(found), out, "profile")
    show_profile.terms(found)
    show.say_notes(found.notes)
    show.stored(out)


@cli.command("compare")
def compare(
    *,
    profiles: Annotated[
        list[str],
        typer.Argument(metavar="PROFILE…", help="Names or JSON files."),
    ],
    model: MODEL = "opt-13b",
) -> None:
    """Print the cost of typical iterations under several profiles.

    All profiles must be of one model.

    Example: pagesim profile compare analytic-a100-40gb analytic-h200
    """
    spec = model_of(model)
    found = {name: find_profile(name, model=spec) for name in profiles}
    of = {name: profile.model.name for name, profile in found.items()}
    if len(set(of.values())) > 1:
        each = ", ".join(f"{name} of {theirs}" for name, theirs in of.items())
        raise PagesimError(
            f"these are profiles of several models ({each}); --model chooses an analytic one's"
        )
    show_profile.compared(found)


@cli.command("rescale")
def rescale(
    *,
    profile: PROFILE,
    target: TARGET,
    model: Annotated[
        str | None, typer.Option(help="Model of the new profile. Defaults to the profile's.")
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(help="GPU of the new profile. Defaults to the profile's.")
    ] = None,
    tensor_parallel_size: Annotated[
        int | None,
        typer.Option(
            "--tensor-parallel-size",
            "--tp",
            help="Number of GPUs in a tensor-parallel group. Defaults to the profile's.",
            min=1,
        ),
    ] = None,
    launch_s: Annotated[
        float | None,
        typer.Option(
            help="Minimum seconds of a kernel; 0 for shares alone. Defaults to 4e-6.",
            min=0,
            max=1e-3,
        ),
    ] = None,
) -> None:
    """Rescale a profile to another model, GPU or GPU count.

    Each term keeps the fraction of the datasheet's rate that it achieved.

    Example: pagesim profile rescale a100.json h100.json --model llama-3-8b --gpu h100 --tp 4
    """
    old = find_profile(profile, model=model_of(model or "opt-13b"))
    if old.gpu is None:
        raise PagesimError(f"profile {old.name} names no GPU that is known: it cannot be rescaled")
    before = model_of(old.model.name)
    new = carry(
        old,
        before,
        gpu_of(old.gpu),
        model=model_of(model) if model else before,
        gpu=gpu_of(gpu or old.gpu),
        tp=tensor_parallel_size,
        name=target.stem,
        launch_s=LAUNCH_S if launch_s is None else launch_s,
    )
    new.save(target)
    show_profile.terms(new)
    show.say_notes(new.notes)
    show.say(f"profile {new.name} written to {target}")
