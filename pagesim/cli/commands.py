"""All commands of ``pagesim`` in one table; each is imported when it is called."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from pagesim.cli.groups import Entry, LazyCommands

TABLE = (
    Entry("demo", "Compare five memory systems on a load like ShareGPT."),
    Entry(
        "run",
        "Replay a trace on one system, on several, or on a cluster.",
        module="run_command",
    ),
    Entry("plan", "Plan a GPU's memory under vLLM or SGLang, and how many requests fit."),
    Entry("sweep", "Replay a scenario over a grid, or find its highest load."),
    Entry("ablate", "Ablate the block size, preemption, a tier or the engine."),
    Entry("cache", "Compare eviction policies on a trace, with the bound."),
    Entry("report", "Write one HTML page about one or several results."),
    Entry("trace", "Describe, convert, fit and make traces."),
    Entry("fit", "Fit a profile to the logs of a server's requests.", module="fit_command"),
    Entry("validate", "Compare simulated runs with recorded or live ones."),
    Entry("calibrate", "Measure what a system's operators cost; write a profile."),
    Entry("bench", "Time the kernels on a GPU or the reference path on a CPU."),
    Entry("profile", "Show, compare, import and rescale cost profiles."),
    Entry("list", "List policies, options, flags, models, GPUs and more.", module="listing"),
    Entry("doctor", "Show what is installed and usable, and how to get the rest."),
    Entry("reproduce", "Reproduce figures of the PagedAttention paper."),
    Entry("golden", "Replay the golden logs and compare every iteration."),
)
"""All commands, in the order in which ``--help`` lists them."""


class Pagesim(LazyCommands):
    """The commands of ``pagesim``."""

    table = TABLE


cli = typer.Typer(
    name="pagesim",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its panels cut long flags short on a narrow terminal
)


def _show_version(asked: bool) -> None:
    """Print pagesim's version and the engine releases that its policies follow."""
    if not asked:
        return
    from pagesim import __version__
    from pagesim.setup.presets import POLICIES

    print(f"pagesim {__version__}")
    for name, policy in POLICIES.items():
        engine = policy.sentence.partition(":")[0]
        if re.search(r" \d+\.\d+\.\d+", engine):
            print(f"{name}: {engine}")
    raise typer.Exit


VERSION = Annotated[
    bool,
    typer.Option(
        "--version",
        callback=_show_version,
        is_eager=True,
        help="Show the version and the known releases of engines, and exit.",
    ),
]


@cli.callback(cls=Pagesim)
def pagesim(version: VERSION = False) -> None:
    """Replay LLM serving traces through KV-cache memory systems and see where the memory goes.

    Example: pagesim demo
    """
