"""Loads that fill a cache: clients that send the next request as soon as the last one is answered.

All are there from the beginning and none thinks, so what is decided in which iteration does not depend on how
long iterations take.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pagesim.workloads import make_trace
from pagesim.workloads.trace import Trace

LENGTHS = "sharegpt"
"""The bundled workload that questions and answers are as long as."""

LONGEST_PROMPT = 4096
"""Tokens; a conversation whose next prompt would be longer is over, and its client begins another."""

TURNS_BEFORE = 8
"""A client's first conversation has had fewer turns than so many before the load begins; so not all clients
begin a conversation at once."""

SHORTEST_ON_AVERAGE = 100
"""Tokens; answers are longer, on average."""

BEFORE_TOKENS = 6000
"""Tokens of answers that a client may need beyond one an iteration."""


def chats(clients: int, iterations: int, seed: int = 0) -> Trace:
    """Return single questions, enough for so many clients to wait for answers in so many iterations.

    Args:
        clients: who send them; each waits for its answer (``max_concurrency``).
        iterations: in each of which a client gets one token at most.
        seed: of the lengths.
    """
    prompts, outputs = _drawn(clients, iterations, seed)
    enough = int(np.searchsorted(np.cumsum(outputs), clients * iterations)) + 1
    return Trace(np.zeros(enough), prompts[:enough], outputs[:enough])


def conversations(clients: int, iterations: int, seed: int = 0) -> Trace:
    """Return chats in turns: a prompt is all that was said before in its conversation, and a question.

    Args:
        clients: see `chats`; each is a session of one conversation after another.
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
"""By name, what makes them of clients, iterations and a seed."""


def _drawn(clients: int, iterations: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return lengths of questions and answers, ``[N]`` each, more than enough."""
    size = clients * -(-(iterations + BEFORE_TOKENS) // SHORTEST_ON_AVERAGE)
    trace = make_trace(LENGTHS, num_requests=size, rate=float("inf"), seed=seed)
    return trace.prompt_tokens, trace.output_tokens
