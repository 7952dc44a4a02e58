"""Pool steps: what each replica of two pools did and how its memory was used, including idle times."""

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

    A row is a run of similar iterations, as in the steps table of a single run, or a gap between iterations.
    A gap has no iterations, starts at ``clock`` and lasts ``step_s``; only non-running requests hold memory.

    Args:
        setting: system of the replica's pool.
        number: index of the replica.
        routed: requests of the replica.
    """

    def __init__(self, setting: PreparedSystem, number: int, routed: AddedArrivals) -> None:
        self.pool = setting.pool
        self.number = number
        self._shape = setting.ledger_shape()
        self._parks = setting.new_scheduler().parks
        self._table = StepTable(routed, every=False, shape=self._shape, reserves=False)
        self._gaps: list[tuple[int, ...]] = []

    def add(self, chunk: Chunk) -> None:
        """Add a chunk's rows."""
        self._table.add(chunk)
        self._gaps += map(tuple, chunk.gaps.tolist())

    def frame(self) -> pd.DataFrame:
        """Return everything collected as one table, ordered by time."""
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
        # A gap starts where an iteration ends and ends where one starts: at equal instants it comes first.
        whole = pd.concat([pd.DataFrame(gaps), table]).sort_values("start", kind="stable", ignore_index=True)
        whole.insert(0, "pool", self.pool)
        whole.insert(1, "replica", self.number)
        return whole


def tables(steps: list[PoolSteps]) -> pd.DataFrame:
    """Return the steps of all replicas in one table, one replica after another."""
    import pandas as pd

    return pd.concat([each.frame() for each in steps], ignore_index=True)
