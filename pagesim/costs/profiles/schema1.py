"""Conversion of schema-1 profile terms (curves, formulas and three kinds of tables) into tables."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np

from pagesim.costs.prompts import whole_prompts
from pagesim.costs.table import FAR, Table, bilinear

BATCHES = (*range(1, 33), *range(40, 129, 8), *range(144, 513, 16), 1024)
"""Numbers of sequences at which a decode-attention formula with rounds is evaluated."""

MIN_SPLIT_TOKENS = 256
"""Tokens up to which decode attention does not split a sequence."""

CONTEXTS = (1, *(MIN_SPLIT_TOKENS * each + MIN_SPLIT_TOKENS // 2 for each in range(32)), FAR)
"""Contexts halfway between those at which a sequence gets one more split."""

NEAR = 0.005
"""Largest relative error of a simplified table."""


def curve(axis: str) -> Callable[[Any], Any]:
    """Return a converter of curves, given by ``at`` and ``seconds``, into tables over an axis."""

    def read(term: Any) -> Any:
        if isinstance(term, dict) and "at" in term:
            return {"axes": {axis: term["at"]}, "seconds": term.get("seconds")}
        return term

    return read


def decode(term: Any) -> Any:
    """Convert decode attention into a table over sequences and their mean context."""
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
        splits = max(1, min(slots // (batch * heads), -(-mean // MIN_SPLIT_TOKENS)))
        # The kernel's programs run in rounds, each over a part of every sequence.
        return float(found + a_round * -(-batch * heads * splits // slots) * mean / splits)

    if not (slots and a_round):
        return bilinear("sequences", "context", launch_s=launch, first_s=sequence, each_s=token)
    return Table.of({"sequences": BATCHES, "context": CONTEXTS}, seconds).simplified(NEAR)


def prefill(term: Any) -> Any:
    """Convert prompt attention into a table over new tokens and the mean number of keys each attends to."""
    if not isinstance(term, dict) or "axes" in term:
        return term
    if "lengths" in term:
        lengths, batches, seconds = (
            np.array(term[name], float) for name in ("lengths", "batches", "seconds")
        )
        return whole_prompts(lengths, batches, seconds, term.get("launch_s", 0.0)).simplified(NEAR)
    if "histories" in term:
        return _chunks(**term)
    launch, token, pair, key = (term[name] for name in ("launch_s", "token_s", "pair_s", "key_s"))
    return bilinear("tokens", "keys", launch_s=launch, first_s=token, second_s=key, each_s=pair)


def _chunks(tokens: Any, histories: Any, seconds: Any, launch_s: float = 0.0) -> Table:
    """Return a table of chunks after a history; below its range, interpolate towards a bare launch."""
    table = Table(axes={"tokens": tokens, "history": histories}, seconds=seconds)

    def of(chunk: float, keys: float) -> float:
        own = (chunk + 1) / 2
        history, least = keys - own, histories[0]
        if history >= least:
            return max(launch_s, table(chunk, history))
        return launch_s + (table(chunk, least) - launch_s) * keys / float(own + least)

    keys = sorted({1, *((each + 1) / 2 + before for each, before in product(tokens, histories))})
    return Table.of({"tokens": tokens, "keys": keys}, of).simplified(NEAR)
