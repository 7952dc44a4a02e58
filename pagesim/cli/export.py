"""``pagesim bench export``: block tables of replays, on which kernels are timed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RESULTS = Annotated[
    list[Path], typer.Argument(metavar="RESULT_DIR...", help="Folders that pagesim run wrote with --out.")
]
OUT = Annotated[Path, typer.Option("--out", metavar="DIR", help="Store the batches in this folder.")]
BATCHES = Annotated[
    int,
    typer.Option("--batches", help="Number of batches of each run, evenly over its time.", min=1, max=4096),
]


def command(results: RESULTS, *, out: OUT, batches: BATCHES = 16) -> None:
    """Write the block tables, lengths and slot mappings of stored runs for kernels to be timed on.

    Each run is replayed, and its batches at evenly spaced instants are written as an attention kernel gets
    them: fragmentation, skew and shared prefixes are those of the replay. Those of models with keys and
    values of several heads are written in FlashInfer's format of workloads, too.

    Example: pagesim bench export out/demo --out out/tables
    """
    from pagesim.cli import show
    from pagesim.results.kernel_workload import export_workload
    from pagesim.results.report.sources import find
    from pagesim.setup.files import check_target

    check_target(out, "workload")
    with show.doing("replaying"):
        counts = export_workload({s.name: s.result for s in find(results)}, out, batches)
    for name, count in counts.items():
        show.say(f"{out}: {count} batches of {name}")
