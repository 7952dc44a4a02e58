"""Loads that fill a cache: clients send their next request as soon as the last one is answered.

All clients are present from the start and none pauses. So the decisions in each iteration do not depend on
how long iterations take.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pagesim.workloads import make_trace
from pagesim.workloads.trace import Trace

LENGTHS = "sharegpt"
"""The bundled workload that lengths of questions and answers are drawn from."""

LONGEST_PROMPT = 4096
"""Tokens. When a conversation's next prompt would be longer, its client begins a new conversation."""

TURNS_BEFORE = 8
"""Upper bound (exclusive) of the turns that a client's first conversation already has when the load begins,
so that not all clients begin a conversation at once."""

SHORTEST_ON_AVERAGE = 100
"""Tokens; the mean answer is longer than this."""

BEFORE_TOKENS = 6000
"""Answer tokens that a client may need beyond one per iteration."""


def chats(clients: int, iterations: int, seed: int = 0) -> Trace:
    """Return single questions, enough for this many clients to wait for answers in this many iterations.

    Args:
        clients: number of clients, each of which waits for its answer (``max_concurrency``).
        iterations: number of iterations, in each of which a client gets at most one token.
        seed: seed of the lengths.
    """
    prompts, outputs = _drawn(clients, iterations, seed)
    enough = int(np.searchsorted(np.cumsum(outputs), clients * iterations)) + 1
    return Trace(np.zeros(enough), prompts[:enough], outputs[:enough])


def conversations(clients: int, iterations: int, seed: int = 0) -> Trace:
    """Return multi-turn chats, in which a prompt is the whole conversation so far plus a new question.

    Args:
        clients: see `chats`; each is one session with one conversation after another.
        iterations: see `chats`.
        seed: see `chats`.
    """
    questions, answers = (column.tolist() for column in _drawn(clients, iterations, seed))
    before = np.random.default_rng([seed, 4]).integers(0, TURNS_BEFORE, clients).tolist()
    prompts: list[int] = []
    outputs: list[int] = []
    sessions: list[int] = []
    turn = 0
    for client in range(clients):
        said, to_come, unsent = 0, iterations, before[client]
        while to_come > 0:
            question, answer = questions[turn], answers[turn]
            turn += 1
            if said + question > LONGEST_PROMPT:
                said = 0
            said += question
            if unsent:
                unsent -= 1
            else:
                prompts.append(said)
                outputs.append(answer)
                sessions.append(client)
                to_come -= answer
            said += answer
    size = len(prompts)
    return Trace(
        np.zeros(size),
        np.array(prompts),
        np.array(outputs),
        session_id=np.array(sessions),
        think_s=np.zeros(size),
    )


LOADS: dict[str, Callable[[int, int, int], Trace]] = {"chats": chats, "conversations": conversations}
"""Functions that make a load from clients, iterations and a seed, by name."""


def _drawn(clients: int, iterations: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return lengths of questions and answers, ``[N]`` each, more than are needed."""
    size = clients * -(-(iterations + BEFORE_TOKENS) // SHORTEST_ON_AVERAGE)
    trace = make_trace(LENGTHS, num_requests=size, rate=float("inf"), seed=seed)
    return trace.prompt_tokens, trace.output_tokens
