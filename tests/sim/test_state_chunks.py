"""Where the chunks of a prompt end in a model with recurrent states, as in vLLM 0.33.0."""

from __future__ import annotations

from pagesim.kvcache import StateChunks
from pagesim.scheduling.chunks import cut
from pagesim.scheduling.request import EngineRequest

PLAIN = StateChunks(100, None, 100)
LEAVES_STATES = StateChunks(100, 1, 100)


def request(prompt: int, *, length: int | None = None, junction: int = 0) -> EngineRequest:
    made = EngineRequest(0, 0, 0, prompt, 10)
    made.length = length or prompt
    made.junction = junction
    return made


def chunk(of: EngineRequest, start: int, tokens: int, states: StateChunks = PLAIN, most: int = 2048) -> int:
    return cut(of, start, tokens, states, most)


def test_a_chunk_before_the_last_one_ends_where_a_block_does():
    assert chunk(request(1000), 0, 450) == 400


def test_a_budget_of_less_than_a_block_gives_nothing_unless_no_chunk_could_be_a_block_long():
    assert chunk(request(1000), 0, 60) == 0
    assert chunk(request(1000), 0, 60, most=64) == 60


def test_a_prompt_stops_at_the_end_of_its_last_full_block_and_goes_on_in_a_short_chunk():
    assert chunk(request(450), 0, 450) == 400
    assert chunk(request(450), 400, 50) == 50


def test_the_last_token_belongs_to_no_full_block_as_it_is_computed_again_after_a_hit():
    assert chunk(request(400), 0, 400) == 300


def test_kernels_that_leave_a_state_behind_need_no_short_chunk():
    assert chunk(request(450), 0, 450, LEAVES_STATES) == 450


def test_they_leave_one_only_at_a_multiple_of_their_own_tiles():
    assert chunk(request(150), 0, 150, StateChunks(100, 64, 100)) == 100
    assert chunk(request(150), 0, 150, StateChunks(100, 50, 100)) == 150


def test_a_chunk_stops_where_another_request_parted_from_this_one():
    assert chunk(request(1000, junction=250), 0, 900) == 200
    assert chunk(request(1000, junction=200), 0, 900) == 200
    assert chunk(request(1000, junction=200), 200, 700) == 700


def test_a_chunk_that_began_within_a_block_ends_with_it():
    assert chunk(request(1000), 60, 500) == 40


def test_what_was_generated_before_a_preemption_is_computed_again_as_a_prompt_is():
    assert chunk(request(250, length=451), 0, 451) == 400


def test_beyond_a_prompts_end_tokens_are_those_of_the_budget():
    assert chunk(request(250), 250, 1) == 1
