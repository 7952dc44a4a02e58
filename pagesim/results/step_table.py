"""The steps table, collected from chunks: one row per stretch of iterations, or one per iteration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pagesim.accounting.chunks import Chunk
from pagesim.accounting.ledger import ENTRIES, LedgerShape, paper_view
from pagesim.results.kept_frames import KeptFrames
from pagesim.scheduling.arrivals import Arrivals
from pagesim.sim.clock import to_seconds

if TYPE_CHECKING:  # see pagesim.api
    import pandas as pd

STEP_COLUMNS = (
    "step",
    "clock",
    "start",
    "num_running",
    "num_running_seqs",
    "num_waiting",
    "num_swapped",
    "free_gpu_blocks",
    "free_cpu_blocks",
    "num_batched_tokens",
    "num_tokens",
    "sum_context_tokens",
    "step_s",
    "blocks_swapped_in",
    "blocks_swapped_out",
    "blocks_copied",
    "num_preempted",
    "num_logical_blocks",
    "num_physical_blocks",
    "num_physical_tokens",
    "num_reserved_tokens",
    "num_internal_tokens",
    *ENTRIES,
)
"""Columns of every steps table; ``iterations`` is added without ``--steps``, more entries if hybrid."""


class StepTable:
    """Collects the steps table from chunks.

    Args:
        arrivals: arrivals of the requests that take part.
        every: whether to have one row per iteration, instead of one per stretch for its first iteration.
        shape: shape of the ledger.
        reserves: whether memory is reserved at admission.
    """

    def __init__(
        self,
        arrivals: Arrivals,
        *,
        every: bool,
        shape: LedgerShape,
        reserves: bool,
    ) -> None:
        self._arrivals: Arrivals | None = arrivals
        self.every = every
        self.shape = shape
        self.reserves = reserves
        self._kept = KeptFrames()

    def add(self, chunk: Chunk) -> None:
        """Add a chunk's rows."""
        rows = np.arange(len(chunk.clock)) if self.every else np.flatnonzero(chunk.rows.offset == 0)
        stretches = {name: column[chunk.rows.stretch[rows]] for name, column in chunk.rows.columns.items()}
        clock = chunk.clock[rows]
        # Requests that arrive during a fast-forward join the queue.
        assert self._arrivals is not None
        arrived = np.array(self._arrivals.ticks)
        joined = np.searchsorted(arrived, clock, "right") - np.searchsorted(
            arrived, stretches["decided"], "right"
        )
        entries = {name: column[rows] for name, column in chunk.ledger.entries.items()}
        paper = paper_view(entries, reserves=self.reserves)
        offset = chunk.rows.offset[rows]
        physical = chunk.ledger.physical_blocks[rows]
        columns = {
            "step": stretches["iteration"] + offset,
            "clock": to_seconds(clock),
            "start": to_seconds(chunk.start[rows]),
            "num_running": stretches["running_groups"],
            "num_running_seqs": stretches["running_sequences"],
            "num_waiting": stretches["waiting"] + joined,
            "num_swapped": stretches["swapped"],
            "free_gpu_blocks": self.shape.num_blocks - physical,
            "free_cpu_blocks": stretches["free_cpu_blocks"],
            "num_batched_tokens": stretches["batched_tokens"],
            "num_tokens": stretches["tokens"],
            "sum_context_tokens": stretches["context_tokens"] + offset * stretches["context_growth"],
            "step_s": to_seconds(chunk.ticks[rows]),
            "blocks_swapped_in": stretches["swapped_in"],
            "blocks_swapped_out": stretches["swapped_out"],
            "blocks_copied": stretches["copied"],
            "num_preempted": stretches["preempted"],
            "num_logical_blocks": chunk.ledger.logical_blocks[rows],
            "num_physical_blocks": physical,
            "num_physical_tokens": entries["used"],
            "num_reserved_tokens": paper["reservation"],
            "num_internal_tokens": paper["internal"],
            **entries,
            **{f"held_blocks_{number}": each.blocks[rows] for number, each in enumerate(chunk.ledger.groups)},
        }
        if not self.every:
            columns["iterations"] = stretches["iterations"]
        import pandas as pd

        self._kept.add(pd.DataFrame(columns))

    def forget_arrivals(self) -> None:
        """Drop the data that only `add` needs."""
        self._arrivals = None

    def frame(self) -> pd.DataFrame:
        """Return everything collected as one table, in memory."""
        return self.finished().frame()

    def finished(self) -> KeptFrames:
        """Return everything collected; nothing may be added afterwards."""
        if not self._kept.rows:
            self._kept = KeptFrames.of(self._empty())
        return self._kept

    def _empty(self) -> pd.DataFrame:
        """Return a table with the usual columns and no rows."""
        import pandas as pd

        always = STEP_COLUMNS[: -len(ENTRIES)]
        held = [f"held_blocks_{number}" for number in range(len(self.shape.groups))]
        names = [*always, *self.shape.entries, *held, *([] if self.every else ["iterations"])]
        types = {name: np.float64 if name in ("clock", "start", "step_s") else np.int64 for name in names}
        return pd.DataFrame({name: np.empty(0, kind) for name, kind in types.items()})
