"""The lane of `VllmV0`: an iteration is all prompts or all decodes, prompts first."""

from __future__ import annotations

from pagesim.accounting.records import Recorder, Status
from pagesim.costs import CostModel
from pagesim.scheduling import Preemptive, VllmV0
from pagesim.sim.express.lane import Lane


class VllmV0Lane(Lane):
    """See `Lane`."""

    __slots__ = ("most_padding", "most_sequences", "most_tokens", "prompt_limit", "release")

    preempted_first = True
    stalls = True
    spare = 1

    def __init__(self, scheduler: Preemptive, recorder: Recorder, cost: CostModel, until: int) -> None:
        super().__init__(scheduler, recorder, cost, until)
        assert isinstance(scheduler, VllmV0)
        self.release = scheduler.release
        self.most_sequences = scheduler.max_num_seqs
        self.most_tokens = scheduler.max_num_batched_tokens
        self.most_padding = scheduler.max_paddings
        self.prompt_limit = scheduler.prompt_limit

    def _plan(self, now: int) -> list[int] | None:
        entered = self._prefill(now) if self.waiting else []
        if entered is None or entered:
            self.restless = True  # what comes next is another batch of prompts, or their first step
            return entered
        left = self._left()
        while self.running and not self._all_fit(left):
            self._preempt(now)
            left = self._left()
        self._grow(left)
        self.restless = bool(self.preempted) and self._head_fits()
        return self._only_decode()

    def _prefill(self, now: int) -> list[int] | None:
        """Admit prompts, as many as the limits allow; None if what waits is not plain."""
        size, running, pads = self.size, self.running, self.release.pads
        entered: list[int] = []
        longest = tokens = batched = 0
        while self.waiting:
            index = self._head()
            length = self._length(index)
            if self._never(length):
                if not entered:
                    return None
                self._ignore(index, now)
                continue
            if -(-length // size) + self.watermark > self.free:
                if not running:
                    return None
                break
            width = max(longest, length)
            padded = (len(entered) + 1) * width if pads else tokens + length
            if len(running) >= self.most_sequences:
                break
            if padded > self.most_tokens or (pads and padded - tokens - length > self.most_padding):
                break
            longest, batched = width, padded
            tokens += length
            self.pairs += length * (length + 1) // 2
            self._admit(index, length, -(-length // size))
            entered.append(index)
        self.batched, self.tokens = batched, tokens
        self.context_tokens, self.decode_context, self.decoding = tokens, 0, 0
        return entered

    def _never(self, length: int) -> bool:
        """Say whether the real engine drops a prompt of this length."""
        if length > self.prompt_limit:
            return True
        return self.release.gives_up and -(-length // self.size) + self.watermark > self.memory.num_blocks

    def _ignore(self, index: int, now: int) -> None:
        if index == self.fresh:
            self.fresh += 1
        else:
            del self.lost[0]
            del self.lengths[index]
        self.waiting -= 1
        row = self.row[index]
        self.recorder.leave(row, now, Status.IGNORED)
        self.ignored.append(row)

    def _head_fits(self) -> bool:
        length = self._length(self._head())
        blocks = -(-length // self.size) + self.watermark
        return blocks <= self.free or blocks > self.memory.num_blocks or length > self.prompt_limit
