"""Chunks: what is written down of iterations, row by row, and of some consecutive rows together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pagesim.accounting.ledger import HELD_WITHOUT_RUNNING, Column, Ledger

KEPT_BYTES = 16 << 20
"""A piece of memory; twice as much is more than the columns of a chunk take."""

RARE_FIELDS = (
    "further_samples",
    "swapped",
    "used_cpu_blocks",
    "swapped_in",
    "swapped_out",
    "copied",
    "external_blocks",
    "shared_slack",
    "shared_rounding",
    *HELD_WITHOUT_RUNNING,
)
"""What is 0 in nearly every row.

    further_samples: running sequences beyond the first of each request.
    swapped: requests in the swap space.
    used_cpu_blocks: blocks of the swap space in use.
    swapped_in, swapped_out, copied: blocks moved.
    external_blocks: free but unusable for the head of the queue.
    shared_slack, shared_rounding: slots of shared last blocks that no token fills yet, and those of them that
        none ever will; a fast-forward changes neither.
    held_for_transfer and those behind it: blocks that only requests hold that do not run; a fast-forward
        changes none.
"""

ROW_FIELDS = (
    "planned",
    "decided",
    "start",
    "ticks",
    "increment",
    "iterations",
    "growth",
    "running_sequences",
    "waiting",
    "free_blocks",
    "batched_tokens",
    "tokens",
    "context_tokens",
    "continuing",
    "preempted",
    "shared_blocks",
    "cached_blocks",
    *RARE_FIELDS,
)
"""A row is a stretch of like iterations: one that was planned, or a fast-forward over several.

    planned: 1 if a plan was made, 0 for a fast-forward.
    decided: when the scheduler looked at the queue, in ticks.
    start, ticks: when its first iteration was carried out, and how long it took, in ticks.
    increment: ticks that each further one took more than the one before.
    iterations: how many there are.
    growth: steps of growth that memory had taken in the first.
    running_sequences, waiting: how many.
    free_blocks: on the device; of a fast-forward, just before it.
    batched_tokens: of the first, as the scheduler's own limit counts them.
    tokens: that the first computes.
    context_tokens: over its sequences, tokens whose KV exists once it has run.
    continuing: sequences that also got a token in the iteration before.
    preempted: requests that lost their place.
    shared_blocks: names of blocks beyond each one's first; a fast-forward does not change it.
    cached_blocks: free blocks whose content can still be found; of a fast-forward, just before it.
"""


class Rows:
    """The rows of a chunk, and the iterations that they stand for.

    Args:
        columns: the columns named in ``ROW_FIELDS``, ``[S]`` each, and of each row ``iteration``, the number
            of its first, ``context_growth``, tokens of context a step, ``running_groups``, the requests that
            run, and ``free_cpu_blocks``.

    Attributes:
        firsts: of each row, the place of its first iteration among those of the chunk, ``[S]``.
        stretch: for each iteration the index of its row, ``[I]``.
        offset: for each iteration its place in its row, ``[I]``.
    """

    __slots__ = ("columns", "firsts", "offset", "stretch")

    def __init__(self, columns: dict[str, Column]) -> None:
        self.columns = columns
        counts = columns["iterations"]
        self.firsts = np.cumsum(counts) - counts
        self.stretch = np.repeat(np.arange(len(counts)), counts)
        self.offset = np.arange(len(self.stretch)) - self.spread_out(self.firsts)

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    @property
    def growth(self) -> Column:
        """Steps of growth that memory had taken in each iteration, ``[I]``."""
        return self.offset + self.spread("growth")

    def spread(self, name: str) -> Column:
        """Return a column of rows over the iterations, ``[I]``."""
        return self.spread_out(self.columns[name])

    def spread_out(self, each: Column) -> Column:
        """Return something of each row over the iterations, ``[I, …]``."""
        return np.repeat(each, self.columns["iterations"], axis=0)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some consecutive rows, iteration by iteration.

    Attributes:
        rows: the rows.
        clock: when each iteration was decided, ``[I]``, in ticks.
        start: when it was carried out.
        ticks: how long it took.
        ledger: of each iteration.
        late: gaps between two tokens of sequences that lost their place or stood still in between, in ticks,
            ``[G]``.
        late_counts: how many sequences each is of, ``[G]``.
        gaps: times between iterations, where requests may hold blocks that do not run, ``[P, 2 + E]``: from
            when to when, in ticks, and the blocks of each of `Scheduler.parks`.
    """

    rows: Rows
    clock: Column
    start: Column
    ticks: Column
    ledger: Ledger
    late: Column
    late_counts: Column
    gaps: Column


def keep_freed() -> None:
    """Let the process keep what the columns of a chunk took, for those of the next.

    glibc gives freed memory back beyond twice the largest piece that was mapped and freed (mallopt(3),
    M_MMAP_THRESHOLD), and each of its pages costs a fault when it is used again. So one piece is mapped and
    freed here; no page of it is used. Elsewhere this does nothing.
    """
    np.empty(KEPT_BYTES, np.uint8)
