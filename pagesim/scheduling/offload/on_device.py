"""Which chunks are also on the device, in blocks that requests hold or that prefix hits can find."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pagesim.kvcache import PrefixManager
from pagesim.kvcache.hybrid.blocks import NULL
from pagesim.kvcache.tiers import ChunkRun, Spans, segment, singles
from pagesim.scheduling.content import name_and_tokens
from pagesim.scheduling.offload.chunking import OffloadGroup, chunk_runs


def chunks_on_device(memory: Any, groups: Sequence[OffloadGroup]) -> list[ChunkRun]:
    """Return the chunks on the device, each once: those whose last block is there.

    Content is evicted from its end, so the preceding blocks are there, too, as far as any token attends to
    them. Without prefix caching, only the blocks of requests count.

    Args:
        memory: the device's block manager, with numbered blocks.
        groups: how each of its KV cache groups is divided into chunks.
    """
    found: Spans[bool] = Spans()
    for group in groups:
        for run in _of_group(memory, group):
            found.put(run, True)
    return [run for run, _ in found]


def _of_group(memory: Any, group: OffloadGroup) -> Iterator[ChunkRun]:
    number, size, blocks = group.number, group.tokens, group.blocks
    if memory.caches_prefixes:
        if isinstance(memory, PrefixManager):
            run: Any
            for run in memory.found_runs():
                # Chunks that end in one of these blocks.
                first, end = run.start, run.start + run.count
                yield from chunk_runs(run.content, group, first // blocks, end // blocks)
            return
        for key in memory.found_names(number):
            name, tokens = name_and_tokens(key)
            if tokens % size == 0:
                yield segment(name, size, number), tokens // size - 1, tokens // size
        return
    for request in memory.requests:
        table = memory.block_table(request, group=number)
        filled = (memory.length(request) - request.uncommitted_tokens) // size
        for chunk in singles(chunk_runs(request.content, group, 0, filled)):
            if table[chunk[2] * blocks - 1] != NULL:
                yield chunk
