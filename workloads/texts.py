"""Readers of conversations and instructions: formats that hold text, whose tokens are counted on reading.

One token is added to every prompt (the beginning-of-text token that starts it) and to every output (the
token that ends it), as the PagedAttention paper's Alpaca lengths count; so an empty text has one token. In
the prompt of a later turn of a conversation the earlier answers are there with the tokens that ended them:
it is the previous turn's prompt, its output, and the new question, token for token.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

import numpy as np

from pagesim.errors import brief
from pagesim.workloads import tokenizer
from pagesim.workloads.rows import Rows

TurnChoice = Literal["first", "all", "after-completion"]
"""The first turn of a conversation, all of them, or all, each later one sent when the last is over."""

PEOPLE = ("human", "user")
MODELS = ("gpt", "chatgpt", "assistant", "model", "bing", "bard", "bot")
CONVERSATIONS = ("conversations", "conversation", "messages")
"""Columns that hold one: ShareGPT's; LMSYS-Chat's and WildChat's; OpenAI's."""

CUSTOM_OUTPUT = 256
"""Tokens that ``vllm bench serve`` generates for a prompt of a custom dataset by default."""

EXTRA = "one token added to each prompt (beginning of text) and each output (end)"


def read_sharegpt(rows: Rows, count: tokenizer.Counter, turns: TurnChoice) -> dict[str, Any]:
    """Read conversations: their first turn, or each turn with all before it in its prompt."""
    name = next(each for each in CONVERSATIONS if each in rows.columns)
    raw = rows.column(name)
    talks = [_rounds(value) for value in raw]
    rows.reject_values(
        name,
        np.array([talk is not None for talk in talks], bool),
        'a list of {"from": ..., "value": text}',
    )
    rows.leave_out(
        np.array([talk == [] for talk in talks], bool), "a conversation without a question and its answer"
    )
    rows_kept = rows.settle()
    kept = [talks[row] or [] for row in rows_kept]
    others = Counter(speaker for row in rows_kept for speaker in _others(raw[row]))
    if others:
        turns_of = ", ".join(f"{number} of {brief(name)}" for name, number in sorted(others.items())[:5])
        rows.notes.append(f"turns that are neither a question nor an answer are left out: {turns_of}")
    if turns == "first":
        kept = [talk[:1] for talk in kept]
    prompts = count([p for talk in kept for p, _ in talk])
    outputs = count([o for talk in kept for _, o in talk])
    sizes = np.array([len(talk) for talk in kept])
    rows.notes.extend((count.note, EXTRA))
    if turns == "first":
        return {"prompt_tokens": prompts + 1, "output_tokens": outputs + 1}
    session = np.repeat(np.arange(len(kept)), sizes)
    # What a conversation's earlier turns hold: the running total, less what it was when the session began.
    held = prompts + outputs + 1
    before = np.cumsum(held) - held
    start = before[np.repeat(np.cumsum(sizes) - sizes, sizes)]
    return {
        "prompt_tokens": before - start + prompts + 1,
        "output_tokens": outputs + 1,
        "session_id": session,
    }


def read_instructions(rows: Rows, count: tokenizer.Counter, beside: str, answer: str) -> dict[str, Any]:
    """Read instructions: the prompt is the instruction, a blank line, and what is beside it, if anything."""
    instruction, output = _text(rows, "instruction"), _text(rows, answer)
    extra = _text(rows, beside, optional=True)
    prompt = [f"{a}\n\n{b}" if b else a for a, b in zip(instruction, extra, strict=True)]
    kept = rows.settle()
    rows.notes.extend((count.note, EXTRA))
    return {
        "prompt_tokens": count([prompt[i] for i in kept]) + 1,
        "output_tokens": count([output[i] for i in kept]) + 1,
    }


def read_prompts(rows: Rows, count: tokenizer.Counter, prompt: str, output: str | None) -> dict[str, Any]:
    """Read a prompt's text from one column, and the number of tokens to generate from another, if any."""
    text = _text(rows, prompt)
    tokens = np.full(len(rows), CUSTOM_OUTPUT) if output is None else rows.tokens(output)
    if output is None:
        rows.notes.append(
            f"no output lengths: {CUSTOM_OUTPUT} tokens each, as vllm bench serve takes by default"
        )
    kept = rows.settle()
    rows.notes.extend((count.note, EXTRA.replace(" and each output (end)", "")))
    return {"prompt_tokens": count([text[i] for i in kept]) + 1, "output_tokens": tokens[kept]}


def _text(rows: Rows, name: str, optional: bool = False) -> list[str]:
    values = rows.column(name) if name in rows.columns else [None] * len(rows)
    good = [isinstance(v, str) or (optional and v is None) for v in values]
    if name in rows.columns:
        rows.reject_values(name, np.array(good, bool), "text")
    return [v if isinstance(v, str) else "" for v in values]


def _others(conversation: Any) -> list[str]:
    """Return who says each turn of a conversation that is neither a question nor an answer."""
    speakers = [turn.get("from", turn.get("role")).lower() for turn in conversation]
    return [name for name in speakers if name not in (*PEOPLE, *MODELS)]


def _rounds(conversation: object) -> list[tuple[str, str]] | None:
    """Return the (question, answer) pairs of a conversation; None when it is not one."""
    if not isinstance(conversation, list):
        return None
    found: list[tuple[str, str]] = []
    question: str | None = None
    for turn in conversation:
        if not isinstance(turn, dict):
            return None
        speaker, text = turn.get("from", turn.get("role")), turn.get("value", turn.get("content"))
        if not isinstance(speaker, str) or not isinstance(text, str):
            return None
        if speaker.lower() in PEOPLE:
            question = text
        elif speaker.lower() in MODELS and question is not None:
            found.append((question, text))
            question = None
    return found
