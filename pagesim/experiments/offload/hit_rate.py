"""Hit rate of one tier against its capacity, over the prompts of a trace, without a scheduler."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pagesim.errors import PagesimError
from pagesim.kvcache.tiers import (
    EVICTIONS,
    ChunkRun,
    ChunkStore,
    Future,
    RequestUse,
    segment,
    singles,
    within,
)
from pagesim.models import ModelSpec
from pagesim.scheduling.content import Contents
from pagesim.sizing.planning import host_copies
from pagesim.workloads.trace import Trace

__all__ = [
    "BOUND",
    "HitRate",
    "PromptChunks",
    "capacities_around",
    "chunk_bytes",
    "hit_rates",
    "hits_of",
    "prompt_chunks",
]

BOUND = "belady"
"""Beside the evictions, the bound that none exceeds."""

OFFERED_TOKENS = 8192
"""A prompt's chunks are offered as chunked prefill computes them: vLLM's default of tokens an iteration."""

PAGE = 4096
"""Bytes to whose multiple vLLM rounds a chunk of its tier up."""


@dataclass(frozen=True)
class PromptChunks:
    """The chunks of a trace's prompts.

    Attributes:
        runs: of each prompt, in token order: the chunks that it fills.
        chunks: that all prompts begin: of each, its tokens over those of a chunk, rounded up.
        tokens: of a chunk.
    """

    runs: tuple[tuple[ChunkRun, ...], ...]
    chunks: int
    tokens: int

    @cached_property
    def future(self) -> Future:
        """What is asked for, chunk by chunk."""
        return Future([singles(runs) for runs in self.runs])


@dataclass(frozen=True, slots=True)
class HitRate:
    """What a tier of one capacity had of the prompts.

    Attributes:
        eviction: its name, or `BOUND`.
        capacity: chunks.
        hits: chunks found; but under `BOUND` only those whose predecessors in the prompt were found, too.
        percent: hits in percent of the chunks that prompts began.
    """

    eviction: str
    capacity: int
    hits: int
    percent: float


def prompt_chunks(trace: Trace, tokens: int | None = None) -> PromptChunks:
    """Cut a trace's prompts into chunks, and name them so that equal prefixes have equal names.

    A last chunk that a prompt does not fill is never found, as in every real cache; it is counted.

    Args:
        trace: its prompts share what `Contents` says.
        tokens: of a chunk; those of a block of ``hash_ids`` (``hash_block_size``) when left out.

    Raises:
        PagesimError: the trace is empty, or ``tokens`` is below 1.
    """
    if not len(trace):
        raise PagesimError("the trace has no requests; a hit rate needs at least one")
    if tokens is None:
        tokens = trace.hash_block_size
    if tokens < 1:
        raise PagesimError(f"chunk_tokens is {tokens}; it must be at least 1")
    contents, runs = Contents(trace, np.arange(len(trace)), tokens), []
    for row, prompt in enumerate(trace.prompt_tokens.tolist()):
        parts = contents.of(row).named(0, prompt)
        found = [(segment(name, tokens), first // tokens, end // tokens) for name, first, end in parts]
        runs.append(tuple(run for run in found if run[1] < run[2]))
    return PromptChunks(tuple(runs), int((-(-trace.prompt_tokens // tokens)).sum()), tokens)


def chunk_bytes(model: ModelSpec, tokens: int, *, kv_dtype: str = "fp16", tp: int = 1) -> int:
    """Return the bytes of a chunk of so many tokens in a tier, those of all GPUs that differ together."""
    held = model.kv_bytes_per_token(kv_dtype, tp) * host_copies(model.cache_layers, tp) * tokens
    return -(-held // PAGE) * PAGE


def capacities_around(future: Future, chunk: int) -> list[int]:
    """Return capacities in chunks, each twice the last, from far below the working set to all content.

    Args:
        future: of the prompts.
        chunk: its bytes; a capacity is as many chunks as fill a power of two of MiB at most.
    """
    least, most = max(1, future.working_set // 64), future.distinct
    found = [1 << power for power in range(20, 63) if least <= (1 << power) // chunk < 2 * most]
    return sorted({size // chunk for size in found})


def hits_of(store: ChunkStore, prompts: PromptChunks) -> int:
    """Serve prompts one after another from a store, and return how many of their chunks were found there.

    A prompt hits as far as its chunks are there from the first on. It reads these, offers all as it is
    computed, and is over before the next one comes.
    """
    hits, offered = 0, max(1, OFFERED_TOKENS // prompts.tokens)
    for runs in prompts.runs:
        use = RequestUse()
        found = _leading(store, runs)
        hits += sum(end - first for _, first, end in found)
        store.pin(use, found)
        store.unpin(found)
        filled = runs[-1][2] if runs else 0
        for first in range(0, filled, offered):
            store.written(store.offer(use, within(runs, first, first + offered)) or ())
        store.finish(use)
    return hits


def _leading(store: ChunkStore, runs: Sequence[ChunkRun]) -> list[ChunkRun]:
    """Return the leading chunks of a prompt that a store has."""
    found: list[ChunkRun] = []
    for run in runs:
        for first, end, readers in store.cut(run):
            if readers is None:
                return found
            found.append((run[0], first, end))
    return found


def hit_rates(
    prompts: PromptChunks, capacities: Sequence[int], evictions: Sequence[str]
) -> Iterator[HitRate]:
    """Yield the hit rate at each capacity, in chunks, under each of `EVICTIONS` that is named, and the bound.

    Args:
        prompts: in their order.
        capacities: chunks.
        evictions: names.

    Raises:
        PagesimError: there is no such eviction.
    """
    for name in evictions:
        if name not in EVICTIONS:
            raise PagesimError(f"eviction is {name!r}; it must be one of {', '.join(EVICTIONS)}")
    for capacity in capacities:
        for name in (*evictions, BOUND):
            if name == BOUND:
                hits = prompts.future.hits(capacity)
            else:
                hits = hits_of(ChunkStore(capacity, EVICTIONS[name](capacity)), prompts)
            yield HitRate(name, capacity, hits, 100 * hits / prompts.chunks)
