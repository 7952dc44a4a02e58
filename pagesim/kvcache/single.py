"""What all memories share that release blocks before the end: they serve every sample as its own request."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from pagesim.kvcache.base import BlockManager, BlockManagerError
from pagesim.kvcache.groups import KVGroup
from pagesim.kvcache.holder import Holder
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class SingleSampleManager(BlockManager):
    """A block manager of single samples, whose groups release what no later token attends to.

    Args:
        num_blocks: on the device.
        groups: see `BlockManager`.

    Attributes:
        changes: what growth changed since they were last taken, see `BlockManager.take_changes`; for memory
            of which lengths do not tell what a group holds.
    """

    __slots__ = ("changes",)

    def __init__(self, num_blocks: int, groups: Sequence[KVGroup]) -> None:
        super().__init__(num_blocks, groups, shares=False)
        self.releases = self.is_hybrid = True
        self.is_plain = False
        self.changes: list[tuple[int, ...]] = []

    def extend(self, holder: Holder, tokens: int) -> None:
        self.free_skipped_blocks(holder)
        self._check_room(self.blocks_to_extend(holder, tokens))
        self._take_for(holder, holder.tokens + tokens)

    def append(self, holder: Holder) -> int:
        self.extend(holder, 1)
        return 0

    def start_decoding(self, holder: Holder) -> None:
        holder.base = holder.tokens - holder.growth * self.steps
        holder.decodes = True
        self._enter(holder)

    def stop_decoding(self, holder: Holder) -> None:
        holder.tokens = self.length(holder)
        self._rest(holder)

    def end_samples(self, holder: Holder, samples: Sequence[int]) -> None:
        self._refuse_samples()

    def take_changes(self) -> Sequence[tuple[int, ...]]:
        changes, self.changes = self.changes, []
        return changes

    # For subclasses

    @abstractmethod
    def _take_for(self, holder: Holder, length: int) -> None:
        """Take blocks for a resting holder of that length, which there are; it has so many tokens then."""

    @abstractmethod
    def _enter(self, holder: Holder) -> None:
        """Count a holder, which begins to decode, among those that do."""

    @abstractmethod
    def _leave(self, holder: Holder) -> None:
        """Count a decoding holder no longer among those that do."""

    def _rest(self, holder: Holder) -> None:
        """Let a holder decode no longer, if it does."""
        if holder.decodes:
            self._leave(holder)
            holder.decodes = False

    def _check_single(self, holder: Holder) -> None:
        if holder.samples > 1:
            self._refuse_samples()

    def _refuse_samples(self) -> None:
        raise BlockManagerError("memory of several KV groups serves every sample as a request of its own")
