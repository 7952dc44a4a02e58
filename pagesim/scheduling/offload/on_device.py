"""On the device: which chunks are there as well, in blocks that are held or can be found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pagesim.kvcache.hybrid.blocks import NULL
from pagesim.kvcache.tiers import ChunkRun, segment, singles
from pagesim.scheduling.content import name_and_tokens
from pagesim.scheduling.offload.chunking import OffloadGroup, chunk_runs


def chunks_on_device(memory: Any, groups: Sequence[OffloadGroup]) -> set[ChunkRun]:
    """Return the chunks, one by one, that the device has: those whose last block it has.

    Content is evicted from its end on, so that the blocks before that one are there, too, as far as any token
    attends to them. Without prefix caching only requests have blocks.

    Args:
        memory: of the device; its blocks have numbers.
        groups: how each of its KV groups is cut into chunks.
    """
    found: set[ChunkRun] = set()
    for group in groups:
        number, size = group.number, group.tokens
        if memory.caches_prefixes:
            for key in memory.found_names(number):
                name, tokens = name_and_tokens(key)
                if tokens % size == 0:
                    found.add((segment(name, size, number), tokens // size - 1, tokens // size))
            continue
        blocks = group.blocks
        for holder in memory.holders:
            table = memory.block_table(holder, group=number)
            filled = (memory.length(holder) - holder.unknown) // size
            runs = chunk_runs(holder.content, group, 0, filled)
            found.update(run for run in singles(runs) if table[run[2] * blocks - 1] != NULL)
    return found
