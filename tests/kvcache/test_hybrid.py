"""What groups of different rules take, give back and find, as vLLM 0.33.0's hybrid manager does it."""

from __future__ import annotations

from pagesim.kvcache import DENSE, Full, HybridManager, KVGroup, SlidingWindow, State
from pagesim.kvcache.hybrid.blocks import NULL
from tests.kvcache.text import Reader

SIZE = 4
LONGEST = 400


def memory_of(
    *groups: KVGroup,
    num_blocks: int = 60,
    caches: bool = True,
    retention: int = 0,
    in_flight: int = 100,
    steps_in_flight: int = 0,
) -> HybridManager:
    memory = HybridManager(
        num_blocks, groups, longest=LONGEST, in_flight=in_flight, caches=caches, retention=retention
    )
    memory.steps_in_flight = steps_in_flight
    return memory


def prompt(*parts: tuple[str, int]) -> Reader:
    """Return a request whose prompt is made of so many tokens of each text."""
    return Reader([(name, place) for name, tokens in parts for place in range(tokens)], SIZE)


def admit(memory: HybridManager, *parts: tuple[str, int], tokens: int | None = None) -> Reader:
    """Begin a plan, look a prompt up and compute its first tokens, or all."""
    request = prompt(*parts)
    memory.new_plan()
    memory.match_prefix(request, request.prompt)
    memory.admit(request, request.prompt if tokens is None else tokens)
    memory.check_integrity()
    return request


def found(memory: HybridManager, *parts: tuple[str, int]) -> int:
    """Return the cached tokens of a prompt."""
    request = prompt(*parts)
    return memory.match_prefix(request, request.prompt)


def places(memory: HybridManager, request: Reader, group: int = 0) -> list[int]:
    """Return at which places of its table a request has a block."""
    return [at for at, block in enumerate(memory.block_table(request, group=group)) if block != NULL]


def decode(memory: HybridManager, request: Reader, steps: int) -> None:
    memory.start_decoding(request)
    memory.allocate_step(steps)
    memory.stop_decoding(request)
    memory.check_integrity()


FULL = KVGroup(SIZE, Full())
WINDOW = KVGroup(SIZE, SlidingWindow(9))
STATE = KVGroup(SIZE, State(aligned=True))


# What is taken and given back


def test_a_state_of_which_nothing_is_found_again_is_one_block_for_good():
    memory = memory_of(KVGroup(LONGEST, State()), FULL, caches=False)
    request = admit(memory, ("a", 30))
    decode(memory, request, 50)
    assert len(places(memory, request)) == 1
    assert len(places(memory, request, group=1)) == 20


def test_a_state_that_can_be_found_moves_on_to_a_new_block_where_one_ends():
    memory = memory_of(STATE)
    request = admit(memory, ("a", 10))
    assert places(memory, request) == [2]  # of a chunk over three blocks the last one alone is taken
    decode(memory, request, 3)
    assert places(memory, request) == [2, 3]  # the state before is copied in this step
    decode(memory, request, 1)
    assert places(memory, request) == [3]


def test_a_chunk_that_can_leave_a_state_behind_takes_a_block_for_it():
    memory = memory_of(KVGroup(SIZE, State(aligned=True, checkpoint=1)))
    request = admit(memory, ("a", 14))
    assert places(memory, request) == [2, 3]
    assert found(memory, ("a", 14)) == 12


# What is found


def test_a_window_keeps_findable_only_what_a_prompts_end_needs():
    sparse, dense = memory_of(WINDOW, FULL), memory_of(WINDOW, FULL, retention=DENSE)
    for memory in (sparse, dense):
        memory.release(admit(memory, ("a", 41)))
    shorter = ("a", 21)
    assert (found(sparse, ("a", 41)), found(dense, ("a", 41))) == (40, 40)
    assert (found(sparse, shorter), found(dense, shorter)) == (0, 20)


def test_a_retention_interval_keeps_a_window_findable_every_so_often():
    memory = memory_of(WINDOW, FULL, retention=16)
    memory.release(admit(memory, ("a", 61)))
    assert [found(memory, ("a", tokens)) for tokens in (17, 21, 33, 35)] == [16, 16, 32, 32]


def test_a_state_is_found_where_a_block_ends_and_nowhere_else():
    memory = memory_of(STATE, FULL)
    first = admit(memory, ("a", 20), tokens=16)
    memory.extend(first, 4)
    memory.release(first)
    assert [found(memory, ("a", tokens)) for tokens in (20, 17, 16)] == [16, 16, 0]


def test_a_state_that_is_computed_in_a_step_cannot_be_gone_on_from_in_the_same_step():
    memory = memory_of(STATE, FULL)
    first = admit(memory, ("a", 20), tokens=16)
    second = prompt(("a", 18))
    assert memory.match_prefix(second, second.prompt) == 16
    assert not memory.can_admit(second, 18)
    memory.new_plan()
    assert memory.can_admit(second, 18)
    memory.release(first)
