"""The conformance suite for block managers: one call tests any implementation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from pagesim.allocators import OutOfBlocks
from pagesim.kvcache.base import BlockManager, BlockManagerError
from pagesim.kvcache.pool import Pool
from pagesim.kvcache.reservation import RESERVATIONS
from pagesim.testing.copied import copied
from pagesim.testing.life import Life
from pagesim.testing.makes import check_makes
from pagesim.testing.random_life import RandomLife
from pagesim.testing.requests import LivingRequest, takes_samples

__all__ = ["check_block_manager", "pools"]

_SHAPES = ((64, 1, True), (61, 4, True), (37, 16, True), (61, 4, False))
"""Number of blocks, tokens per block, and whether blocks must be numbered, of each pool."""

_SEEDS = range(2)
_STAGES = (8, 24, 50)
"""Numbers of changes after which a life is copied and checked."""


def pools(reservation: str | None = "oracle") -> list[Pool]:
    """Return the pools that ``check_block_manager`` uses; a sequence may fill a quarter of one.

    Args:
        reservation: a name of ``RESERVATIONS``, or None.
    """
    found = []
    for num_blocks, block_size, tables in _SHAPES:
        longest = num_blocks * block_size // 4
        policy = None if reservation is None else RESERVATIONS[reservation](longest)
        found.append(Pool(num_blocks, block_size, longest, policy, num_blocks // 3, tables))
    return found


def check_block_manager(make: Callable[[Pool], BlockManager], reservation: str | None = "oracle") -> None:
    """Check that a block manager fulfils the contract of ``pagesim.kvcache.BlockManager``.

    Requests come and go at random, the same in every run. After each change, all answers are checked for
    consistency. If blocks are numbered, every token is read back through the block tables. At some points a
    life is copied, with `copied`, and the block manager's promises are tested on the copies.

    Args:
        make: factory of an empty block manager for a pool, in the same state at each call: what is registered
            under ``allocator``. It must have room for a sequence of one token.
        reservation: reservation policy of the pools; None for block managers that allocate on demand.

    Raises:
        AssertionError: a rule is broken; the message says which.
        TypeError: a block manager was passed instead of a factory.
    """
    check_makes(make)
    for pool in pools(reservation):
        try:
            _check_empty(make(pool))
            for seed in _SEEDS:
                _check_life(lambda pool=pool: make(pool), seed)  # type: ignore[misc]
        except (BlockManagerError, OutOfBlocks) as error:
            raise AssertionError(f"what the contract allows was refused: {error}") from error


def _check_empty(memory: BlockManager) -> None:
    assert memory.free_blocks == memory.num_blocks, "empty memory is all free"
    assert memory.free_cpu_blocks == memory.cpu_blocks, "an empty swap space is all free"
    assert memory.blocks_needed(5) == 0, "where no request decodes, no block is needed"
    assert memory.can_admit(LivingRequest(1), 1), "empty memory takes a sequence of one token"
    if memory.names_blocks:
        assert memory.free_extents() == [(0, memory.num_blocks)], "empty memory is one free run"


def _check_life(make: Callable[[], BlockManager], seed: int) -> None:
    life, twin = RandomLife(make()), RandomLife(make())
    rng, same = Random(seed), Random(seed)
    for change in range(1, _STAGES[-1] + 1):
        life.change(rng)
        twin.change(same)
        life.verify()
        if change in _STAGES:
            assert life.snapshot() == twin.snapshot(), "the same calls gave different blocks"
            for check in _CHECKS:
                check(copied(life), make(), Random(seed))


# Checks on the copies


def _many_steps_are_as_many_single_ones(life: Life, empty: BlockManager, rng: Random) -> None:
    for steps in (0, 1, 2, 5, 2 * life.memory.block_size + 1):
        if steps > life.steps_left():
            continue
        at_once, one_by_one = copied(life), copied(life)
        memory = at_once.memory
        if memory.blocks_needed(steps) > memory.free_blocks and memory.steps_that_fit(steps, 0) < steps:
            at_once.refused("decode steps without blocks", memory.allocate_step, steps)
            continue
        at_once.allocate_step(steps)
        for _ in range(steps):
            one_by_one.allocate_step(1)
        at_once.verify()
        assert at_once.snapshot() == one_by_one.snapshot(), (
            f"allocate_step({steps}) leaves what {steps} times allocate_step(1) leaves"
        )


def _as_many_steps_fit_as_are_promised(life: Life, empty: BlockManager, rng: Random) -> None:
    memory = life.memory
    free = memory.free_blocks
    copies = sum([memory.copies_due(request) for request in life.decoding()])
    assert memory.blocks_needed(0) == 0, "no step needs no block"
    for steps in (1, 7, 40):
        for spare in (0, 1, free // 2, free, free + 1):
            told, room = memory.steps_that_fit(steps, spare), free - spare
            said = f"steps_that_fit({steps}, {spare}) is {told} with {free} blocks free"
            assert 0 <= told <= steps, f"steps that fit are at most those asked for: {said}"
            if not memory.grows:
                assert told == steps, f"where nothing grows all steps fit: {said}"
            elif copies:
                assert told == 0, f"a copy on write ends a run: {said}"
            elif memory.releases:
                fits = memory.blocks_needed(1) <= room
                assert fits or not told, f"more steps than fit: {said}"
                # With steps in flight, a request's first step is already planned.
                assert told or not fits or memory.steps_in_flight, f"a step that fits is said to: {said}"
            else:
                assert told == 0 or memory.blocks_needed(told) <= room, f"more steps than fit: {said}"
                further = told < steps and memory.blocks_needed(told + 1) <= room
                assert not further, f"fewer steps than fit: {said}"
    for spare in (0, free // 3):
        one_by_one = copied(life)
        memory = one_by_one.memory
        for _ in range(min(memory.steps_that_fit(40, spare), one_by_one.steps_left())):
            one_by_one.allocate_step(1)
            assert memory.free_blocks >= spare or not memory.grows, (
                "each of the steps that fit leaves the spare"
            )


def _admission_is_foretold(life: Life, empty: BlockManager, rng: Random) -> None:
    for tokens, output, samples in _requests(life.memory, rng):
        copy = copied(life)
        memory, request = copy.memory, copy.new(tokens, output, samples)
        memory.match_prefix(request, tokens)
        spares = (0, 1, memory.free_blocks // 2, memory.free_blocks)
        answers = [
            (memory.can_admit(request, tokens, s), memory.could_admit(request, tokens, s)) for s in spares
        ]
        try:
            memory.admit(request, tokens)
        except OutOfBlocks:
            left = -1
        else:
            left = memory.free_blocks
        for spare, (can, could) in zip(spares, answers, strict=True):
            said = f"{samples} × {tokens} tokens, {spare} spare, {left} left (−1: refused)"
            assert can == (left >= spare), f"can_admit says whether admission succeeds: {can} for {said}"
            assert could or not can, f"what can be admitted now could be to empty memory: {said}"
            alone = LivingRequest(tokens, output, samples)
            best = empty.can_admit(alone, tokens, spare)
            assert best == empty.could_admit(alone, tokens, spare), f"empty memory is asked alike: {said}"
            assert could or not best, f"could_admit denies what empty memory can: {said}"


def _full_memory_refuses(life: Life, empty: BlockManager, rng: Random) -> None:
    memory = life.memory
    for tokens in (3 * memory.block_size, 1):
        while memory.can_admit(request := life.new(tokens, 1, 1), tokens):
            life.admit(request, tokens)
    life.verify()
    request = life.new(1, 1, 1)
    life.refused("admission without room", memory.admit, request, 1)
    for request in life.requests:
        if request.decodes or not memory.grows or memory.releases:
            continue
        further = (memory.free_blocks + 1) * memory.block_size
        if request.samples == 1:
            assert memory.blocks_to_extend(request, further) > memory.free_blocks
            life.refused("a chunk without room", memory.extend, request, further)
        memory.start_decoding(request)
    while life.steps_left():
        if memory.grows and memory.blocks_needed(1) > memory.free_blocks:
            life.refused("decode steps without blocks", memory.allocate_step, 1)
            break
        if not memory.grows or not life.decoding() or memory.releases:
            break
        life.allocate_step(1)
    life.verify()


def _rest_changes_nothing(life: Life, empty: BlockManager, rng: Random) -> None:
    before = life.snapshot()
    decoding = life.decoding()
    for request in decoding:
        life.memory.stop_decoding(request)
        life.verify()
    assert life.memory.blocks_needed(3) == 0, "where no request decodes, no block is needed"
    for request in decoding:
        life.memory.start_decoding(request)
    assert life.snapshot() == before, "stop_decoding and start_decoding together change nothing"


def _a_swap_brings_everything_back(life: Life, empty: BlockManager, rng: Random) -> None:
    for request in list(life.requests):
        memory = life.memory
        held = memory.length(request), memory.held_blocks(request), memory.shared_blocks
        if life.swap_out(request):
            life.verify()
            life.swap_in(request)
            life.verify()
            back = memory.length(request), memory.held_blocks(request), memory.shared_blocks
            assert back == held, "a request comes back from the swap space as it was"


def _released_memory_is_as_empty(life: Life, empty: BlockManager, rng: Random) -> None:
    memory = life.memory
    while life.swapped:
        life.drop(rng.choice(life.swapped))
    while life.requests:
        life.release(rng.choice(life.requests))
        life.verify()
    assert memory.free_blocks == memory.num_blocks, "release gives every block back"
    assert memory.free_cpu_blocks == memory.cpu_blocks, "the swap space is free when no request is in it"
    assert memory.blocks_needed(memory.block_size) == 0, "what was released needs no block"
    if memory.names_blocks:
        assert memory.free_extents() == [(0, memory.num_blocks)], "released blocks are joined again"
    for tokens, output, samples in _requests(memory, rng):
        fits = [m.can_admit(LivingRequest(tokens, output, samples), tokens) for m in (memory, empty)]
        assert fits[0] == fits[1], "memory that was emptied takes what empty memory takes"


def _requests(memory: BlockManager, rng: Random) -> Iterator[tuple[int, int, int]]:
    """Yield prompt length, output length and samples: one token, around block edges, and random sizes."""
    size, slots = memory.block_size, memory.num_blocks * memory.block_size
    most = slots // 8
    yield from [(1, 1, 1), (size, size, 1), (size + 1, 1, 1), (slots, 1, 1), (slots + 1, 1, 1)]
    for samples in (1, 1, 2, 3):
        if samples == 1 or takes_samples(memory):
            yield rng.randint(1, most), rng.randint(1, most), samples
            yield rng.randint(1, slots), rng.randint(1, most), samples


_CHECKS = (
    _many_steps_are_as_many_single_ones,
    _as_many_steps_fit_as_are_promised,
    _admission_is_foretold,
    _full_memory_refuses,
    _rest_changes_nothing,
    _a_swap_brings_everything_back,
    _released_memory_is_as_empty,
)
