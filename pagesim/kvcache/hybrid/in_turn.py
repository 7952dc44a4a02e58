"""Memory that looks at decoding requests one by one, at the steps at which one of their groups changes."""

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
    """A block manager that serves requests in their turn.

    Each first gives back what its groups do not need any more, and then takes blocks, group by group.

    Args:
        num_blocks: on the device.
        groups: the KV groups of the model.
        registers: whether requests are looked at, too, when all blocks whose tokens are known end together,
            to make them findable.

    Attributes:
        changes: for each decode step in which blocks were taken or given back, since they were last handed
            over: the step, the cached blocks, and `held_by_groups` after it.
    """

    def __init__(self, num_blocks: int, groups: Sequence[KVGroup], *, registers: bool = False) -> None:
        super().__init__(num_blocks, groups)
        self._turns = Turns(self.groups, registers=registers)
        self.changes: list[tuple[int, ...]] = []

    def steps_that_fit(self, steps: int, spare: int) -> int:
        if self.steps_in_flight and self._turns.begins(self.steps + 1):
            return 0  # what is in flight is a prompt's: what is released follows no rule of the length
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
        """Return the distinct blocks that all requests together have in each group."""

    # For subclasses

    @abstractmethod
    def _release_skipped(self, request: SequenceGroup, processed: int) -> None:
        """Give back what no token attends to that comes after so many."""

    @abstractmethod
    def _reach(self, request: SequenceGroup, length: int) -> None:
        """Take the blocks that a request lacks to have so many tokens, for which there is room."""

    def _count(self) -> None:
        """Bring the counts of free, cached and shared blocks up to date, where they are not at once."""
        return

    def _serve(self, request: SequenceGroup, before: int) -> None:
        """Let a request of so many tokens release and take what its next step does."""
        self._release_skipped(request, before - request.inflight_tokens)
        request.inflight_tokens = self.steps_in_flight
        self._reach(request, before + 1)
