"""Conversations made of single turns: the paper's chatbot, whose own conversations are not published."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pagesim.setup.scenario import Scenario
from pagesim.workloads.trace import Trace

PROMPT = 1024
"""The paper cuts a prompt to its last tokens, so many."""

OUTPUT = 1024
"""The paper's longest answer."""

TURNS = 6
"""Turns of a conversation: assumed."""

APART_S = 60.0
"""Seconds between two turns of a conversation, roughly: assumed."""


def as_conversations(trace: Trace, scenario: Scenario) -> Trace:
    """Return a trace whose requests are turns that begin with all that was said before in theirs.

    Questions and answers are the trace's prompts and outputs. A prompt is cut to its last `PROMPT` tokens, so
    that turns share no beginning once it is cut. Where ``enable_prefix_caching`` is given nothing is cut: a
    conversation begins anew when its next prompt would be longer than `PROMPT`, and until then a turn begins
    with what the cache may hold of the one before.

    Args:
        trace: single turns.
        scenario: whose rate says how many conversations go on at a time.
    """
    together = max(1, round(APART_S * (scenario.rate or 1.0)))
    prompts, outputs = trace.prompt_tokens.copy(), np.minimum(trace.output_tokens, OUTPUT)
    sessions = np.empty(len(trace), np.int64)
    said = np.zeros(together, np.int64)
    taken = np.zeros(together, np.int64)
    session = np.arange(together)
    new = together
    for at in range(len(trace)):
        place = at % together
        whole = said[place] + prompts[at]
        if taken[place] == TURNS or (scenario.option("enable_prefix_caching") is not None and whole > PROMPT):
            said[place], taken[place], session[place], new = 0, 0, new, new + 1
            whole = prompts[at]
        said[place] = whole + outputs[at]
        taken[place] += 1
        prompts[at] = min(whole, PROMPT)
        sessions[at] = session[place]
    return replace(trace, prompt_tokens=prompts, output_tokens=outputs, session_id=sessions)
