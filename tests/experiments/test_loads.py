"""Loads that fill a cache: all clients wait in all iterations, and turns go on from turns."""

from __future__ import annotations

import numpy as np
import pytest

from pagesim.experiments.loads import LOADS, LONGEST_PROMPT, chats, conversations


@pytest.mark.parametrize("load", LOADS)
def test_it_is_enough_for_all_clients_and_iterations_and_the_same_for_a_seed(load: str) -> None:
    trace, again, other = (LOADS[load](20, 500, seed) for seed in (1, 1, 2))
    assert trace.output_tokens.sum() >= 20 * 500
    assert trace.prompt_tokens.tolist() == again.prompt_tokens.tolist() != other.prompt_tokens.tolist()
    assert not trace.arrival_s.any()


def test_each_client_of_conversations_has_enough_to_say() -> None:
    trace = conversations(20, 500)
    assert trace.session_id is not None
    said = np.bincount(trace.session_id.astype(int), trace.output_tokens)
    assert len(said) == 20
    assert said.min() >= 500


def test_a_turn_begins_with_the_one_before_or_a_conversation_begins_anew() -> None:
    trace = conversations(20, 5000)
    assert trace.session_id is not None
    anew = 0
    for client in range(20):
        own = trace.session_id == client
        prompts, outputs = trace.prompt_tokens[own], trace.output_tokens[own]
        goes_on = prompts[1:] > prompts[:-1] + outputs[:-1]
        assert (prompts[1:] < prompts[:-1] + outputs[:-1])[~goes_on].all()
        anew += int((~goes_on).sum())
    assert anew > 20
    assert trace.prompt_tokens.max() <= LONGEST_PROMPT


def test_not_all_clients_begin_with_a_first_turn() -> None:
    trace, alone = conversations(50, 200), chats(50, 200)
    assert trace.session_id is not None
    first = trace.prompt_tokens[np.unique(trace.session_id, return_index=True)[1]]
    assert first.mean() > 3 * alone.prompt_tokens.mean()
