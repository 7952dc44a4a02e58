"""What groups of different rules take, give back and find, as vLLM 0.33.0's hybrid manager does it."""

from __future__ import annotations

import pytest

from pagesim.allocators import OutOfBlocks
from pagesim.kvcache import DENSE, ChunkedLocal, Full, HybridManager, KVGroup, SlidingWindow, State
from pagesim.kvcache.hybrid.blocks import NULL
from tests.kvcache.text import Reader, Text

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
    return Reader(Text([(name, place) for name, tokens in parts for place in range(tokens)], SIZE))


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
CHUNK = KVGroup(SIZE, ChunkedLocal(16))
STATE = KVGroup(SIZE, State(aligned=True))


# What is taken and given back


def test_every_group_takes_blocks_of_the_same_pool_in_the_order_of_the_groups():
    memory = memory_of(WINDOW, FULL, caches=False)
    request = admit(memory, ("a", 10))
    assert memory.block_table(request, group=0) == [0, 1, 2]
    assert memory.block_table(request, group=1) == [3, 4, 5]
    assert memory.free_blocks == 54


def test_a_window_gives_back_what_no_later_token_attends_to():
    memory = memory_of(WINDOW, FULL, caches=False)
    request = admit(memory, ("a", 12))
    decode(memory, request, 9)  # 20 tokens had run before the last step, which attends to the last 8 of them
    assert places(memory, request) == [3, 4, 5]
    assert places(memory, request, group=1) == [0, 1, 2, 3, 4, 5]


def test_where_a_batch_is_in_flight_a_window_gives_back_what_its_tokens_do_not_attend_to_either():
    synchronous, asynchronous = (
        memory_of(WINDOW, caches=False, steps_in_flight=steps_in_flight) for steps_in_flight in (0, 1)
    )
    left = []
    for memory in (synchronous, asynchronous):
        request = admit(memory, ("a", 12))
        decode(memory, request, 9)
        left.append(places(memory, request))
    assert left == [[3, 4, 5], [2, 3, 4, 5]]


def test_a_prompt_that_runs_in_chunks_gives_back_before_it_takes():
    memory = memory_of(WINDOW, caches=False, num_blocks=7)
    request = admit(memory, ("a", 60), tokens=20)
    memory.extend(request, 16)  # 20 tokens have run: the first three blocks are behind the window
    assert places(memory, request) == [3, 4, 5, 6, 7, 8]
    with pytest.raises(OutOfBlocks):
        memory.extend(request, 24)


def test_local_chunks_are_given_back_as_a_whole_once_the_next_one_has_begun():
    memory = memory_of(CHUNK, caches=False)
    request = admit(memory, ("a", 15))
    decode(memory, request, 1)
    assert places(memory, request) == [0, 1, 2, 3]
    decode(memory, request, 1)
    assert places(memory, request) == [4]


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


def test_of_freed_blocks_those_of_the_last_group_are_taken_first_and_the_last_of_a_table_before_others():
    memory = memory_of(WINDOW, FULL, caches=False)
    request = admit(memory, ("a", 8))
    memory.release(request)
    assert memory.free_blocks_in_order()[:4] == [3, 2, 1, 0]


# What an admission asks for


def test_the_gate_counts_a_window_with_what_can_be_in_flight_and_no_more():
    memory = memory_of(WINDOW, FULL, caches=False, in_flight=20, num_blocks=30)
    request = prompt(("a", 100))
    # 25 blocks of full attention, and of the window those of 8 + 20 tokens and one more.
    assert memory.blocks_for(100) == 25 + 8
    assert not memory.can_admit(request, 20, length=100)
    assert memory.can_admit(request, 20, length=88)


def test_without_the_gate_the_first_chunk_decides():
    memory = memory_of(WINDOW, FULL, caches=False, num_blocks=10)
    assert memory.can_admit(prompt(("a", 100)), 20)
    assert not memory.can_admit(prompt(("a", 100)), 21)


# What is found


def test_a_hit_must_be_there_in_all_groups():
    memory = memory_of(WINDOW, FULL, num_blocks=12)
    memory.release(admit(memory, ("a", 21)))
    assert found(memory, ("a", 21)) == 20
    memory.release(admit(memory, ("b", 5)))  # takes four blocks that could not be found
    assert found(memory, ("a", 21)) == 20
    memory.release(admit(memory, ("c", 9)))  # two more, and four that could
    assert found(memory, ("a", 21)) == 0


def test_of_a_hit_a_window_takes_over_no_more_than_it_attends_to():
    memory = memory_of(WINDOW, FULL)
    memory.release(admit(memory, ("a", 21)))
    request = admit(memory, ("a", 21), ("b", 3))
    assert memory.block_table(request)[:3] == [NULL, NULL, NULL]
    assert places(memory, request) == [3, 4, 5]
    assert places(memory, request, group=1) == [0, 1, 2, 3, 4, 5]


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


def test_the_second_request_with_a_common_beginning_pays_for_it_and_the_third_finds_it():
    memory = memory_of(WINDOW, FULL)
    memory.release(admit(memory, ("system", 20), ("a", 20)))
    second = prompt(("system", 20), ("b", 20))
    assert memory.match_prefix(second, second.prompt) == 0
    assert second.junction == 20
    memory.admit(second, second.prompt)
    memory.release(second)
    assert found(memory, ("system", 20), ("c", 20)) == 20


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


def test_what_cannot_be_found_is_taken_before_what_can():
    memory = memory_of(WINDOW, FULL, num_blocks=24)
    memory.release(admit(memory, ("a", 41)))  # two blocks of the window can be found, and ten of the other
    assert (memory.free_blocks, memory.cached_blocks) == (24, 12)
    memory.release(admit(memory, ("b", 15)))
    assert found(memory, ("a", 41)) == 40


def test_groups_with_blocks_of_several_sizes_find_what_ends_together():
    memory = memory_of(KVGroup(8, SlidingWindow(9)), FULL)
    memory.release(admit(memory, ("a", 30)))
    assert [found(memory, ("a", tokens)) for tokens in (30, 29, 24)] == [24, 24, 0]
