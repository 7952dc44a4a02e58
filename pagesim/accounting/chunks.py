"""Chunks: groups of consecutive rows that record iterations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pagesim.accounting.ledger import HELD_WITHOUT_RUNNING, Column, Ledger

KEPT_BYTES = 16 << 20
"""Size of one allocation; twice this size exceeds what a chunk's columns allocate."""

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
"""Fields that are 0 in nearly every row.

    further_samples: running sequences beyond the first of each request.
    swapped: requests in the swap space.
    used_cpu_blocks: blocks of the swap space in use.
    swapped_in, swapped_out, copied: blocks moved.
    external_blocks: free blocks that the request at the head of the queue cannot use.
    shared_slack, shared_rounding: slots of shared last blocks that no token fills yet, and those that none
        ever will; constant during a fast-forward.
    held_for_transfer and the following: blocks held only by requests that are not running; constant during a
        fast-forward.
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
"""Fields of a row, which stands for one planned iteration or for all iterations of a fast-forward.

    planned: 1 for a planned iteration, 0 for a fast-forward.
    decided: when the scheduler looked at the queue, in ticks.
    start, ticks: start and duration of the first iteration, in ticks.
    increment: ticks by which each further iteration takes longer than the previous one.
    iterations: number of iterations.
    growth: steps of growth that memory had completed in the first iteration.
    running_sequences, waiting: running sequences and waiting requests.
    free_blocks: free blocks on the device; just before it for a fast-forward.
    batched_tokens: tokens of the first iteration as the scheduler's own limit counts them.
    tokens: tokens that the first iteration computes.
    context_tokens: tokens of its sequences whose KV exists after the first iteration.
    continuing: sequences that also generated a token in the previous iteration.
    preempted: preempted requests.
    shared_blocks: references to blocks beyond each block's first; constant during a fast-forward.
    cached_blocks: free blocks whose content can still be hit; just before it for a fast-forward.
"""


class Rows:
    """The rows of a chunk and the iterations that they stand for.

    Args:
        columns: columns named in ``ROW_FIELDS``, ``[S]`` each, plus ``iteration``, the number of a row's
            first iteration, ``context_growth``, the context tokens added per step, ``running_groups``, the
            running requests, and ``free_cpu_blocks``.

    Attributes:
        firsts: index in the chunk of each row's first iteration, ``[S]``.
        stretch: index of each iteration's row, ``[I]``.
        offset: index of each iteration within its row, ``[I]``.
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
        """Steps of growth that memory had completed at each iteration, ``[I]``."""
        return self.offset + self.spread("growth")

    def spread(self, name: str) -> Column:
        """Return a column with each row's value repeated for its iterations, ``[I]``."""
        return self.spread_out(self.columns[name])

    def spread_out(self, each: Column) -> Column:
        """Return an array over rows with each value repeated for its row's iterations, ``[I, …]``."""
        return np.repeat(each, self.columns["iterations"], axis=0)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive recorded rows, expanded to one entry per iteration.

    Attributes:
        rows: recorded rows, each of one iteration or one fast-forward.
        clock: when each iteration was decided, ``[I]``, in ticks.
        start: when it started, ``[I]``, in ticks.
        ticks: how long it took, ``[I]``, in ticks.
        ledger: ledger of the iterations.
        late: gaps between two tokens of sequences that were preempted or stalled in between, in ticks,
            ``[G]``.
        late_counts: number of sequences with each of these gaps, ``[G]``.
        gaps: periods between iterations with the blocks that requests hold without running, ``[P, 2 + E]``:
            start and end, in ticks, and the blocks of each entry of `Scheduler.parks`.
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
    """Make the process keep the memory of one chunk's columns for those of the next.

    glibc returns freed memory to the system beyond twice the largest mapped allocation freed so far
    (mallopt(3), M_MMAP_THRESHOLD), and reusing such a page costs a fault. So this function maps and frees one
    allocation without touching its pages. With other C libraries this does nothing.
    """
    np.empty(KEPT_BYTES, np.uint8)
