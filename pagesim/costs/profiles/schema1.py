"""Terms of profile files of schema 1, which had curves, formulas and three kinds of tables, as tables."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

from pydantic import BaseModel

from pagesim.costs.table import Table

FAR = 1 << 14
"""Formulas that are straight along an axis are told by their seconds at 1 and at this."""

BATCHES = (*range(1, 33), *range(40, 129, 8), *range(144, 513, 16), 1024)
"""Where a formula of decode attention is looked at that goes in rounds."""

MIN_SPLIT_TOKENS = 256
"""Below so many tokens a sequence is not cut into splits."""

CONTEXTS = (1, *(MIN_SPLIT_TOKENS * each + MIN_SPLIT_TOKENS // 2 for each in range(32)), FAR)
"""Halfway between the contexts where a sequence is cut once more, and programs read less at once."""

NEAR = 0.005
"""How near a table comes to what it was made of, relatively, between its knots."""


def curve(axis: str) -> Callable[[Any], Any]:
    """Return what reads a curve over an axis: ``at`` and ``seconds``."""

    def read(term: Any) -> Any:
        term = _fields(term)
        if isinstance(term, dict) and "at" in term:
            return {"axes": {axis: term["at"]}, "seconds": term.get("seconds")}
        return term

    return read


def decode(term: Any) -> Any:
    """Return decode attention over sequences and their mean context."""
    term = _fields(term)
    if not isinstance(term, dict) or "axes" in term:
        return term
    if "batches" in term:
        return {
            "axes": {"sequences": term["batches"], "context": term["contexts"]},
            "seconds": term["seconds"],
        }
    launch, sequence, token = term["launch_s"], term["sequence_s"], term["context_s"]
    a_round, slots, heads = term.get("round_s", 0.0), term.get("slots", 0), term.get("kv_heads", 1)

    def seconds(batch: int, mean: int) -> float:
        found = launch + sequence * batch + token * batch * mean
        if slots and a_round:
            splits = max(1, min(slots // (batch * heads), -(-mean // MIN_SPLIT_TOKENS)))
            # Programs run in rounds, each over a part of every sequence.
            found += a_round * -(-batch * heads * splits // slots) * mean / splits
        return float(found)

    if not (slots and a_round):
        return Table.of({"sequences": (1, FAR), "context": (1, FAR)}, seconds)
    return Table.of({"sequences": BATCHES, "context": CONTEXTS}, seconds).simplified(NEAR)


def prefill(term: Any) -> Any:
    """Return prompts' attention over new tokens and the keys that a token attends to in the mean."""
    term = _fields(term)
    if not isinstance(term, dict) or "axes" in term:
        return term
    if "lengths" in term:
        return _prompts(**term)
    if "histories" in term:
        return _chunks(**term)

    def seconds(tokens: float, keys: float) -> float:
        each = term["launch_s"] + term["token_s"] * tokens + term["pair_s"] * tokens * keys
        return float(each + term["key_s"] * keys)

    return Table.of({"tokens": (1, FAR), "keys": (1, FAR)}, seconds)


def _prompts(lengths: Any, batches: Any, seconds: Any, launch_s: float = 0.0) -> Table:
    """Return a table of whole prompts: tokens that attend to more keys are a part of a longer prompt."""
    table = Table(axes={"length": lengths, "prompts": batches}, seconds=seconds)

    def part(length: int, tokens: float) -> float:
        prompts = tokens / length
        return table(length, prompts) * float(min(1.0, prompts / batches[0]))

    def of(tokens: float, keys: float) -> float:
        row = round(2 * keys - 1)
        # Parts of longer prompts than these tokens make take no less than as many of whole prompts.
        whole = max((each for each in lengths if each <= tokens), default=lengths[0])
        return max(launch_s, *(part(each, tokens) for each in lengths if min(whole, row) <= each <= row), 0.0)

    tokens = sorted({1, *lengths, *(length * batch for length, batch in product(lengths, batches))})
    keys = [(length + 1) / 2 for length in lengths]
    return Table.of({"tokens": tokens, "keys": keys}, of).simplified(NEAR)


def _chunks(tokens: Any, histories: Any, seconds: Any, launch_s: float = 0.0) -> Table:
    """Return a table of chunks behind a history, those of several prompts a part on the way to a launch."""
    table = Table(axes={"tokens": tokens, "history": histories}, seconds=seconds)

    def of(chunk: float, keys: float) -> float:
        own = (chunk + 1) / 2
        history, least = keys - own, histories[0]
        if history >= least:
            return max(launch_s, table(chunk, history))
        return launch_s + (table(chunk, least) - launch_s) * keys / float(own + least)

    keys = sorted({1, *((each + 1) / 2 + before for each, before in product(tokens, histories))})
    return Table.of({"tokens": tokens, "keys": keys}, of).simplified(NEAR)


def _fields(term: Any) -> Any:
    return term.model_dump() if isinstance(term, BaseModel) and not isinstance(term, Table) else term
