"""vLLM's scheduler since v1 (0.11.2 to 0.33.0): prompts in chunks and decodes share a budget of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappush

from pagesim.memory import Allocator, PrefixCachingAllocator
from pagesim.scheduling.base import Plan
from pagesim.scheduling.dead_ends import DeadEnd
from pagesim.scheduling.group import Group
from pagesim.scheduling.preemptive import Preemptive
from pagesim.scheduling.queue import WaitingQueue


@dataclass(frozen=True, slots=True)
class Release:
    """What differs between the releases.

    Attributes:
        reserves_full_isl: a prompt is admitted only if all of it fits, not just its first chunk.
        has_watermark: an admission beside others leaves a share of the blocks free.
        spares_single: the long-prefill threshold does not hold while there is only one request.
        overtakes: without chunked prefill, a prompt that the budget cannot take is passed by those behind it;
            several that were passed are then in front in reverse order.
        reuses_unfilled_first: freed blocks whose content nobody can ask for are the next to be taken.
    """

    reserves_full_isl: bool
    has_watermark: bool
    spares_single: bool
    overtakes: bool
    reuses_unfilled_first: bool


RELEASES = {
    "0.11.2": Release(
        reserves_full_isl=False,
        has_watermark=False,
        spares_single=False,
        overtakes=True,
        reuses_unfilled_first=False,
    ),
    # Logs prove each flag: v1_019_prefix reserves_full_isl and reuses_unfilled_first, v1_019_threshold
    # spares_single, v1_019_unchunked overtakes. There is no watermark among the options of this release.
    "0.19.0": Release(
        reserves_full_isl=True,
        has_watermark=False,
        spares_single=False,
        overtakes=False,
        reuses_unfilled_first=False,
    ),
    "0.33.0": Release(
        reserves_full_isl=True,
        has_watermark=True,
        spares_single=True,
        overtakes=False,
        reuses_unfilled_first=True,
    ),
}


class VllmV1(Preemptive):
    """See `Scheduler` for the contract.

    Every step gives tokens to those who run, in the order of their admission, then to those who wait, until
    the budget is used up. A request whose prompt has not run whole gets a chunk of it, any other one token.
    Who finds no block preempts whoever was admitted last, himself at worst; nothing is ever swapped.

    Args:
        memory: empty, without the null block; prompts are looked for in it if it caches prefixes.
        release: a value of ``RELEASES``.
        watermark: share of the blocks, the null block among them, that an admission leaves free, where the
            release has one (vLLM: 0).
        max_num_seqs: limit on running requests.
        max_num_batched_tokens: the budget of a step.
        max_model_len: no sequence is longer.
        chunked_prefill: whether a prompt may run in chunks.
        long_prefill_token_threshold: limit on a request's tokens in a step; 0 for none.
        reserve_full_isl: see `Release`; None for the release's own.
    """

    def __init__(
        self,
        memory: Allocator,
        release: Release,
        *,
        watermark: float,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        chunked_prefill: bool = True,
        long_prefill_token_threshold: int = 0,
        reserve_full_isl: bool | None = None,
    ) -> None:
        super().__init__(
            memory,
            WaitingQueue(preempted_first=True),
            watermark=watermark if release.has_watermark else 0.0,
            preemption="default",
        )
        if release.has_watermark:
            # A share of all blocks: the null block, which is not in the memory here, counts.
            self.watermark_blocks = int(watermark * (memory.num_blocks + 1))
        self.release = release
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.chunked_prefill = chunked_prefill
        self.threshold = long_prefill_token_threshold
        self.full_isl = release.reserves_full_isl if reserve_full_isl is None else reserve_full_isl
        self._in_chunks: dict[int, Group] = {}  # by Group.order: those whose prompt has not run whole
        self._skipped: list[Group] = []
        self._cache = memory if isinstance(memory, PrefixCachingAllocator) else None
        self._answering: dict[int, Group] = {}  # who runs, by the name of what it generates

    @property
    def is_plain(self) -> bool:
        return not (self._in_chunks or self._skipped) and super().is_plain

    def accepts(self, prompt_tokens: int, output_tokens: int, samples: int) -> bool:
        # The front end turns away what leaves no room for a token; the check at start-up, a cache that is
        # smaller than the longest sequence.
        if samples > 1 or prompt_tokens >= self.max_model_len:
            return False
        tokens = prompt_tokens + output_tokens - 1
        if not self.chunked_prefill and prompt_tokens > self.max_num_batched_tokens:
            return False
        return -(-tokens // self.memory.block_size) <= self.memory.num_blocks

    def dismiss(self, group: Group) -> None:
        if self._cache is None:
            super().dismiss(group)
            return
        self._context -= self._held(group)
        self._stop(group, 1)

    def readmit(self, group: Group) -> None:
        """As its parent; a prompt may be in chunks, and beside a cache a group has kept its memory."""
        in_chunks, last_step = 0 < group.computed < group.length, group.last_step
        if self._cache is None:
            if not in_chunks:
                super().readmit(group)
                return
            self.memory.allocate(group.sequences[0], group.computed)
        self._enter(group)
        if in_chunks:
            self._context += group.computed
            return
        del self._in_chunks[group.order]
        group.last_step = last_step
        self._context += self._held(group)
        heappush(self._finishes, (last_step, group.order, group))

    def blocked_externally(self) -> bool:
        return False  # a block is as good as any other

    def plan(self, now: int) -> Plan:
        self.queue.arrive(now)
        plan = Plan()
        plan.counts_empty = True
        memory = self.memory
        budget = self.max_num_batched_tokens
        running = self.running_groups
        self.restless = False
        if self._in_chunks or self._skipped or running > budget or memory.demand(1) > memory.free_blocks:
            if not self._run_together(plan):
                self._run_one_by_one(plan)
        else:
            memory.grow(1)
            self._context += running
            plan.batched_tokens = plan.decoding = running
            plan.context_tokens = plan.decode_context = self._context
        if plan.recomputed:
            overtakes = self.release.overtakes and not self.chunked_prefill
            self.restless = bool(self.waiting) if overtakes else self._head_fits()
        else:
            self._admit(plan, budget - plan.batched_tokens)
        if self._in_chunks or self._skipped:
            self.restless = True
        plan.tokens = plan.batched_tokens
        plan.sequences = self.running_sequences
        return plan

    # Those who run, in the order of their admission

    def _run_together(self, plan: Plan) -> bool:
        """Share out budget and blocks if prompts in chunks come last and there is enough for everybody.

        That is the ordinary case of what `_run_one_by_one` does, without a look at those who decode.
        """
        memory = self.memory
        in_chunks = list(self._in_chunks.values())
        decoding = self.running_groups - len(in_chunks)
        budget = self.max_num_batched_tokens - decoding
        last = zip(reversed(self._running), reversed(in_chunks), strict=False)
        if self._skipped or any(order != group.order for order, group in last):
            return False
        chunks: list[tuple[Group, int]] = []
        blocks = memory.demand(1)
        for group in in_chunks:
            tokens = self._capped(group.length - group.computed, budget)
            if tokens <= 0:
                return False
            budget -= tokens
            size = memory.block_size
            blocks += -(-(group.computed + tokens) // size) - -(-group.computed // size)
            chunks.append((group, tokens))
        if budget < 0 or blocks > memory.free_blocks:
            return False
        memory.grow(1)
        self._context += decoding
        plan.batched_tokens = plan.decoding = decoding
        plan.decode_context = self._context - sum([group.computed for group in in_chunks])
        plan.context_tokens = plan.decode_context
        for group, tokens in chunks:
            memory.extend(group.sequences[0], tokens)
            self._compute(group, tokens, plan)
        return True

    def _run_one_by_one(self, plan: Plan) -> None:
        """Share out budget and blocks where not everybody simply gets a token."""
        memory = self.memory
        size, grown = memory.block_size, memory.steps_grown
        order = list(self._running.values())
        budget, free = self.max_num_batched_tokens, memory.free_blocks
        chunks: list[tuple[Group, int]] = []
        place = 0
        while place < len(order) and budget > 0:
            group = order[place]
            if group.order in self._in_chunks:
                tokens = self._capped(group.length - group.computed, budget)
                needed = -(-(group.computed + tokens) // size) - -(-group.computed // size)
            else:
                tokens = 1
                needed = int((group.base + grown) % size == 0)
            while needed > free and len(order) > place:
                if self._cache is not None:
                    # Those before it have taken theirs, and what they took is lost to the cache.
                    self._cache.set_aside(memory.free_blocks - free)
                free -= memory.free_blocks
                self._lose(order.pop(), plan)
                free += memory.free_blocks
            if place == len(order):
                break  # it preempted itself
            free -= needed
            budget -= tokens
            if group.order in self._in_chunks:
                chunks.append((group, tokens))
            place += 1
        self._decode(order[:place], order[place:], plan)
        for group, tokens in chunks:
            memory.extend(group.sequences[0], tokens)
            self._compute(group, tokens, plan)

    def _decode(self, served: list[Group], unserved: list[Group], plan: Plan) -> None:
        """Give a token to everybody who decodes, except those for whom the budget did not reach."""
        memory = self.memory
        plan.skipped = tuple([group for group in unserved if group.order not in self._in_chunks])
        for group in plan.skipped:
            memory.stop_growing(group.sequences[0])
        memory.grow(1)
        for group in plan.skipped:
            memory.start_growing(group.sequences[0])
            group.base -= 1
            group.last_step += 1
            heappush(self._finishes, (group.last_step, group.order, group))
        for group in unserved:
            if group.order in self._in_chunks:
                group.base = group.computed - memory.steps_grown
        plan.rebased = tuple(unserved)
        decoding = [group for group in served if group.order not in self._in_chunks]
        plan.caught_up = tuple([group for group in decoding if group in self._skipped])
        self._skipped = list(plan.skipped)
        self._context += len(decoding)
        plan.decoding = len(decoding)
        plan.batched_tokens += len(decoding)
        held = sum([group.base for group in decoding]) + len(decoding) * memory.steps_grown
        plan.context_tokens += held
        plan.decode_context = held

    def _leave(self, group: Group) -> int:
        generated = super()._leave(group)
        if group in self._skipped:
            self._skipped.remove(group)
        if self._in_chunks.pop(group.order, None) is None:
            return generated
        return group.length - group.prompt

    def _held(self, group: Group) -> int:
        return group.computed if group.order in self._in_chunks else super()._held(group)

    def _lose(self, group: Group, plan: Plan) -> None:
        """Preempt a group: all its KV is lost, and it waits at the very front."""
        in_chunks = self._in_chunks.pop(group.order, None) is not None
        held = group.computed if in_chunks else group.base + self.memory.steps_grown
        self._context -= held
        if not in_chunks:
            group.length = held + 1
        self._stop(group, 1)
        self.memory.free(group.sequences[0])
        self.queue.requeue(group)
        plan.recomputed += (group,)

    # Those who wait

    def _admit(self, plan: Plan, budget: int) -> None:
        memory, queue = self.memory, self.queue
        overtaken: list[Group] = []
        while (group := queue.head()) is not None:
            if budget <= 0:
                self.restless = True
                break
            if not self.may_join(group):
                break
            hits = self._look_up(group)
            rest = group.length - hits * memory.block_size
            tokens = self._capped(rest, budget if self.chunked_prefill else rest)
            too_long = tokens > budget
            if too_long and self.release.overtakes:
                queue.pop(group)
                overtaken.append(group)
                continue
            if too_long or not self._fits(group, hits, tokens):
                if self.running_groups:
                    self.restless = self.restless or too_long
                    break
                # Nobody will ever make room: the real one waits for ever.
                queue.pop(group)
                plan.stuck += ((group, DeadEnd.NEVER_ADMITTED),)
                continue
            queue.pop(group)
            self._place(group, hits, tokens)
            plan.prompts += (group,)
            self._compute(group, tokens, plan, first=True)
            if group.order in self._in_chunks:
                plan.incomplete += (group,)
            budget -= tokens
        if overtaken:
            self.restless = True
        # In front again, but as in the release the one that was overtaken last before the others.
        for group in overtaken:
            if self.running_groups:
                queue.requeue(group)
            else:
                plan.stuck += ((group, DeadEnd.NEVER_ADMITTED),)

    def _look_up(self, group: Group) -> int:
        """Return how many leading blocks of a waiting request's prompt are in the cache."""
        if self._cache is None:
            return 0
        assert group.content is not None
        for name in group.content.follows:
            before = self._answering.get(name)
            if before is not None:
                # The round before is still being answered: what it fills can be found as it goes on.
                self._cache.publish(before.sequences[0])
                self.restless = True
        return self._cache.hits(group.content, group.length)

    def _place(self, group: Group, hits: int, tokens: int) -> None:
        """Give a request memory for its first chunk."""
        group.computed = hits * self.memory.block_size
        if self._cache is None:
            self.memory.allocate(group.sequences[0], tokens)
        else:
            assert group.content is not None
            self._cache.allocate_cached(group.sequences[0], group.content, hits, group.computed + tokens)
            group.cached = group.computed
        self._enter(group)
        self._context += group.computed

    def _enter(self, group: Group) -> None:
        """Let a request run, first in chunks."""
        if group.content is not None:
            self._answering[group.content.answer] = group
        group.order = self._orders
        group.last_step = -1
        self._orders += 1
        self._running[group.order] = group
        self._in_chunks[group.order] = group
        self.running_groups += 1
        self.running_sequences += 1

    def _compute(self, group: Group, tokens: int, plan: Plan, *, first: bool = False) -> None:
        """Run a chunk for which there is room; the last one gives the next token."""
        memory = self.memory
        step = memory.steps_grown
        plan.batched_tokens += tokens
        plan.query_key_pairs += tokens * group.computed + tokens * (tokens + 1) // 2
        group.computed += tokens
        group.base = group.computed - step
        self._context += tokens
        plan.context_tokens += group.computed
        if not first:
            plan.rebased += (group,)
        if group.computed < group.length:
            return
        del self._in_chunks[group.order]
        memory.start_growing(group.sequences[0])
        group.last_step = step + group.final_length - group.length - 1
        heappush(self._finishes, (group.last_step, group.order, group))
        if not first:
            plan.completed += (group,)

    def _capped(self, tokens: int, budget: int) -> int:
        threshold = self.threshold
        if threshold and not (self.release.spares_single and self.running_groups + self.waiting == 1):
            tokens = min(tokens, threshold)
        return min(tokens, budget)

    def _fits(self, group: Group, hits: int, tokens: int) -> bool:
        memory = self.memory
        spare = self.watermark_blocks if self.running_groups else 0
        wanted = group.length if self.full_isl else hits * memory.block_size + tokens
        if self._cache is None:
            return -(-wanted // memory.block_size) + spare <= memory.free_blocks
        assert group.content is not None
        return self._cache.blocks_wanted(group.content, hits, wanted) + spare <= memory.free_blocks

    def undisturbed(self, now: int) -> int:
        if self._in_chunks or self._skipped or self.running_groups > self.max_num_batched_tokens:
            return 0
        return super().undisturbed(now)

    def _head_fits(self) -> bool:
        group = self.queue.head()
        return group is not None and self._fits(group, self._look_up(group), 1)

    def _stop(self, group: Group, samples: int) -> None:
        super()._stop(group, samples)
        if group.content is not None:
            del self._answering[group.content.answer]

    def may_join(self, group: Group) -> bool:
        return self.running_groups < self.max_num_seqs

    def _spare_blocks(self) -> int:
        return 0  # nobody needs a free block unless a new one is due
