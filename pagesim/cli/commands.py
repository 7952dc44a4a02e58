"""All commands of ``pagesim`` in one table, imported when they are called."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from pagesim.cli.groups import Entry, LazyCommands

TABLE = (
    Entry(
        "demo",
        "Compare five systems on a ShareGPT-like load: where the KV cache goes, and "
        "what that does to latency.",
    ),
    Entry("run", "Replay a trace under one policy and show what became of memory and latency."),
    Entry("compare", "Replay a trace under several policies and show where the KV cache went under each."),
    Entry(
        "cluster", "Replay a trace on several replicas of a system and show how evenly the router loads them."
    ),
    Entry(
        "plan",
        "Say where a GPU's memory goes under vLLM and how many requests fit, before anything is served.",
    ),
    Entry(
        "gallery",
        "Show where all memory of a GPU goes under vLLM, model beside model, while requests wait for blocks.",
    ),
    Entry(
        "report", "Write one HTML page about one or several results; it opens from disk and fetches nothing."
    ),
    Entry(
        "tree",
        "Show the radix tree of a run at an instant: which prefixes are cached, who holds them, since when.",
    ),
    Entry(
        "sweep",
        "Replay a scenario at every point of a grid under several seeds, on all cores or on a Ray cluster.",
    ),
    Entry(
        "capacity",
        "Find, for each policy, the highest request rate that keeps every goal: "
        "by doubling, then by bisection.",
    ),
    Entry(
        "live",
        "Carry a trace out under one policy on this machine, and show what became of memory and latency.",
    ),
    Entry("calibrate", "Measure what iterations of a model cost here, part by part, and write a profile."),
    Entry(
        "validate",
        "Simulate runs that were recorded, or a trace that is run live, and report by how much "
        "the two differ.",
    ),
    Entry(
        "fit",
        "Fit what a server's iterations take to logs of its requests, and write a profile.",
    ),
    Entry(
        "golden",
        "Replay the golden logs' traces and compare every iteration and every request with the logs.",
    ),
    Entry(
        "reproduce",
        "Redraw figures of the PagedAttention paper with its numbers beside ours; "
        "write the document about them.",
    ),
    Entry("doctor", "Show what is installed, seen and usable here, and how to get what is not."),
    Entry("trace", "Look at, convert, fit and make traces."),
    Entry("bench", "Time the kernels on a GPU or the reference path on a CPU."),
    Entry(
        "profile",
        "Look at, compare, check, import and rescale profiles: what iterations cost, from measurements.",
    ),
    Entry("ablate", "What one choice is worth: the block size, how to preempt, a tier, or the engine."),
    Entry("list", "List what has a name: policies, models, GPUs, workloads or profiles.", module="listing"),
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
