"""Output of ``pagesim plan`` for SGLang servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pagesim.cli import show
from pagesim.cli.printing import put_table
from pagesim.hardware.gpus import GIB

if TYPE_CHECKING:
    from pagesim.experiments.sglang_plan import SglangPlan


def show_sglang(found: SglangPlan) -> None:
    """Print how memory is divided, the pools, and the line that the engine logs."""
    rows = [(part.name, f"{part.bytes / GIB:,.2f}", part.known) for part in found.parts]
    title = f"Memory of each GPU: {found.system.model} on {found.system.gpu}"
    put_table(title, ("", "GiB", ""), rows, texts=(0, 2))
    show.say("SGLang 0.5.23: " + ", ".join(f"{name} {value}" for name, value in found.settled.items()))
    pools = [
        (name, f"{slots:,}", f"{size:,.0f}", f"{slots * size / GIB:,.2f}")
        for name, (slots, size) in found.pools.items()
    ]
    ranks = found.settled.get("attn_dp_size", 1)
    title = "Pools" if ranks == 1 else f"Pools of each of {ranks} ranks"
    put_table(title, ("", "slots", "bytes a slot", "GiB"), pools)
    for line in found.log:
        show.say(line)
