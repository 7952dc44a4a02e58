"""The lane of `VllmV1`: prompts in chunks and decodes share a budget of tokens."""

from __future__ import annotations

from bisect import insort

from pagesim.accounting.records import Recorder
from pagesim.costs import CostModel, IterationShape
from pagesim.scheduling import Group, Preemptive, VllmV1
from pagesim.sim.express.lane import Lane, new_tuple


class VllmV1Lane(Lane):
    """See `Lane`. Prompts may run in chunks, as long as these come last and there is room for them.

    Attributes:
        chunks: by index in the order of admission, how much has run of prompts that have not run whole.
        targets: how much there is to run of them.
        completed: requests whose prompt's last chunk runs in the iteration at hand.
    """

    __slots__ = (
        "chunks",
        "completed",
        "full_isl",
        "most_sequences",
        "most_tokens",
        "spares_single",
        "targets",
        "threshold",
    )

    preempted_first = True

    def __init__(self, scheduler: Preemptive, recorder: Recorder, cost: CostModel, until: int) -> None:
        super().__init__(scheduler, recorder, cost, until)
        assert isinstance(scheduler, VllmV1)
        self.full_isl = scheduler.full_isl
        self.most_sequences = scheduler.max_num_seqs
        self.most_tokens = scheduler.max_num_batched_tokens
        self.threshold = scheduler.threshold
        self.spares_single = scheduler.release.spares_single
        self.chunks: dict[int, int] = {}
        self.targets: dict[int, int] = {}
        self.completed: list[int] = []

    @classmethod
    def carries(cls, scheduler: Preemptive) -> bool:
        assert isinstance(scheduler, VllmV1)
        return scheduler.chunked_prefill and super().carries(scheduler)

    # As `Lane`

    def give_back(self, index: int) -> Group:
        if index not in self.chunks:
            return super().give_back(index)
        group = self.scheduler.queue.group_of(index)
        group.base, _, _ = self.running[index]
        group.length, group.computed = self.targets.pop(index), self.chunks.pop(index)
        self.scheduler.readmit(group)
        return group

    def _plan(self, now: int) -> list[int] | None:
        running, chunks = self.running, self.chunks
        decoding = len(running) - len(chunks)
        budget = self.most_tokens - decoding
        room = self._left()
        shares = self._share_out(budget, room) if chunks else []
        if shares is None or budget < 0:
            return None
        self.completed = []
        if room < 0:
            return self._make_room(now)
        if not running and self._joining(self._head(), budget) is None:
            return None  # nobody will ever make room for it
        self._step()
        self.context += decoding
        self.decoding = self.batched = decoding
        self.decode_context = self.context - sum(chunks.values())
        self.restless = False
        for index, tokens in shares:
            self._go_on(index, tokens)
        entered = self._admit_all() if self.waiting else []
        if chunks:
            self.restless = True
        self.tokens, self.context_tokens = self.batched, self.context
        return entered

    def _iterate(self, now: int, entered: list[int]) -> int:
        recorder, chunks, completed, decoding = self.recorder, self.chunks, self.completed, self.decoding
        if entered or completed or chunks:
            whole = len(entered) + len(completed)
            if chunks:
                whole -= sum([index in chunks for index in entered])
            # fmt: off
            shape = new_tuple(IterationShape, (
                self.batched, self.tokens, self.context_tokens, self.decode_context, self.pairs,
                0, 0, 0, decoding, decoding + whole, False,
            ))
            # fmt: on
            ticks = self.cost.iteration(shape)
            first_scheduled, first_token, end = recorder.first_scheduled, recorder.first_token, now + ticks
            for index in entered:
                row = self.row[index]
                is_first = first_scheduled[row] < 0
                if is_first:
                    first_scheduled[row] = now
                if index in chunks:
                    continue
                if is_first:
                    first_token[row] = end
                else:
                    recorder.join(row, now, end)
            for index in completed:
                recorder.join(self.row[index], now, end)
        else:
            ticks = self.decode(decoding, self.context_tokens)[0] if decoding else 0
        return self._leap(now, ticks, decoding)

    # What memory takes part in

    def _step(self) -> None:
        """Give everybody who decodes room for the token sampled last."""
        self.steps += 1
        self.free -= self.due[self.steps % self.size]

    def _make_room(self, now: int) -> list[int]:
        """Preempt from the end until everybody else finds his block; see `Lane._plan`."""
        while self._left() < 0:
            self._preempt(now)
        self._grow(self._left())
        self.restless = self._joining(self._head(), 1) is not None
        return self._only_decode()

    def _joining(self, index: int, budget: int) -> tuple[int, int] | None:
        """Return the tokens of the head that are found, and those that run now; None if it does not fit."""
        length = self._length(index)
        tokens = self._capped(length, budget)
        spare = self.watermark if self.running else 0
        if -(-(length if self.full_isl else tokens) // self.size) + spare > self.free:
            return None
        return 0, tokens

    def _hold(self, index: int, found: int, tokens: int) -> None:
        """Take the blocks of a prompt's first chunk."""
        self.free -= -(-tokens // self.size)

    def _extend(self, index: int, computed: int, tokens: int) -> None:
        """Take the blocks of its next chunk."""
        self.free -= -(-(computed + tokens) // self.size) - -(-computed // self.size)

    def _start_growing(self, index: int, base: int) -> None:
        """From now on it takes its blocks token by token."""
        at = (1 - base) % self.size
        self.due[at] += 1
        self.due[at + self.size] += 1

    # Inside

    def _capped(self, tokens: int, budget: int) -> int:
        if self.threshold and not (self.spares_single and len(self.running) + self.waiting == 1):
            tokens = min(tokens, self.threshold)
        return tokens if tokens < budget else budget

    def _share_out(self, budget: int, room: int) -> list[tuple[int, int]] | None:
        """Return the tokens for everybody in chunks; None if they do not come last or something is short."""
        size, shares = self.size, []
        for index, other in zip(reversed(self.running), reversed(self.chunks), strict=False):
            if index != other:
                return None
        for index, computed in self.chunks.items():
            tokens = self._capped(self.targets[index] - computed, budget)
            if tokens <= 0:
                return None
            budget -= tokens
            room -= -(-(computed + tokens) // size) - -(-computed // size)
            shares.append((index, tokens))
        return None if room < 0 else shares

    def _go_on(self, index: int, tokens: int) -> None:
        """Run the next chunk of a prompt."""
        base, first, last = self.running[index]
        now, computed = self.recorder.iterations, self.chunks[index]
        if first != now:
            self._stays.fromlist([first, now - 1, base, base + last + 1])
        self._extend(index, computed, tokens)
        self._compute(index, self.targets[index], computed, tokens)
        if index not in self.chunks:
            self.completed.append(index)

    def _admit_all(self) -> list[int]:
        """Let those join whose turn it is, as far as budget and room go; return who they are."""
        entered: list[int] = []
        while self.waiting:
            budget = self.most_tokens - self.batched
            if budget <= 0:
                self.restless = True
                break
            if len(self.running) >= self.most_sequences:
                break
            index = self._head()
            joining = self._joining(index, budget)
            if joining is None:
                break
            found, tokens = joining
            length = self._length(index)
            self._hold(index, found, tokens)
            self._dequeue(index)
            self.context += found
            self._compute(index, length, found, tokens)
            entered.append(index)
        return entered

    def _compute(self, index: int, length: int, computed: int, tokens: int) -> None:
        """Run a chunk for which there is room."""
        self.batched += tokens
        self.pairs += tokens * computed + tokens * (tokens + 1) // 2
        self.context += tokens
        computed += tokens
        base = computed - self.steps
        last = self.prompt[index] + self.output[index] - base - 1
        self.running[index] = base, self.recorder.iterations, last
        if computed < length:
            self.chunks[index] = computed
            self.targets[index] = length
            return
        if index in self.chunks:
            del self.chunks[index]
            del self.targets[index]
        self._start_growing(index, base)
        insort(self.ending, (-last, index))
