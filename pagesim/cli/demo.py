"""``pagesim demo``: the first comparison, with nothing to choose."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pagesim.cli import run

LOAD = {
    "trace": "sharegpt",
    "model": "opt-13b",
    "gpu": "a100-40gb",
    "policies": "contiguous-max,orca-max,orca-pow2,orca-oracle,vllm-sosp",
    "arrivals": "poisson",
    "rate": 2,
    "duration": 900,
}
"""The options of ``pagesim run`` that it stands for."""

OUT = Annotated[Path, typer.Option("--out", metavar="DIR", help="Store the result in this folder.")]


def command(*, out: OUT = Path("out/demo")) -> None:
    """Compare five memory systems on a ShareGPT-like load.

    It shows where the KV cache goes, and what that does to latency.

    Example: pagesim demo
    """
    from pagesim.cli import show

    flags = " ".join(f"--{name} {value}" for name, value in LOAD.items())
    show.say_notes((f"this is pagesim run {flags} --out {out}",))
    run.command(scenario=None, serve=None, out=out, json=False, trace_events=False, **LOAD)
