"""Random changes to a block manager, the same in every run with the same seed."""

from __future__ import annotations

from random import Random

from pagesim.allocators import OutOfBlocks
from pagesim.kvcache.base import BlockManagerError
from pagesim.testing.life import Life
from pagesim.testing.requests import Prompt


class RandomLife(Life):
    """A `Life` with random changes."""

    def change(self, rng: Random) -> None:
        """Make a random change that the contract allows, or one that is refused for lack of blocks."""
        changes = (
            *(
                "admit",
                "admit",
                "admit",
                "allocate_step",
                "allocate_step",
                "allocate_step",
                "start",
                "start",
                "stop",
                "chunk",
            ),
            *("append", "free_skipped_blocks", "cache", "reserve", "end", "release", "swap", "swap", "fork"),
        )
        getattr(self, f"_{rng.choice(changes)}")(rng)

    def _admit(self, rng: Random) -> None:
        memory = self.memory
        most = memory.num_blocks * memory.block_size // 8
        samples = rng.choice((1, 1, 2, 3)) if self.takes_samples else 1
        request = self.new(rng.randint(1, most), rng.randint(1, most), samples)
        if memory.caches_prefixes:
            same, rest = rng.randint(1, most), rng.randint(0, memory.block_size)
            prompt = [rng.randint(0, 1)] * same + [rng.randint(0, 1) for _ in range(rest)]
            request.content = Prompt(tuple(prompt), memory.block_size)
            request.tokens = request.prompt = request.length = len(prompt)
        tokens = request.tokens
        found = memory.match_prefix(request, tokens)
        assert found % memory.block_size == 0, "whole blocks are found"
        assert found < tokens, "the last token of a prompt is always computed"
        if memory.grows and samples == 1 and rng.random() < 0.5:
            tokens = rng.randint(found + 1, tokens)
        request.left = request.tokens - tokens
        if memory.can_admit(request, tokens):
            self.admit(request, tokens)
        else:
            self.refused("admission without room", memory.admit, request, tokens)
            self._release(rng)

    def _chunk(self, rng: Random) -> None:
        memory = self.memory
        for request in self.requests:
            if request.left and not request.decodes:
                tokens = rng.randint(1, request.left)
                if memory.releases:
                    memory.free_skipped_blocks(request)
                blocks, free = memory.blocks_to_extend(request, tokens), memory.free_blocks
                if blocks > free:
                    self.refused("a chunk without room", memory.extend, request, tokens)
                    return
                before, length = self.written.tables(request), memory.length(request)
                memory.extend(request, tokens)
                request.left -= tokens
                assert free - memory.free_blocks == blocks, "blocks_to_extend says what a chunk takes"
                self.written.write(request, before, length, tokens)
                return

    def _append(self, rng: Random) -> None:
        memory = self.memory
        resting = [request for request in self.requests if not request.decodes and not request.left]
        if not resting:
            return
        request = rng.choice(resting)
        if memory.releases:
            memory.free_skipped_blocks(request)
        before, length, free = self.written.tables(request), memory.length(request), memory.free_blocks
        if not memory.grows:
            if not self._room(request):
                return
            assert memory.append(request) == 0, "what is reserved is not shared"
            assert memory.free_blocks == free, "a reserved token takes no block"
            self.written.write(request, before, length, 1)
            return
        state = self.snapshot()
        try:
            copies = memory.append(request)
        except OutOfBlocks:
            assert free < request.samples * len(memory.groups), "append finds the free blocks that there are"
            assert self.snapshot() == state, "an append without room leaves everything as it was"
        else:
            assert self.written.write(request, before, length, 1) in (copies, None), (
                "append says what it copies"
            )

    def _start(self, rng: Random) -> None:
        resting = [request for request in self.requests if not request.decodes]
        if resting:
            request = rng.choice(resting)
            if self.memory.steps_in_flight:
                request.inflight_tokens = rng.randint(0, self.memory.length(request))
            self._keeps("start_decoding", request, self.memory.start_decoding)
            assert request.decodes, "start_decoding lets a request decode"

    def _stop(self, rng: Random) -> None:
        decoding = self.decoding()
        if decoding:
            request = rng.choice(decoding)
            self._keeps("stop_decoding", request, self.memory.stop_decoding)
            assert not request.decodes, "stop_decoding lets a request rest"

    def _free_skipped_blocks(self, rng: Random) -> None:
        memory = self.memory
        resting = [request for request in self.requests if not request.decodes]
        if resting:
            request = rng.choice(resting)
            groups = range(len(memory.groups)) if memory.names_blocks else ()
            before = [self.written.gone(request, 0, number) for number in groups]
            memory.free_skipped_blocks(request)
            for number in groups:
                due = memory.groups[number].released(memory.length(request) - request.inflight_tokens)
                assert self.written.gone(request, 0, number) == max(before[number], due), (
                    "free_skipped_blocks releases the blocks that no later token attends to"
                )

    def _cache(self, rng: Random) -> None:
        for request in self.decoding()[:1]:
            self._keeps("cache_full_blocks", request, self.memory.cache_full_blocks)

    def _reserve(self, rng: Random) -> None:
        free = self.memory.free_blocks
        self.memory.reserve_free()
        assert self.memory.free_blocks == free, "what is reserved is free"

    def _allocate_step(self, rng: Random) -> None:
        memory = self.memory
        for request in self.decoding():
            if not self._room(request):
                self.release(request)  # its reservation is full, so it has finished
        steps = min(rng.randint(0, 6), self.steps_left())
        if memory.blocks_needed(steps) <= memory.free_blocks:
            self.allocate_step(steps)
        elif fit := memory.steps_that_fit(steps, 0):
            self.allocate_step(fit)
        elif memory.blocks_needed(1) <= memory.free_blocks:
            self.allocate_step(1)
        else:
            self.refused("decode steps without blocks", memory.allocate_step, 1)
            self.release(rng.choice(self.decoding()))

    def _release(self, rng: Random) -> None:
        if self.requests:
            self.release(rng.choice(self.requests))

    def _end(self, rng: Random) -> None:
        several = [request for request in self.requests if request.samples > 1]
        if several:
            request = rng.choice(several)
            over = sorted(rng.sample(range(request.samples), rng.randint(1, request.samples - 1)))
            left = request.samples - len(over)
            self.memory.end_samples(request, over)
            assert request.samples == left, "end_samples lowers the samples of a request"
            self.written.end_samples(request, over)

    def _swap(self, rng: Random) -> None:
        if self.swapped and rng.random() < 0.6:
            request = rng.choice(self.swapped)
            if self.memory.held_blocks(request) <= self.memory.free_blocks:
                self.swap_in(request)
            elif rng.random() < 0.5:
                self.refused("a swap into full memory", self.memory.swap_in, request)
            else:
                self.drop(request)
        elif self.requests:
            self.swap_out(rng.choice(self.requests))

    def _fork(self, rng: Random) -> None:
        memory = self.memory
        several = [request for request in self.decoding() if request.samples > 1]
        if not several or not self.forks:
            return
        request = rng.choice(several)
        dropped, survivor = rng.sample(range(request.samples), 2)
        before, state = self.written.tables(request), self.snapshot()
        try:
            copies = memory.fork(request, dropped, survivor)
        except (BlockManagerError, OutOfBlocks):
            self.forks = False
            assert self.snapshot() == state, "a fork that is refused leaves everything as it was"
            return
        assert bool(copies) != memory.shares, "a fork is shared, or it copies all blocks of a sample"
        self.written.fork(request, before, dropped, survivor)
