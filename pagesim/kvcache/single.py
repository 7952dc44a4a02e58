"""What all memories share that release blocks before the end: they serve every sample as its own request."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from pagesim.kvcache.base import BlockManager, BlockManagerError
from pagesim.kvcache.groups import KVGroup
from pagesim.kvcache.sequence_group import SequenceGroup
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class SingleSampleManager(BlockManager):
    """A block manager of single samples, whose groups release what no later token attends to.

    Args:
        num_blocks: on the device.
        groups: the KV groups of the model.
    """

    __slots__ = ()

    def __init__(self, num_blocks: int, groups: Sequence[KVGroup]) -> None:
        super().__init__(num_blocks, groups, shares=False)
        self.releases = self.is_hybrid = True
        self.is_plain = False

    def extend(self, request: SequenceGroup, tokens: int) -> None:
        self.free_skipped_blocks(request)
        self._check_room(self.blocks_to_extend(request, tokens))
        self._take_for(request, request.tokens + tokens)

    # For subclasses

    @abstractmethod
    def _take_for(self, request: SequenceGroup, length: int) -> None:
        """Take blocks for a resting request of that length, which there are; it has so many tokens then."""

    def _check_single(self, request: SequenceGroup) -> None:
        if request.samples > 1:
            raise BlockManagerError("memory of several KV groups serves every sample as a request of its own")
