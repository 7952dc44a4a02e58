"""The lane of `ContinuousBatching`: prompts join those who decode, first come first served."""

from __future__ import annotations

from pagesim.accounting.records import Recorder
from pagesim.costs import CostModel
from pagesim.scheduling import ContinuousBatching, Preemptive
from pagesim.sim.express.lane import Lane


class ContinuousLane(Lane):
    """See `Lane`."""

    __slots__ = ("most_sequences", "most_tokens")

    spare = 1  # the rule asks for a free block even where nobody needs one

    def __init__(self, scheduler: Preemptive, recorder: Recorder, cost: CostModel, until: int) -> None:
        super().__init__(scheduler, recorder, cost, until)
        assert isinstance(scheduler, ContinuousBatching)
        self.most_sequences = scheduler.max_num_seqs
        self.most_tokens = scheduler.max_num_batched_tokens

    def _plan(self, now: int) -> list[int] | None:
        size, running = self.size, self.running
        lost: list[int] = []
        if not running:
            length = self._length(self._head())
            if -(-length // size) + self.watermark > self.free or length > self.most_tokens:
                return None  # nobody will ever make room for it
        left = self.free - self.due[(self.steps + 1) % size]
        if left <= 0 and running and not self._all_fit(left):
            if not self._first_fits():
                return None  # everybody would lose his memory, and somebody else might run at once
            while True:
                lost.append(self._preempt(now))
                left = self._left()
                if self._all_fit(left):
                    break
        self._grow(left)
        self.restless = False
        entered = []
        batched = self.decoding
        while self.waiting:
            if self.lost:
                index = self._head()
                length = self._length(index)
            else:
                index = self.fresh
                length = self.prompt[index]
            blocks = -(-length // size)
            fits = blocks + self.watermark <= self.free
            if lost and index in lost:
                # It may come back in the next iteration; if it does not fit now it will not fit then.
                self.restless = fits
                break
            tokens = batched + length
            if not fits or tokens > self.most_tokens or len(running) >= self.most_sequences:
                # The batch's tokens are fewer in the next iteration; memory and seats are not.
                self.restless = fits and tokens > self.most_tokens
                break
            batched = tokens
            self.pairs += length * (length + 1) // 2
            self._admit(index, length, blocks)
            entered.append(index)
        self.batched = self.tokens = batched
        self.context_tokens = self.context
        return entered

    def _first_fits(self) -> bool:
        """Say whether the first of those who run finds a free block once all others have lost theirs."""
        base, _, _ = next(iter(self.running.values()))
        held = base + self.steps
        free = self.memory.num_blocks - -(-held // self.size)
        return free > 0
