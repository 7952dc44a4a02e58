"""All commands of ``pagesim`` in one table, imported when they are called."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from pagesim.cli.groups import Entry, LazyCommands

TABLE = (
    Entry(
        "demo",
        "Compare five memory systems on a ShareGPT-like load.",
    ),
    Entry("run", "Replay a trace under one policy: its memory and latency."),
    Entry("compare", "Replay a trace under several policies, side by side."),
    Entry("cluster", "Replay a trace on several replicas behind a router."),
    Entry(
        "plan",
        "Plan a GPU's memory under vLLM, and how many requests fit.",
    ),
    Entry(
        "gallery",
        "Show where the memory of a full GPU goes, model by model.",
    ),
    Entry("report", "Write one HTML page about one or several results."),
    Entry(
        "tree",
        "Show the radix tree of a run at an instant.",
    ),
    Entry(
        "sweep",
        "Replay a scenario at every point of a grid.",
    ),
    Entry(
        "capacity",
        "Find the highest load at which each policy keeps its goals.",
    ),
    Entry(
        "live",
        "Run a trace on this machine's device: memory and latency.",
    ),
    Entry("calibrate", "Measure what a model's iterations cost; write a profile."),
    Entry(
        "validate",
        "Compare simulated runs with recorded or live ones.",
    ),
    Entry(
        "fit",
        "Fit a profile to the logs of a server's requests.",
    ),
    Entry(
        "golden",
        "Replay the golden logs and compare every iteration.",
    ),
    Entry(
        "reproduce",
        "Reproduce figures of the PagedAttention paper.",
    ),
    Entry("doctor", "Show what is installed and usable, and how to get the rest."),
    Entry("trace", "Describe, convert, fit and make traces."),
    Entry("bench", "Time the kernels on a GPU or the reference path on a CPU."),
    Entry(
        "profile",
        "Show, compare, check, import and rescale cost profiles.",
    ),
    Entry("ablate", "Ablate the block size, preemption, a tier or the engine."),
    Entry("list", "List policies, models, GPUs, workloads or profiles.", module="listing"),
)
"""All commands, in the order in which ``--help`` lists them."""


class Pagesim(LazyCommands):
    """The commands of ``pagesim``."""

    table = TABLE


cli = typer.Typer(
    name="pagesim",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its panels cut long flags short on a narrow terminal
)


def _show_version(asked: bool) -> None:
    """Print pagesim's version, and which releases of engines its policies are of."""
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
