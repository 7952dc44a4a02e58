"""Conversations made of single turns, for the paper's chatbot, whose conversations are not published."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pagesim.setup.scenario import Scenario
from pagesim.workloads.trace import Trace

PROMPT = 1024
"""The paper truncates a prompt to this many of its last tokens."""

OUTPUT = 1024
"""Longest output in the paper, in tokens."""

TURNS = 6
"""Turns per conversation: an assumption."""

APART_S = 60.0
"""Approximate seconds between two turns of a conversation: an assumption."""


def as_conversations(trace: Trace, scenario: Scenario) -> Trace:
    """Return a trace whose requests are turns, with the conversation so far at the start of each prompt.

    Questions and answers are the trace's prompts and outputs. A prompt is truncated to its last `PROMPT`
    tokens, after which turns no longer share a prefix. If ``enable_prefix_caching`` is given, nothing is
    truncated: a new conversation begins when the next prompt would exceed `PROMPT`. Until then, each turn
    has the previous one as its prefix, which may be cached.

    Args:
        trace: single turns.
        scenario: scenario whose rate determines how many conversations run concurrently.
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
