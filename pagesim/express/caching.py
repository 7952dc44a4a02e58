"""The lane of `VllmV1` with prefix caching: memory is the cache's own, prompts may run in chunks."""

from __future__ import annotations

from heapq import heappop, heappush

from pagesim.cost import CostModel, IterationShape
from pagesim.express.lane import NOBODY, Lane
from pagesim.express.notes import CACHING_FIELDS
from pagesim.memory import PrefixCachingAllocator
from pagesim.records import LEAP_FIELDS, Recorder, Status
from pagesim.scheduling import Group, Preemptive, VllmV1


class CachingLane(Lane):
    """See `Lane`. What is found and lost in the cache no number stands for, so blocks are held in memory.

    It decides as long as there is room for everybody who runs, and prompts in chunks come last.

    Attributes:
        groups: of those who run, and of those who wait and were looked at, by index.
        chunks: by index in the order of admission, how much has run of prompts that have not run whole.
        completed: requests whose prompt's last chunk runs in the iteration at hand.
        answering: the sequence of everybody who runs, by the name of what it generates.
    """

    __slots__ = (
        "answering",
        "cache",
        "chunks",
        "completed",
        "full_isl",
        "groups",
        "most_sequences",
        "spares_single",
        "threshold",
    )

    preempted_first = True
    counts_memory = False
    fields = CACHING_FIELDS

    def __init__(self, scheduler: Preemptive, recorder: Recorder, cost: CostModel, until: int) -> None:
        super().__init__(scheduler, recorder, cost, until)
        assert isinstance(scheduler, VllmV1)
        assert isinstance(scheduler.memory, PrefixCachingAllocator)
        self.cache = scheduler.memory
        self.due = self.cache.due
        self.full_isl = scheduler.full_isl
        self.most_sequences = scheduler.max_num_seqs
        self.most_decoding = scheduler.max_num_batched_tokens
        self.threshold = scheduler.threshold
        self.spares_single = scheduler.release.spares_single
        self.groups: dict[int, Group] = {}
        self.chunks: dict[int, int] = {}
        self.completed: list[int] = []
        self.answering: dict[int, int] = {}

    @classmethod
    def carries(cls, scheduler: Preemptive) -> bool:
        assert isinstance(scheduler, VllmV1)
        return (
            type(scheduler.memory) is PrefixCachingAllocator
            and scheduler.queue.arrivals.widest == 1
            and scheduler.chunked_prefill
        )

    # As `Lane`

    def begin(self, now: int) -> int:
        ticks = super().begin(now)
        if ticks >= 0 and self.lead:
            self._note_cache()
        return ticks

    def end(self, now: int) -> list[int]:
        recorder, running, heap = self.recorder, self.running, self.heap
        steps = self.lead + self.ahead[0]
        if steps:
            self.cache.grow(steps)
            self.steps += steps
            self.context += steps * len(running)
            self.free = self.cache.free_blocks
        self._decisions.fromlist(self._decision)
        recorder.iterations += 1 + self.ahead[0]
        if not heap or heap[0] > self.steps:
            return NOBODY
        over: list[int] = []
        while heap and heap[0] <= self.steps:
            over += self.ends.pop(heappop(heap), ())
        if len(over) > 1:
            place = {index: number for number, index in enumerate(running)}
            over.sort(key=lambda index: (self.ticks[index], place[index]))
        rows = []
        for index in over:
            base, first, last = running.pop(index)
            held = base + last
            self.context -= held
            group = self.groups.pop(index)
            assert group.content is not None
            self.cache.free(group.sequences[0])
            del self.answering[group.content.answer]
            self._stays.fromlist([first, recorder.iterations - 1, base, held + 1])
            recorder.finish[group.row] = now
            recorder.status[group.row] = Status.FINISHED
            rows.append(group.row)
        self.free = self.cache.free_blocks
        return rows

    def borrow(self, index: int, group: Group) -> None:
        super().borrow(index, group)
        assert group.content is not None
        self.groups[index] = group
        self.answering[group.content.answer] = group.sequences[0]

    def give_back(self, index: int) -> Group:
        group = self.groups.pop(index)
        assert group.content is not None
        del self.answering[group.content.answer]
        group.base, _, group.last_step = self.running[index]
        group.computed = self.chunks.pop(index, group.length)
        self.scheduler.readmit(group)
        return group

    def keep(self, index: int, group: Group) -> None:
        self.groups[index] = group

    def kept(self, index: int) -> Group | None:
        return self.groups.pop(index, None)

    def _plan(self, now: int) -> list[int] | None:
        cache, running, chunks = self.cache, self.running, self.chunks
        if not running and self._joining(self._group(self._head()), self.most_decoding) is None:
            return None  # nobody will ever make room for it
        decoding = len(running) - len(chunks)
        shares = self._share_out(self.most_decoding - decoding)
        if shares is None:
            return None
        cache.grow(1)
        self.steps += 1
        self.context += decoding
        self.decoding = self.batched = decoding
        self.decode_context = self.context - sum(chunks.values())
        self.restless = False
        self.completed = []
        for index, tokens in shares:
            self._go_on(index, tokens)
        entered = self._admit_all(now)
        if chunks:
            self.restless = True
        self.tokens, self.context_tokens = self.batched, self.context
        self.free = cache.free_blocks
        return entered

    def _iterate(self, now: int, entered: list[int]) -> int:
        sequences, recorder, chunks, decoding = len(self.running), self.recorder, self.chunks, self.decoding
        if len(self.completed) + len(entered) + len(chunks):
            whole = self.completed + [index for index in entered if index not in chunks]
            ticks = self.cost.iteration(
                IterationShape(
                    *(self.batched, self.tokens, self.context_tokens, self.decode_context, self.pairs),
                    *(0, 0, 0, decoding, decoding + len(whole)),
                )
            )
            for index in whole:
                recorder.join(self.row[index], now, now + ticks)
        else:
            ticks = self.decode(sequences, self.context_tokens)[0]
        self.lead = 0
        self.ahead_start = now + ticks
        self.ahead = ahead = self._stretch(now + ticks)
        self._decision = [
            *(now, ticks, self.steps, sequences, self.waiting, self.free),
            *(self.batched, self.tokens, self.context_tokens, self.preempted, decoding),
            *ahead,
        ]
        self._note_cache()
        return ticks + self.span if ahead[0] else ticks

    # Inside

    def _note_cache(self) -> None:
        """Add to what is written down what the cache holds in the first iteration of it."""
        end = -len(LEAP_FIELDS)
        self._decision[end:end] = self.cache.accounts(self.lead)[2:]

    def _group(self, index: int) -> Group:
        """Return the group of a request that waits."""
        group = self.groups.get(index)
        if group is None:
            group = self.groups[index] = self.scheduler.queue.group_of(index)
        return group

    def _capped(self, tokens: int, budget: int) -> int:
        if self.threshold and not (self.spares_single and len(self.running) + self.waiting == 1):
            tokens = min(tokens, self.threshold)
        return min(tokens, budget)

    def _share_out(self, budget: int) -> list[tuple[int, int]] | None:
        """Return the tokens for everybody in chunks; None if they do not come last or something is short."""
        shares = []
        size, blocks = self.size, self.cache.demand(1)
        if self.chunks:
            for index, other in zip(reversed(self.running), reversed(self.chunks), strict=False):
                if index != other:
                    return None
            for index, computed in self.chunks.items():
                tokens = self._capped(self.groups[index].length - computed, budget)
                if tokens <= 0:
                    return None
                budget -= tokens
                blocks += -(-(computed + tokens) // size) - -(-computed // size)
                shares.append((index, tokens))
        return None if budget < 0 or blocks > self.cache.free_blocks else shares

    def _go_on(self, index: int, tokens: int) -> None:
        """Run the next chunk of a prompt."""
        base, first, last = self.running[index]
        group, now = self.groups[index], self.recorder.iterations
        if first != now:
            self._stays.fromlist([first, now - 1, base, base + last + 1])
        self.cache.extend(group.sequences[0], tokens)
        if self._compute(index, group, self.chunks[index], tokens):
            self.completed.append(index)

    def _joining(self, group: Group, budget: int) -> tuple[int, int] | None:
        """Return the blocks of a prompt that are found, and the tokens that run; None if it does not fit."""
        content, cache = group.content, self.cache
        assert content is not None
        for name in content.follows:
            before = self.answering.get(name)
            if before is not None:
                # The round before is still being answered: what it fills can be found as it goes on.
                cache.publish(before)
                self.restless = True
        hits = cache.hits(content, group.length)
        found = hits * self.size
        tokens = self._capped(group.length - found, budget)
        wanted = group.length if self.full_isl else found + tokens
        spare = self.watermark if self.running else 0
        if cache.blocks_wanted(content, hits, wanted) + spare > cache.free_blocks:
            return None
        return hits, tokens

    def _admit_all(self, now: int) -> list[int]:
        """Let those join whose turn it is, as far as budget and room go; return who they are."""
        recorder, cache = self.recorder, self.cache
        entered: list[int] = []
        while self.waiting:
            budget = self.most_decoding - self.batched
            if budget <= 0:
                self.restless = True
                break
            if len(self.running) >= self.most_sequences:
                break
            index = self._head()
            group = self._group(index)
            joining = self._joining(group, budget)
            if joining is None:
                break
            hits, tokens = joining
            found = hits * self.size
            assert group.content is not None
            cache.allocate_cached(group.sequences[0], group.content, hits, found + tokens)
            self.answering[group.content.answer] = group.sequences[0]
            if index == self.fresh:
                self.fresh += 1
                if self.welcome is not None:
                    self.welcome(group.row)
            else:
                del self.lost[0]
                del self.lengths[index]
            self.waiting -= 1
            if recorder.first_scheduled[group.row] < 0:
                recorder.first_scheduled[group.row] = now
                if hits:
                    recorder.cached_tokens[group.row] = found
            self.context += found
            self._compute(index, group, found, tokens)
            entered.append(index)
        return entered

    def _compute(self, index: int, group: Group, computed: int, tokens: int) -> bool:
        """Run a chunk for which there is room; say whether it is the last one."""
        self.batched += tokens
        self.pairs += tokens * computed + tokens * (tokens + 1) // 2
        self.context += tokens
        computed += tokens
        base = computed - self.steps
        last = group.final_length - base - 1
        self.running[index] = base, self.recorder.iterations, last
        if computed < group.length:
            self.chunks[index] = computed
            return False
        self.chunks.pop(index, None)
        self.cache.start_growing(group.sequences[0])
        ending = self.ends.get(last)
        if ending is None:
            self.ends[last] = [index]
            heappush(self.heap, last)
        else:
            ending.append(index)
        return True
