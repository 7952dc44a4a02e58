"""The compiled form: which modules mypyc can compile unchanged, and whether they are compiled."""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import TYPE_CHECKING

MODULES = (
    "accounting.group_residency",
    "accounting.held_without_running",
    "accounting.pass_recorder",
    "accounting.records",
    "accounting.request_log",
    "accounting.residency",
    "accounting.shared_tails",
    "costs.affine",
    "costs.lines",
    "costs.profiled",
    "eviction.arc",
    "eviction.cache",
    "eviction.frequency",
    "eviction.policy",
    "eviction.ranking",
    "eviction.recency",
    "eviction.retention",
    "eviction.s3fifo",
    "eviction.sieve",
    "kvcache.base",
    "kvcache.groups",
    "kvcache.sequence_group",
    "kvcache.hybrid.blocks",
    "kvcache.hybrid.in_turn",
    "kvcache.hybrid.families",
    "kvcache.hybrid.lookup",
    "kvcache.hybrid.state",
    "kvcache.hybrid.tabled",
    "kvcache.hybrid.turns",
    "kvcache.hybrid.windows",
    "kvcache.paged",
    "kvcache.paged_tables",
    "kvcache.prefix",
    "kvcache.prefix_tables",
    "kvcache.radix.eviction",
    "kvcache.radix.memory",
    "kvcache.radix.tree",
    "kvcache.ring",
    "kvcache.run_index",
    "kvcache.runs",
    "kvcache.single",
    "kvcache.tiers.chain_backing",
    "kvcache.tiers.chunks",
    "kvcache.tiers.counts",
    "kvcache.tiers.eviction",
    "kvcache.tiers.lru",
    "kvcache.tiers.never",
    "kvcache.tiers.spans",
    "kvcache.tiers.store",
    "scheduling.arrivals",
    "scheduling.batch",
    "scheduling.beams",
    "scheduling.content",
    "scheduling.continuous",
    "scheduling.core",
    "scheduling.forks",
    "scheduling.kv_connector",
    "scheduling.growth",
    "scheduling.observer",
    "scheduling.offload.chunking",
    "scheduling.offload.connector",
    "scheduling.offload.pending_reads",
    "scheduling.offload.jobs",
    "scheduling.offload.look_up",
    "scheduling.offload.on_device",
    "scheduling.offload.offloading",
    "scheduling.offload.tracked",
    "scheduling.queue",
    "scheduling.attention_spans",
    "scheduling.request",
    "scheduling.draining",
    "scheduling.sglang.adder",
    "scheduling.sglang.attention_group",
    "scheduling.sglang.batch",
    "scheduling.sglang.decode",
    "scheduling.sglang.delays",
    "scheduling.sglang.fast_forward",
    "scheduling.sglang.hicache",
    "scheduling.sglang.new_token_ratio",
    "scheduling.sglang.policy",
    "scheduling.sglang.pool",
    "scheduling.sglang.prefill",
    "scheduling.sglang.queue",
    "scheduling.sglang.recv_skipper",
    "scheduling.sglang.request",
    "scheduling.sglang.results",
    "scheduling.sglang.scheduler",
    "scheduling.sglang.speculation",
    "scheduling.sglang.states",
    "scheduling.swapping",
    "scheduling.traits",
    "scheduling.vllm_v0",
    "scheduling.vllm_v1.cadence",
    "scheduling.vllm_v1.kv_cache_manager",
    "scheduling.vllm_v1.lifecycle",
    "scheduling.vllm_v1.scheduler",
    "scheduling.vllm_v1.speculation",
    "sim.clock",
    "sim.copies",
    "sim.engine",
    "sim.executor",
    "sim.pipeline",
)
"""Modules compiled when pagesim is installed with ``PAGESIM_COMPILE=1``; ``setup.py`` reads this list."""

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:

    def mypyc_attr(**attributes):
        """Return a decorator that does nothing: mypyc reads the attributes of a class from the source."""
        return lambda kind: kind


def form() -> str:
    """Return, in words, whether the modules that can be compiled are compiled."""
    folder = Path(__file__).parents[1]
    compiled = 0
    for name in MODULES:
        path = folder / name.replace(".", "/")
        compiled += any(path.with_name(path.name + suffix).exists() for suffix in EXTENSION_SUFFIXES)
    if not compiled:
        return "pure Python; PAGESIM_COMPILE=1 pip install . compiles it"
    return f"compiled, {compiled} of {len(MODULES)} modules"
