"""On the device: which chunks are there as well, in blocks that are held or can be found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pagesim.kvcache.hybrid.blocks import NULL
from pagesim.kvcache.tiers import ChunkKey
from pagesim.scheduling.content import tokens_of
from pagesim.scheduling.offload.chunking import OffloadGroup


def chunks_on_device(memory: Any, groups: Sequence[OffloadGroup]) -> set[ChunkKey]:
    """Return the chunks that the device has: those whose last block it has.

    Content is evicted from its end on, so that the blocks before that one are there, too, as far as any token
    attends to them. Without prefix caching only requests have blocks.

    Args:
        memory: of the device; its blocks have numbers.
        groups: how each of its KV groups is cut into chunks.
    """
    found: set[ChunkKey] = set()
    for group in groups:
        number, size = group.number, group.tokens
        if memory.caches_prefixes:
            names = [(tokens_of(name), number, name) for name in memory.found_names(number)]
            found.update(key for key in names if key[0] % size == 0)
            continue
        blocks = group.blocks
        for holder in memory.holders:
            table = memory.block_table(holder, group=number)
            chunks = (memory.length(holder) - holder.unknown) // size
            found.update(
                (end, number, holder.content.key_at(end))
                for chunk, end in enumerate(range(size, chunks * size + 1, size), 1)
                if table[chunk * blocks - 1] != NULL
            )
    return found
