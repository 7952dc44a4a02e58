"""Conversations made of lengths: a prompt is all that was said before in its conversation, and a question."""

from __future__ import annotations

import numpy as np

from pagesim.errors import PagesimError
from pagesim.workloads.lengths import Lengths
from pagesim.workloads.trace import MAX_TOKENS, Trace
from pagesim.workloads.values import number

PREFIX = "conversations"

SPEC = "conversations:TOKENS:LENGTHS"
"""How conversations are spelt in text; the lengths are a workload or a distribution."""


def parse_conversations(text: str) -> tuple[int, str] | None:
    """Return the most tokens of a prompt and the name of the lengths; None where a text is of another kind.

    Raises:
        PagesimError: the tokens are no whole number from 1 to ``MAX_TOKENS``, or no lengths are named.
    """
    kind, colon, rest = text.partition(":")
    if kind != PREFIX or not colon:
        return None
    tokens, _, lengths = rest.partition(":")
    longest = number(tokens)
    if not 1 <= longest <= MAX_TOKENS or longest != int(longest) or not lengths:
        raise PagesimError(
            f"trace {text!r} cannot be read; write {SPEC}, such as conversations:8192:sharegpt: "
            f"a whole number of tokens from 1 to {MAX_TOKENS}, then a workload or a distribution"
        )
    return int(longest), lengths


def conversations(lengths: Lengths, longest: int, turns: int, seed: int = 0) -> Trace:
    """Return so many turns, conversation after conversation, whose clients think for no time.

    Args:
        lengths: of questions (its prompts) and answers (its outputs).
        longest: tokens of a prompt at most; a question that is longer by itself is cut.
        turns: of all conversations together.
        seed: of the lengths; the same seed gives the same in any process.
    """
    asked, answered = lengths.sample(turns, np.random.default_rng([seed, 1]))
    asked = np.minimum(asked, longest)
    prompts, sessions = np.empty(turns, np.int64), np.empty(turns, np.int64)
    said = session = 0
    for turn, (question, answer) in enumerate(zip(asked.tolist(), answered.tolist(), strict=True)):
        if said + question > longest:
            said, session = 0, session + 1
        prompts[turn], sessions[turn] = said + question, session
        said += question + answer
    return Trace(np.zeros(turns), prompts, answered, session_id=sessions, think_s=np.zeros(turns))
