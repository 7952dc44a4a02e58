"""Random changes of a life in memory, the same in every run of a seed."""

from __future__ import annotations

from random import Random

from pagesim.kvcache.base import BlockManagerError, OutOfBlocks
from pagesim.testing.holders import Prompt
from pagesim.testing.life import Life


class RandomLife(Life):
    """A `Life` that can change at random."""

    def change(self, rng: Random) -> None:
        """Make a change that the contract allows, or one that is refused for want of room."""
        changes = (
            *("admit", "admit", "admit", "grow", "grow", "grow", "start", "start", "stop", "chunk"),
            *("append", "free_skipped_blocks", "cache", "reserve", "end", "release", "swap", "swap", "fork"),
        )
        getattr(self, f"_{rng.choice(changes)}")(rng)

    def _admit(self, rng: Random) -> None:
        memory = self.memory
        most = memory.num_blocks * memory.block_size // 8
        samples = rng.choice((1, 1, 2, 3)) if self.takes_samples else 1
        holder = self.new(rng.randint(1, most), rng.randint(1, most), samples)
        if memory.caches_prefixes:
            same, rest = rng.randint(1, most), rng.randint(0, memory.block_size)
            prompt = [rng.randint(0, 1)] * same + [rng.randint(0, 1) for _ in range(rest)]
            holder.content = Prompt(tuple(prompt), memory.block_size)
            holder.tokens = holder.prompt = holder.length = len(prompt)
        elif memory.grows:
            holder.growth = rng.choice((1, 1, 1, 3))
        tokens = holder.tokens
        found = memory.match_prefix(holder, tokens)
        assert found % memory.block_size == 0, "whole blocks are found"
        assert found < tokens, "the last token of a prompt is always computed"
        if memory.grows and samples == 1 and rng.random() < 0.5:
            tokens = rng.randint(found + 1, tokens)
        holder.left = holder.tokens - tokens
        if memory.can_admit(holder, tokens):
            self.admit(holder, tokens)
        else:
            self.refused("admission without room", memory.admit, holder, tokens)
            self._release(rng)

    def _chunk(self, rng: Random) -> None:
        memory = self.memory
        for holder in self.holders:
            if holder.left and not holder.decodes:
                tokens = rng.randint(1, holder.left)
                if memory.releases:
                    memory.free_skipped_blocks(holder)
                blocks, free = memory.blocks_to_extend(holder, tokens), memory.free_blocks
                if blocks > free:
                    self.refused("a chunk without room", memory.extend, holder, tokens)
                    return
                before, length = self.written.tables(holder), memory.length(holder)
                memory.extend(holder, tokens)
                holder.left -= tokens
                assert free - memory.free_blocks == blocks, "blocks_to_extend says what a chunk takes"
                self.written.write(holder, before, length, tokens)
                return

    def _append(self, rng: Random) -> None:
        memory = self.memory
        resting = [holder for holder in self.holders if not holder.decodes and not holder.left]
        if not resting:
            return
        holder = rng.choice(resting)
        if memory.releases:
            memory.free_skipped_blocks(holder)
        before, length, free = self.written.tables(holder), memory.length(holder), memory.free_blocks
        if not memory.grows:
            if not self._room(holder):
                return
            assert memory.append(holder) == 0, "what is reserved is not shared"
            assert memory.free_blocks == free, "a reserved token takes no block"
            self.written.write(holder, before, length, 1)
            return
        state = self.snapshot()
        try:
            copies = memory.append(holder)
        except OutOfBlocks:
            assert free < holder.samples * len(memory.groups), "append finds the free blocks that there are"
            assert self.snapshot() == state, "an append without room leaves everything as it was"
        else:
            assert self.written.write(holder, before, length, 1) in (copies, None), (
                "append says what it copies"
            )

    def _start(self, rng: Random) -> None:
        resting = [holder for holder in self.holders if not holder.decodes]
        if resting:
            holder = rng.choice(resting)
            if self.memory.lag:
                holder.in_flight = rng.randint(0, self.memory.length(holder))
            self._keeps("start_decoding", holder, self.memory.start_decoding)
            assert holder.decodes, "start_decoding lets a holder decode"

    def _stop(self, rng: Random) -> None:
        decoding = self.decoding()
        if decoding:
            holder = rng.choice(decoding)
            self._keeps("stop_decoding", holder, self.memory.stop_decoding)
            assert not holder.decodes, "stop_decoding lets a holder rest"

    def _free_skipped_blocks(self, rng: Random) -> None:
        memory = self.memory
        resting = [holder for holder in self.holders if not holder.decodes]
        if resting:
            holder = rng.choice(resting)
            groups = range(len(memory.groups)) if memory.names_blocks else ()
            before = [self.written.gone(holder, 0, number) for number in groups]
            memory.free_skipped_blocks(holder)
            for number in groups:
                due = memory.groups[number].released(memory.length(holder) - holder.in_flight)
                assert self.written.gone(holder, 0, number) == max(before[number], due), (
                    "free_skipped_blocks releases the blocks that no later token attends to"
                )

    def _cache(self, rng: Random) -> None:
        for holder in self.decoding()[:1]:
            self._keeps("cache_full_blocks", holder, self.memory.cache_full_blocks)

    def _reserve(self, rng: Random) -> None:
        free = self.memory.free_blocks
        self.memory.reserve_free()
        assert self.memory.free_blocks == free, "what is reserved is free"

    def _grow(self, rng: Random) -> None:
        memory = self.memory
        for holder in self.decoding():
            if not self._room(holder) // holder.growth:
                self.release(holder)  # its reservation is full: it has all its tokens
        steps = min(rng.randint(0, 6), self.steps_left())
        if memory.blocks_needed(steps) <= memory.free_blocks:
            self.grow(steps)
        elif fit := memory.steps_that_fit(steps, 0):
            self.grow(fit)
        elif memory.blocks_needed(1) <= memory.free_blocks:
            self.grow(1)
        else:
            self.refused("growth without blocks", memory.grow, 1)
            self.release(rng.choice(self.decoding()))

    def _release(self, rng: Random) -> None:
        if self.holders:
            self.release(rng.choice(self.holders))

    def _end(self, rng: Random) -> None:
        several = [holder for holder in self.holders if holder.samples > 1]
        if several:
            holder = rng.choice(several)
            over = sorted(rng.sample(range(holder.samples), rng.randint(1, holder.samples - 1)))
            left = holder.samples - len(over)
            self.memory.end_samples(holder, over)
            assert holder.samples == left, "end_samples lowers the samples of a holder"
            self.written.end_samples(holder, over)

    def _swap(self, rng: Random) -> None:
        if self.swapped and rng.random() < 0.6:
            holder = rng.choice(self.swapped)
            if self.memory.held_blocks(holder) <= self.memory.free_blocks:
                self.swap_in(holder)
            elif rng.random() < 0.5:
                self.refused("a swap into full memory", self.memory.swap_in, holder)
            else:
                self.drop(holder)
        elif self.holders:
            self.swap_out(rng.choice(self.holders))

    def _fork(self, rng: Random) -> None:
        memory = self.memory
        several = [holder for holder in self.decoding() if holder.samples > 1]
        if not several or not self.forks:
            return
        holder = rng.choice(several)
        dropped, survivor = rng.sample(range(holder.samples), 2)
        before, state = self.written.tables(holder), self.snapshot()
        try:
            copies = memory.fork(holder, dropped, survivor)
        except BlockManagerError:
            self.forks = False
            assert self.snapshot() == state, "a fork that is refused leaves everything as it was"
            return
        assert bool(copies) != memory.shares, "a fork is shared, or it copies all blocks of a sample"
        self.written.fork(holder, before, dropped, survivor)
