"""Sizes: what SGLang takes where memory decides it, and where the size of its cache came from, in words."""

from __future__ import annotations

from typing import Any

from pagesim.costs.specs import Capacity, divide_statically, gpu
from pagesim.costs.specs.gpus import GIB
from pagesim.scheduling.options import SchedulerOptions
from pagesim.scheduling.sglang import SglangOptions, most_running
from pagesim.setup.equip import static_memory
from pagesim.setup.presets import Policy
from pagesim.setup.scenario import System
from pagesim.setup.served import served_model


def static_sizes(
    system: System, policy: Policy, options: SchedulerOptions, sized: Capacity, max_model_len: int
) -> dict[str, Any]:
    """Return what SGLang runs with once its memory is divided, by option; empty for other engines.

    Args:
        system: what serves.
        policy: its parts.
        options: of its scheduler, resolved.
        sized: its memory.
        max_model_len: tokens of the longest request.
    """
    if not isinstance(options, SglangOptions):
        return {}
    shares = {name: value for name, value in static_memory(system, policy).items() if value is not None}
    running = most_running(options, sized.slots, max_model_len)
    page = "block_size" if system.page_size is None else "page_size"
    return {**shares, page: sized.block_size, "max_running_requests": running}


def static_notes(system: System, policy: Policy, sized: Capacity) -> tuple[str, ...]:
    """Return where the size of SGLang's cache came from; nothing where another rule sized it."""
    asked = static_memory(system, policy)
    if not asked:
        return ()
    share, most = asked["mem_fraction_static"], asked["max_total_tokens"]
    tp = system.tensor_parallel_size
    division = divide_statically(served_model(system), gpu(system.gpu), tp=tp, mem_fraction_static=share)
    cut = most is not None and sized.slots + sized.block_size > most
    limit = f", cut to max_total_tokens {most:,}" if cut else ""
    return (
        f"the cache holds {sized.slots:,} tokens: mem_fraction_static {share:g} of the "
        f"{division.requested / GIB:.2f} GiB that are estimated to be free on each GPU before weights are "
        f"loaded, less {division.weights / GIB:.2f} GiB of weights, is {division.cache / GIB:.2f} GiB, a "
        f"token takes {sized.block_bytes // sized.block_size:,} bytes there{limit}",
    )
