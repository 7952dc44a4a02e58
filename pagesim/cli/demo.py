"""``pagesim demo``: a first comparison that needs no options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pagesim.cli import run_command, show
from pagesim.setup.files import check_file

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

ALLOCATORS = {"contiguous max-length": "contiguous-max", "buddy": "orca-pow2", "paged": "vllm-sosp"}
"""The policies that the page plays, by what it calls them."""

WINDOW = (0.0, 900.0)
"""The seconds that it plays."""

OUT = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="Store the result in this folder, and a page beside it.")
]


def command(*, out: OUT = Path("out/demo")) -> None:
    """Compare five memory systems on a load like ShareGPT.

    It shows where the KV cache goes, and what that does to latency. DIR.html plays the memory of contiguous
    max-length, buddy and paged allocation over the same seconds, slot by slot.

    Example: pagesim demo
    """
    from pagesim.results.report import write_allocators_page

    page = out.with_name(f"{out.name}.html")
    check_file(page, "page")
    flags = " ".join(f"--{name} {value}" for name, value in LOAD.items())
    show.say_notes((f"this is pagesim run {flags} --out {out}",))
    run_command.command(scenario=None, serve=None, out=out, json=False, trace_events=False, **LOAD)
    folders = {name: out / policy for name, policy in ALLOCATORS.items()}
    with show.doing("reading") as progress:
        write_allocators_page(folders, page, window=WINDOW, progress=progress)
    show.say(f"{page}: {', '.join(ALLOCATORS)}, played side by side; open it in any browser")
