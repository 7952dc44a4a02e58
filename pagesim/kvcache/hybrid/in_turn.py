"""Block managers that visit each decoding request only at steps at which one of its groups changes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from pagesim.kvcache.groups import KVGroup
from pagesim.kvcache.hybrid.turns import Turns
from pagesim.kvcache.sequence_group import SequenceGroup
from pagesim.kvcache.single import SingleSampleManager
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class InTurnManager(SingleSampleManager):
    """A block manager that serves decoding requests in turn.

    Each request first frees the blocks that its groups no longer need, then allocates, group by group.

    Args:
        num_blocks: blocks on the device.
        groups: the KV groups of the model.
        registers: whether to visit requests also when blocks of all groups end at their last known token,
            to cache these blocks.

    Attributes:
        changes: entries of `take_changes` since its last call, one per decode step that allocated or freed
            blocks: the step, the cached blocks, and `held_by_groups` after it.
    """

    def __init__(self, num_blocks: int, groups: Sequence[KVGroup], *, registers: bool = False) -> None:
        super().__init__(num_blocks, groups)
        self._turns = Turns(self.groups, registers=registers)
        self.changes: list[tuple[int, ...]] = []

    def steps_that_fit(self, steps: int, spare: int) -> int:
        if self.steps_in_flight and self._turns.begins(self.steps + 1):
            return 0  # a prompt is in flight: what is released does not follow from the length alone
        return super().steps_that_fit(steps, spare)

    def free_skipped_blocks(self, request: SequenceGroup) -> None:
        self._release_skipped(request, self.length(request) - request.inflight_tokens)
        self._count()

    def start_decoding(self, request: SequenceGroup) -> None:
        super().start_decoding(request)
        self._turns.enter(request, self.steps, self.steps_in_flight)

    def stop_decoding(self, request: SequenceGroup) -> None:
        super().stop_decoding(request)
        self._turns.leave(request)

    def allocate_step(self, steps: int = 1) -> int:
        self._check_room(self.blocks_needed(steps))
        due, serve, changes = self._turns.due, self._serve, self.changes
        for step in range(self.steps + 1, self.steps + steps + 1):
            requests = due(step)
            if requests:
                for request in requests:
                    serve(request, request.length_offset + step - 1)
                self._count()
                changes.append((step, self.cached_blocks, *self.held_by_groups()))
        self.steps += steps
        return 0

    def take_changes(self) -> Sequence[tuple[int, ...]]:
        changes, self.changes = self.changes, []
        return changes

    @abstractmethod
    def held_by_groups(self) -> Sequence[int]:
        """Return the distinct blocks that all requests together hold in each group."""

    # For subclasses

    @abstractmethod
    def _release_skipped(self, request: SequenceGroup, processed: int) -> None:
        """Free the blocks that no token after the first ``processed`` attends to."""

    @abstractmethod
    def _reach(self, request: SequenceGroup, length: int) -> None:
        """Allocate the blocks that a request lacks for ``length`` tokens; there is room for them."""

    def _count(self) -> None:
        """Update the counts of free, cached and shared blocks, if they are not kept up to date anyway."""
        return

    def _serve(self, request: SequenceGroup, before: int) -> None:
        """Release and allocate blocks for the next step of a request of ``before`` tokens."""
        self._release_skipped(request, before - request.inflight_tokens)
        request.inflight_tokens = self.steps_in_flight
        self._reach(request, before + 1)
