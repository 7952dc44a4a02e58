"""Pool steps: what each replica of two pools did when, and where its memory went, idle times included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pagesim.accounting.chunks import Chunk
from pagesim.results.step_table import StepTable
from pagesim.scheduling.added import AddedArrivals
from pagesim.setup.prepare import PreparedSystem
from pagesim.sim.clock import to_seconds

if TYPE_CHECKING:
    import pandas as pd


class PoolSteps:
    """Collects a replica's steps table.

    A row is a stretch of like iterations, as in the table of a run, or a time between iterations. That has no
    iterations, begins at ``clock`` and takes ``step_s``; its memory is what requests hold that do not run.

    Args:
        setting: of the pool.
        number: of the replica.
        routed: its requests.
    """

    def __init__(self, setting: PreparedSystem, number: int, routed: AddedArrivals) -> None:
        self.pool = setting.pool
        self.number = number
        self._shape = setting.ledger_shape()
        self._parks = setting.new_scheduler().parks
        self._table = StepTable(routed, every=False, shape=self._shape, reserves=False)
        self._gaps: list[tuple[int, ...]] = []

    def add(self, chunk: Chunk) -> None:
        """Take a chunk's rows."""
        self._table.add(chunk)
        self._gaps += map(tuple, chunk.gaps.tolist())

    def frame(self) -> pd.DataFrame:
        """Return everything collected as one table, in order of time."""
        import pandas as pd

        table = self._table.frame()
        rows = np.array(self._gaps, np.int64).reshape(-1, 2 + len(self._parks))
        start, end, blocks = rows[:, 0], rows[:, 1], rows[:, 2:]
        slots = self._shape.capacity // self._shape.num_blocks
        held = blocks.sum(axis=1)
        gaps: dict[str, npt.NDArray[Any]] = {name: np.zeros(len(rows), np.int64) for name in table.columns}
        gaps |= {name: blocks[:, place] * slots for place, name in enumerate(self._parks)}
        gaps |= {"clock": to_seconds(start), "start": to_seconds(start), "step_s": to_seconds(end - start)}
        gaps |= {"num_physical_blocks": held, "num_logical_blocks": held}
        gaps |= {"free_gpu_blocks": self._shape.num_blocks - held}
        gaps |= {"free": (self._shape.num_blocks - held) * slots}
        # A gap begins where an iteration ends, and ends where one begins: at equal instants it comes first.
        whole = pd.concat([pd.DataFrame(gaps), table]).sort_values("start", kind="stable", ignore_index=True)
        whole.insert(0, "pool", self.pool)
        whole.insert(1, "replica", self.number)
        return whole


def tables(steps: list[PoolSteps]) -> pd.DataFrame:
    """Return the steps of all replicas as one table, replica after replica."""
    import pandas as pd

    return pd.concat([each.frame() for each in steps], ignore_index=True)
