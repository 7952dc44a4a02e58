"""What prompts of a trace have in common: reuse at unlimited memory, and how far apart in other blocks."""

from __future__ import annotations

import numpy as np

from pagesim.errors import PagesimError
from pagesim.workloads.arrivals import numbered_sessions
from pagesim.workloads.trace import IntColumn, Trace


def ideal_reuse(trace: Trace) -> tuple[int, int]:
    """Return how many blocks of prompts a prefix cache without a limit would hit, and how many there are.

    A block hits if its id and all ids before it in its prompt began the prompt of an earlier row: requests
    count as served one after another, each prompt cached before the next comes. Blocks are those that the
    prompts begin, ⌈prompt tokens / ``hash_block_size``⌉ each. **A last block that is filled only in part
    counts as any other**, hit or not, as in Mooncake's own figure (real caches reuse full blocks only). A
    block without an id never hits. Outputs have no ids and are not counted.

    Raises:
        PagesimError: the trace has no ``hash_ids``.
    """
    hits = len(reuse_distances(trace))
    return hits, int((-(-trace.prompt_tokens // trace.hash_block_size)).sum())


def reuse_distances(trace: Trace) -> IntColumn:
    """Return how many other blocks were used since each block that hits was used last, ``[hits]``.

    Hits are those of `ideal_reuse`. A cache that forgets what was used least recently hits a block if it
    holds more blocks than this; blocks of outputs are not counted.

    Raises:
        PagesimError: the trace has no ``hash_ids``.
    """
    if trace.hash_ids is None:
        raise PagesimError("the trace has no hash_ids, which say what its prompts share")
    # A prefix is a number; the table leads from a prefix and the id after it to the prefix of both.
    longer: dict[tuple[int, int], int] = {}
    last: dict[int, int] = {}
    found: list[tuple[int, int]] = []
    now = 0
    for ids in trace.hash_ids:
        prefix = 0
        for block in ids:
            prefix = longer.setdefault((prefix, block), len(longer) + 1)
            if prefix in last:
                found.append((last[prefix], now))
            last[prefix] = now
            now += 1
    before, at = np.array(found, np.int64).reshape(-1, 2).T
    # Uses in between, less those of blocks that were used once more in between.
    return at - before - 1 - _larger_before(before)


def session_reuse(trace: Trace) -> int:
    """Return how many prompt tokens the turns of sessions have from the turn before, prompt and output.

    Raises:
        PagesimError: the trace has no sessions.
    """
    if trace.session_id is None:
        raise PagesimError("the trace has no session_id, which says whose turns its requests are")
    held: dict[int, int] = {}
    shared = 0
    lengths = zip(trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True)
    for session, (prompt, output) in zip(numbered_sessions(trace).tolist(), lengths, strict=True):
        shared += held.get(session, 0) if held.get(session, 0) <= prompt else 0
        held[session] = prompt + output
    return shared


def _larger_before(values: IntColumn) -> IntColumn:
    """Return how many earlier values are larger than each one, ``[N]``; no two values are equal."""
    counts = np.zeros(len(values), np.int64)
    order, width = np.arange(len(values)), 1
    while width < len(values):
        # Pairs of neighbouring runs of this width: a value of the right run counts those of the left.
        pair = np.arange(len(values)) // (2 * width)
        order = np.lexsort((values, pair))
        left = (order // width) % 2 == 0
        lefts = np.cumsum(left)
        begun = np.searchsorted(pair[order], pair[order])
        below = lefts - np.where(begun > 0, lefts[begun - 1], 0)
        sizes = np.bincount(pair, weights=(np.arange(len(values)) // width) % 2 == 0).astype(np.int64)
        counts[order[~left]] += (sizes[pair[order]] - below)[~left]
        width *= 2
    return counts
