"""The conformance suite of the allocator's contract: a test of any allocator is one call of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from random import Random

from pagesim.kvcache.base import Allocator, AllocatorError, Fit, OutOfBlocks
from pagesim.kvcache.mirror import STRANGER, Mirror, snapshot
from pagesim.kvcache.pool import Pool
from pagesim.kvcache.reservation import RESERVATIONS

__all__ = ["CHECKS", "SHAPES", "Make", "check_allocator", "pools"]

Make = Callable[[], Allocator]
"""Gives an empty allocator, the same every time."""

SHAPES = ((64, 1), (61, 4), (37, 16))
"""(number of blocks, tokens a block) of the pools that ``check_allocator`` gives."""

_SEEDS = range(12)


def pools(reservation: str | None = "oracle") -> list[Pool]:
    """Return the pools that ``check_allocator`` gives; a sequence may fill a quarter of one.

    Args:
        reservation: a name of ``RESERVATIONS``, or None.
    """
    shapes = [(num_blocks, block_size, num_blocks * block_size // 4) for num_blocks, block_size in SHAPES]
    return [
        Pool(*shape, None if reservation is None else RESERVATIONS[reservation](shape[2])) for shape in shapes
    ]


def check_allocator(make: Callable[[Pool], Allocator], reservation: str | None = "oracle") -> None:
    """Check that an allocator keeps the contract of ``pagesim.kvcache.Allocator``.

    Args:
        make: makes an empty allocator of a pool, in the same state at each call: what is registered under
            ``placement``. An empty pool must have room for a sequence of one token and a fork of it. It is
            offered sequences longer than its model length, too, and may answer NEVER.
        reservation: of the pools; None where they have none, for an allocator that takes blocks on demand
            and obeys a reservation where there is one.

    Raises:
        AssertionError: a rule is broken; the message says which.
    """
    for pool in pools(reservation):
        for check in CHECKS:
            try:
                check(partial(make, pool))
            except AllocatorError as error:
                raise AssertionError(f"what the contract allows was refused: {error}") from error


# The checks, in the order in which they are best read


def an_empty_allocator_is_all_free(make: Make) -> None:
    """Nobody holds anything before the first allocation."""
    memory = make()
    assert memory.free_blocks == memory.num_blocks, "an empty allocator is all free"
    assert memory.free_extents() == [(0, memory.num_blocks)], "an empty allocator is one free run"
    assert not list(memory.sequences()), "an empty allocator has no sequences"
    assert memory.demand(5) == 0, "where nothing grows, nothing is demanded"
    memory.check_integrity()


def the_same_calls_give_the_same_blocks(make: Make) -> None:
    """There is no chance in an allocator."""
    for seed in _SEEDS:
        assert snapshot(_lived(make, seed).memory) == snapshot(_lived(make, seed).memory), (
            "the same calls give the same blocks"
        )


def freeing_returns_every_block(make: Make) -> None:
    """What an allocation took comes back, whatever its size."""
    memory = make()
    assert memory.probe(1, 1) is Fit.NOW, "an empty memory takes a sequence of one token"
    for tokens, output in _requests(memory, Random(0)):
        if memory.probe(tokens, output) is Fit.NOW:
            memory.allocate(0, tokens, output)
            assert memory.free_blocks < memory.num_blocks, "an allocation takes blocks"
            assert memory.held_blocks(0) == memory.num_blocks - memory.free_blocks, (
                "what left the free blocks is held"
            )
            memory.free(0)
            assert memory.free_extents() == [(0, memory.num_blocks)], "free returns every block"


def a_fork_without_room_changes_nothing(make: Make) -> None:
    """Where a fork is a second copy, memory fills up with forks until one is refused."""
    memory = make()
    memory.allocate(0, 1, 1)
    for child in range(1, memory.num_blocks + 1):
        before = snapshot(memory)
        try:
            memory.fork(0, child)
        except OutOfBlocks:
            assert snapshot(memory) == before, "a fork without room leaves everything as it was"
            return
    assert memory.free_blocks > 0, "forks that never run out of blocks share theirs"


def a_fork_takes_blocks_exactly_where_memory_cannot_share(make: Make) -> None:
    """A fork is shared, or it is a second copy of everything that its parent holds."""
    for seed in _SEEDS:
        for parent, _ in _lived(make, seed).tokens():
            memory = _lived(make, seed).memory
            before, held = memory.free_blocks, memory.held_blocks(parent)
            with suppress(OutOfBlocks):
                memory.fork(parent, STRANGER)
                taken = before - memory.free_blocks
                assert taken == (0 if memory.shares else held), (
                    f"memory that {'shares' if memory.shares else 'cannot share'} takes "
                    f"{'no block' if memory.shares else 'as many blocks as the parent holds'} for a fork: "
                    f"{taken} of {held} were taken"
                )


def probe_says_now_exactly_when_allocation_succeeds(make: Make) -> None:
    """``probe`` foresees the allocation of a request, its samples, and what is left."""
    for seed in _SEEDS:
        memory = _lived(make, seed).memory
        for samples in (1, 2, 3):
            for tokens, output in _requests(memory, Random(seed)):
                memory = _lived(make, seed).memory
                answers = [
                    memory.probe(tokens, output, samples, spare) for spare in range(memory.free_blocks + 1)
                ]
                left = _left_by(memory, tokens, output, samples)
                for spare, answer in enumerate(answers):
                    assert (answer is Fit.NOW) == (left is not None and left >= spare), (
                        "probe says NOW exactly when allocation succeeds: it said "
                        f"{answer.name} of {samples} × {tokens} tokens and {spare} spare; {left} were left"
                    )


def never_is_final(make: Make) -> None:
    """What will never fit does not fit an empty memory, and an empty memory has nothing to wait for."""
    empty = make()
    for seed in _SEEDS:
        memory = _lived(make, seed).memory
        for tokens, output in _requests(memory, Random(seed)):
            for samples, spare in ((1, 0), (2, 0), (3, 1), (1, memory.num_blocks // 2)):
                question = tokens, output, samples, spare
                best = empty.probe(*question)
                assert best is not Fit.LATER, "an empty memory never says LATER"
                if memory.probe(*question) is Fit.NEVER:
                    assert best is Fit.NEVER, "NEVER is final: an empty memory does not fit it either"


def misuse_raises_and_changes_nothing(make: Make) -> None:
    """Unknown, repeated and empty sequences are refused."""
    for seed in _SEEDS:
        mirror = _lived(make, seed)
        memory = mirror.memory
        refused = partial(_refused, memory, AllocatorError)
        for gone in (STRANGER, _freed(mirror)):
            refused("free of a sequence that is not here", memory.free, gone)
            refused("append to a sequence that is not here", memory.append, gone)
            refused("length of a sequence that is not here", memory.length, gone)
            refused("extents of a sequence that is not here", memory.extents, gone)
            refused("held_blocks of a sequence that is not here", memory.held_blocks, gone)
            refused("reserved_tokens of a sequence that is not here", memory.reserved_tokens, gone)
            refused("block_table of a sequence that is not here", memory.block_table, gone)
            refused("fork of a sequence that is not here", memory.fork, gone, STRANGER - 1)
            refused("adoption of a sequence that is not here", memory.adopt, gone, STRANGER - 1)
            refused("start_growing of a sequence that is not here", memory.start_growing, gone)
            refused("stop_growing of a sequence that is not here", memory.stop_growing, gone)
        refused("allocation of zero tokens", memory.allocate, STRANGER, 0)
        refused("allocation of fewer than zero tokens", memory.allocate, STRANGER, -memory.block_size)
        for sequence, _ in mirror.tokens():
            refused("a second allocation of a sequence", memory.allocate, sequence, 1)
            refused("a fork onto a sequence that is here", memory.fork, sequence, sequence)
            refused("adoption of oneself", memory.adopt, sequence, sequence)
        for sequence in mirror.resting:
            refused("stop_growing of a resting sequence", memory.stop_growing, sequence)
        for sequence in mirror.growing:
            refused("append to a growing sequence", memory.append, sequence)
            refused("start_growing of a growing sequence", memory.start_growing, sequence)


def out_of_blocks_changes_nothing(make: Make) -> None:
    """A full memory refuses and stays as it is."""
    for seed in _SEEDS:
        mirror = _lived(make, seed)
        memory = mirror.memory
        for sequence, tokens in enumerate((4 * memory.block_size, 1), start=1000):
            while memory.probe(tokens, 1) is Fit.NOW:
                mirror.allocate(_fresh(mirror, sequence), tokens, 1)
        _refused(memory, OutOfBlocks, "allocation without room", memory.allocate, STRANGER, 1, 1)
        for sequence in list(mirror.resting):
            if memory.grows_on_demand and memory.free_blocks == 0:
                while len(mirror.resting[sequence]) % memory.block_size:
                    try:
                        mirror.append(sequence)
                    except OutOfBlocks:  # it shares its last block
                        break
                _refused(memory, OutOfBlocks, "append without a block", memory.append, sequence)
                mirror.start_growing(sequence)
                assert memory.demand(1) > 0, "demand counts the block that an append had to be refused for"
                _refused(memory, OutOfBlocks, "grow without blocks", memory.grow, 1)
                mirror.stop_growing(sequence)
        mirror.verify()


def a_full_reservation_refuses_and_stays(make: Make) -> None:
    """All reserved tokens can come; what the blocks do not hold is refused."""
    memory = make()
    if memory.grows_on_demand:
        return
    for tokens, output in _requests(memory, Random(1)):
        if memory.probe(tokens, output) is Fit.NOW:
            memory.allocate(0, tokens, output)
            while memory.length(0) < memory.reserved_tokens(0):
                memory.append(0)
            slots = memory.held_blocks(0) * memory.block_size
            while memory.length(0) < slots:
                try:
                    memory.append(0)
                except OutOfBlocks:  # rounding gave more blocks than were asked for
                    break
            _refused(memory, OutOfBlocks, "append past a reservation", memory.append, 0)
            memory.free(0)


def grow_is_as_many_appends(make: Make) -> None:
    """Growing gives what appending gives, and takes what ``demand`` said."""
    for seed in _SEEDS:
        for steps in (0, 1, 2, 5, 40):
            grown, appended = _lived(make, seed), _lived(make, seed)
            for sequence in appended.growing.copy():
                appended.stop_growing(sequence)
            before, demand = grown.memory.free_blocks, grown.memory.demand(steps)
            if demand > before or steps > grown.growing_room():
                continue
            grown.grow(steps)
            assert before - grown.memory.free_blocks == demand, (
                f"demand is what growing takes: {demand} foreseen for {steps} steps, "
                f"{before - grown.memory.free_blocks} taken"
            )
            for _ in range(steps):
                for sequence in grown.growing:
                    appended.append(sequence)
            for sequence in grown.growing:
                assert grown.memory.length(sequence) == appended.memory.length(sequence), (
                    "grow gives every growing sequence its steps"
                )
            assert grown.memory.free_blocks == appended.memory.free_blocks, (
                "grow takes as many blocks as single appends"
            )
            grown.verify()
            appended.verify()


def growable_is_the_most_steps_that_fit(make: Make) -> None:
    """No step fewer is promised than could be made, and none more."""
    for seed in _SEEDS:
        memory = _lived(make, seed).memory
        free = memory.free_blocks
        twin = _lived(make, seed).memory
        copies = twin.grow(1) if memory.grows_on_demand and twin.demand(1) <= free else []
        for steps in (0, 1, 7, 40):
            for spare in (0, 1, free // 2, free, free + 1):
                most = min(steps, 1) if copies else steps
                if memory.grows_on_demand:
                    fitting = (s for s in range(most, 0, -1) if memory.demand(s) <= free - spare)
                    most = next(fitting, 0)
                assert memory.growable(steps, spare) == most, (
                    f"growable is the most steps that fit: {most} of {steps} with {free} blocks free and "
                    f"{spare} to spare, not {memory.growable(steps, spare)}"
                )


def growing_and_resting_lose_nothing(make: Make) -> None:
    """A sequence that stops growing and starts again is as it was."""
    for seed in _SEEDS:
        mirror = _lived(make, seed)
        before = snapshot(mirror.memory)
        for sequence in mirror.growing.copy():
            mirror.stop_growing(sequence)
            mirror.verify()
            mirror.start_growing(sequence)
        assert snapshot(mirror.memory) == before, "stop_growing and start_growing together change nothing"


def a_fork_never_changes_the_other(make: Make) -> None:
    """Whoever writes first, parent and child each read their own tokens."""
    size = make().block_size
    for tokens in (1, size, size + 1):
        for first, second in ((0, 1), (1, 0)):
            mirror = Mirror(make())
            mirror.allocate(0, tokens, 2)
            mirror.fork(0, 1)
            assert mirror.memory.length(1) == tokens, "a fork is as long as its parent"
            mirror.verify()
            for sequence in (first, second, first, second):
                if mirror.room(sequence):
                    mirror.append(sequence)
                    mirror.verify()


def an_adopted_sequence_reads_its_parents_tokens(make: Make) -> None:
    """A sequence that takes over another's tokens has lost its own, and the two go on apart."""
    size = make().block_size
    for tokens in (1, size, size + 1):
        mirror = Mirror(make())
        memory = mirror.memory
        if memory.probe(tokens, 2, 3) is not Fit.NOW:
            continue
        for sequence in (0, 1):
            mirror.allocate(sequence, tokens, 2)
        held = memory.num_blocks - memory.free_blocks
        mirror.adopt(1, 0)
        mirror.verify()
        assert held - memory.shared_blocks == memory.num_blocks - memory.free_blocks, (
            "what an adopted sequence held is free, or holds a copy"
        )
        for sequence in (0, 1):
            if mirror.room(sequence):
                mirror.append(sequence)
                mirror.verify()
        if mirror.room(0):
            mirror.append(0)
            _refused(memory, AllocatorError, "adoption of another length", memory.adopt, 1, 0)


def a_long_life_ends_with_every_block_free_and_joined(make: Make) -> None:
    """Random changes, verified one by one, leave no trace when everything was freed."""
    empty = make()
    for seed in _SEEDS:
        mirror = Mirror(make())
        for _ in _live(mirror, Random(seed), 150):
            mirror.verify()
        rng = Random(seed)
        while left := [sequence for sequence, _ in mirror.tokens()]:
            mirror.free(rng.choice(left))
            mirror.verify()
        memory = mirror.memory
        assert memory.free_extents() == [(0, memory.num_blocks)], "free blocks are joined again"
        assert memory.demand(memory.block_size) == 0, "what was freed demands nothing"
        for tokens, output in _requests(memory, rng):
            for samples in (1, 2, 3):
                assert memory.probe(tokens, output, samples) is empty.probe(tokens, output, samples), (
                    "a memory that was emptied takes what an empty one takes"
                )


CHECKS: tuple[Callable[[Make], None], ...] = (
    an_empty_allocator_is_all_free,
    freeing_returns_every_block,
    a_fork_without_room_changes_nothing,
    a_fork_takes_blocks_exactly_where_memory_cannot_share,
    probe_says_now_exactly_when_allocation_succeeds,
    never_is_final,
    misuse_raises_and_changes_nothing,
    out_of_blocks_changes_nothing,
    a_full_reservation_refuses_and_stays,
    grow_is_as_many_appends,
    growable_is_the_most_steps_that_fit,
    growing_and_resting_lose_nothing,
    a_fork_never_changes_the_other,
    an_adopted_sequence_reads_its_parents_tokens,
    a_long_life_ends_with_every_block_free_and_joined,
    the_same_calls_give_the_same_blocks,
)


# Inside


def _refused(
    memory: Allocator,
    error: type[AllocatorError],
    what: str,
    call: Callable[..., object],
    *arguments: int,
) -> None:
    before = snapshot(memory)
    try:
        call(*arguments)
    except error:
        pass
    except Exception as other:
        raise AssertionError(f"{what} raises {error.__name__}, not {type(other).__name__}") from other
    else:
        raise AssertionError(f"{what} raises {error.__name__}")
    assert snapshot(memory) == before, f"{what} leaves everything as it was"
    memory.check_integrity()


def _requests(memory: Allocator, rng: Random) -> list[tuple[int, int]]:
    """Return lengths of prompts and outputs: a token, the edges of a block, some of any size, too many."""
    size, slots = memory.block_size, memory.num_blocks * memory.block_size
    few = [(rng.randint(1, slots // 8), rng.randint(1, slots // 8)) for _ in range(4)]
    return [(1, 1), (size, size), (size + 1, 1), *few, (rng.randint(1, slots), 1), (slots, 1), (slots + 1, 1)]


def _left_by(memory: Allocator, tokens: int, output: int, samples: int) -> int | None:
    """Allocate samples of one request and return how many blocks that leaves; None if there is no room."""
    first = STRANGER
    try:
        memory.allocate(first, tokens, output)
        for sample in range(1, samples):
            memory.fork(first, first - sample)
    except OutOfBlocks:
        return None
    return memory.free_blocks


def _freed(mirror: Mirror) -> int:
    """Free one of the sequences, if any, and return it."""
    sequence = next((s for s, _ in mirror.tokens()), None)
    if sequence is None:
        return STRANGER
    mirror.free(sequence)
    return sequence


def _fresh(mirror: Mirror, at_least: int = 0) -> int:
    return max([at_least, *(sequence + 1 for sequence, _ in mirror.tokens())])


def _lived(make: Make, seed: int) -> Mirror:
    """Return a memory with a past: the same for the same seed."""
    mirror = Mirror(make())
    for _ in _live(mirror, Random(seed), 10 + 5 * seed):
        pass
    return mirror


def _live(mirror: Mirror, rng: Random, changes: int) -> Iterator[None]:
    """Make random changes that the contract allows and that find room; yield after each."""
    memory = mirror.memory
    largest = memory.num_blocks * memory.block_size // 8
    for _ in range(changes):
        resting, growing = list(mirror.resting), list(mirror.growing)
        change = rng.choice(
            ("allocate", "allocate", "append", "fork", "adopt", "free", "start", "start", "stop", "grow")
        )
        if change == "allocate":
            tokens, output = rng.randint(1, largest), rng.randint(1, largest)
            if memory.probe(tokens, output) is Fit.NOW:
                mirror.allocate(_fresh(mirror), tokens, output)
        elif change == "append" and resting:
            sequence = rng.choice(resting)
            if mirror.room(sequence) and (memory.free_blocks or not memory.grows_on_demand):
                mirror.append(sequence)
        elif change == "fork" and resting + growing:
            parent = rng.choice(resting + growing)
            with suppress(OutOfBlocks):  # a fork may be a copy
                mirror.fork(parent, _fresh(mirror))
        elif change == "adopt" and (pairs := mirror.adoptable()):
            mirror.adopt(*rng.choice(pairs))
        elif change == "free" and resting + growing:
            mirror.free(rng.choice(resting + growing))
        elif change == "start" and resting:
            mirror.start_growing(rng.choice(resting))
        elif change == "stop" and growing:
            mirror.stop_growing(rng.choice(growing))
        elif change == "grow":
            steps = min(rng.randint(1, 6), mirror.growing_room())
            if memory.demand(steps) <= memory.free_blocks:
                mirror.grow(steps)
        yield
