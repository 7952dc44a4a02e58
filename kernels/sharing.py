"""Which sequences of a batch begin with the same blocks, as shared-prefix (cascade) attention takes it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pagesim.errors import PagesimError
from pagesim.kernels.cache import Cache
from pagesim.kernels.checks import bounds_are_checked, check_cache, check_contexts

Sharers = tuple[Sequence[int], int]
"""Rows of a batch, and how many blocks they all begin with."""


class SharedPrefixes:
    """A batch of which groups of sequences begin with the same blocks; made once a step, for all layers.

    Args:
        cache: whose blocks.
        block_table: int32 ``[batch, max_blocks]``.
        context_lens: int32 ``[batch]``.
        groups: for each group its rows and the number of whole blocks that all of them begin with. A row
            stands in one group at most; those in none share nothing.

    Attributes:
        block_table: as given.
        context_lens: as given.
        members: int64 ``[groups, members]``, the rows of each group, the last again where it has fewer.
        places: int32 ``[batch]``, ``group * members + member`` of each row, or -1.
        shared_tables: int32 ``[groups, blocks]``.
        shared_lens: int32 ``[groups]``, tokens.
        own_tables: int32 ``[batch, max_blocks]``, each row without the blocks that it shares.
        own_lens: int32 ``[batch]``, tokens beyond those.

    Raises:
        PagesimError: an argument is off, or rows of a group do not begin with the same blocks.
    """

    def __init__(
        self, cache: Cache, block_table: Tensor, context_lens: Tensor, groups: Sequence[Sharers]
    ) -> None:
        check_cache(cache, Cache, paged=True)
        batch, device = len(context_lens), cache.device
        check_contexts(batch, block_table, context_lens, cache.sizes, device)
        blocks = _check_groups(groups, batch, block_table.shape[1])
        self.block_table, self.context_lens = block_table, context_lens
        widest = max(len(rows) for rows, _ in groups)
        members = [[*rows, *[rows[-1]] * (widest - len(rows))] for rows, _ in groups]
        places = [-1] * batch
        shared = [0] * batch
        for group, (rows, count) in enumerate(groups):
            for member, row in enumerate(rows):
                places[row], shared[row] = group * widest + member, count
        self.members = torch.tensor(members, device=device)
        self.places = torch.tensor(places, dtype=torch.int32, device=device)
        size = cache.sizes.block_size
        self.shared_lens = torch.tensor([count * size for count in blocks], dtype=torch.int32, device=device)
        self.shared_tables = block_table[self.members[:, 0], : max(blocks)].contiguous()
        before = torch.tensor(shared, dtype=torch.int32, device=device)
        self.own_lens = context_lens - before * size
        last = block_table.shape[1] - 1
        column = torch.arange(last + 1, device=device) + before[:, None]
        self.own_tables = block_table.gather(1, column.clamp_max(last).long())
        self._check_blocks(groups, size)

    def gather_queries(self, q: Tensor, kv_heads: int) -> Tensor:
        """Return the queries of each group as those of one sequence: its KV head's query heads side by side.

        Args:
            q: ``[batch, q_heads, D]``.
            kv_heads: of the cache.

        Returns:
            ``[groups, kv_heads * members * (q_heads // kv_heads), D]``.
        """
        q_heads = q.shape[1]
        heads = torch.arange(q_heads, device=q.device).view(kv_heads, 1, -1)
        rows = self.members[:, None, :, None] * q_heads + heads  # [groups, kv_heads, members, GROUP]
        return q.reshape(-1, q.shape[-1])[rows.flatten()].view(len(rows), -1, q.shape[-1])

    def _check_blocks(self, groups: Sequence[Sharers], size: int) -> None:
        if not bounds_are_checked(self.block_table):
            return
        for group, (rows, count) in enumerate(groups):
            for row in rows:
                length = int(self.context_lens[row])
                if length < count * size:
                    raise PagesimError(
                        f"groups[{group}] shares {count} blocks of {size} tokens; context_lens[{row}] is"
                        f" {length}, at least {count * size} is needed"
                    )
                if not torch.equal(self.block_table[row, :count], self.block_table[rows[0], :count]):
                    raise PagesimError(
                        f"groups[{group}] shares {count} blocks; block_table[{row}] begins with others than"
                        f" block_table[{rows[0]}]"
                    )


def _check_groups(groups: Sequence[Sharers], batch: int, width: int) -> list[int]:
    """Return the blocks that each group shares."""
    if not groups:
        raise PagesimError("groups is empty; at least one group is needed, or decode_attention")
    seen: set[int] = set()
    for group, (rows, count) in enumerate(groups):
        if not rows:
            raise PagesimError(f"groups[{group}] has no rows; at least one is needed")
        if not 1 <= count <= width:
            raise PagesimError(
                f"groups[{group}] shares {count} blocks; 1 to {width} are allowed, as block_table is wide"
            )
        for row in rows:
            if not 0 <= row < batch:
                raise PagesimError(f"groups[{group}] holds row {row}; 0 to {batch - 1} is allowed")
            if row in seen:
                raise PagesimError(f"groups[{group}] holds row {row} again; a row is in one group at most")
            seen.add(row)
    return [count for _, count in groups]
