"""Block managers that serve every sample as its own request and count their allocations in one ring."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from math import lcm

from pagesim.kvcache.base import BlockManager
from pagesim.kvcache.groups import KVGroup
from pagesim.kvcache.ring import Ring
from pagesim.kvcache.sequence_group import SequenceGroup
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class SingleSampleManager(BlockManager):
    """A block manager for single samples that counts in one `Ring` what they allocate while decoding.

    Args:
        num_blocks: blocks on the device.
        groups: the KV groups of the model.
        cpu_blocks: blocks of the swap space.
        releases: whether groups may release blocks that no later token attends to.
    """

    __slots__ = ("_sizes", "_takes")

    def __init__(
        self, num_blocks: int, groups: Sequence[KVGroup], cpu_blocks: int = 0, *, releases: bool = True
    ) -> None:
        super().__init__(num_blocks, groups, cpu_blocks, shares=False)
        self.releases = self.is_hybrid = releases
        self.is_plain = not releases
        sizes = Counter([group.block_size for group in self.groups if not group.is_one_block])
        self._sizes = tuple(sizes.items())  # (tokens per block, number of groups)
        self._takes = Ring(lcm(*sizes))  # blocks that decoding requests allocate

    def blocks_needed(self, steps: int = 1) -> int:
        return self._takes.total(self.steps, steps)

    def steps_that_fit(self, steps: int, spare: int) -> int:
        return self._takes.steps_that_fit(self.steps, steps, self.free_blocks - spare)

    def start_decoding(self, request: SequenceGroup) -> None:
        super().start_decoding(request)
        self._enter_ring(request, 1)

    def stop_decoding(self, request: SequenceGroup) -> None:
        super().stop_decoding(request)
        self._enter_ring(request, -1)

    def extend(self, request: SequenceGroup, tokens: int) -> None:
        self.free_skipped_blocks(request)
        self._check_room(self.blocks_to_extend(request, tokens))
        self._take_for(request, request.tokens + tokens)

    # For subclasses

    def _enter_ring(self, request: SequenceGroup, times: int) -> None:
        """Add what a request allocates while decoding to the ring; ``times`` -1 removes it."""
        for size, groups in self._sizes:
            self._takes.enter(request.length_offset, times * groups, size)

    @abstractmethod
    def _take_for(self, request: SequenceGroup, length: int) -> None:
        """Extend a resting request to ``length`` tokens, allocating its blocks; enough are free."""
