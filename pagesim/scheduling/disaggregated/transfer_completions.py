"""Transfer completions: which transfers have finished, and when the scheduler is told."""

from __future__ import annotations

from collections import deque

from pagesim.scheduling.arrivals import NEVER


class TransferCompletions:
    """Transfers that the worker polls with each batch; the scheduler learns of them with its outcome.

    A worker polls when it launches a batch. Transfers finished by then are reported with that batch's tokens.

    Source: vLLM 0.33.0, v1/worker/kv_connector_model_runner_mixin.py and v1/core/sched/scheduler.py,
    ``_update_from_kv_xfer_finished``.

    Args:
        in_flight: batches that are scheduled before the outcome of the first of them is known.
    """

    __slots__ = ("_over_at", "_reported", "_unknown")

    def __init__(self, in_flight: int) -> None:
        self._over_at: dict[int, int] = {}  # end times in ticks, by row of the request
        # Rows that the last batches report, oldest batch first, of which the scheduler does not know yet.
        self._reported: deque[list[int]] = deque([[] for _ in range(in_flight)])
        self._unknown = 0

    def expect(self, row: int, over_at: int) -> None:
        """Expect the transfer of a request to end at ``over_at``, in ticks."""
        self._over_at[row] = over_at

    def forget(self, row: int) -> None:
        """Drop all transfers of a request."""
        self._over_at.pop(row, None)
        for rows in self._reported:
            if row in rows:
                rows.remove(row)
                self._unknown -= 1

    @property
    def next_look(self) -> int:
        """Earliest end of a transfer that no batch has reported, in ticks; `NEVER` without one."""
        return min(self._over_at.values(), default=NEVER)

    @property
    def unknown(self) -> bool:
        """Whether a batch reports transfers of which the scheduler does not know yet."""
        return self._unknown > 0

    def known(self) -> list[int]:
        """Return the rows reported by the batch whose outcome is known when a plan begins."""
        rows = self._reported.popleft()
        self._unknown -= len(rows)
        return rows

    def launch(self, now: int) -> None:
        """Let the batch that was just planned report the transfers finished by now."""
        rows = [row for row, over_at in self._over_at.items() if over_at <= now]
        for row in rows:
            del self._over_at[row]
        self._reported.append(rows)
        self._unknown += len(rows)

    def drain(self, now: int) -> list[int]:
        """Return the rows of all transfers finished by now, for an engine with nothing else to do."""
        rows = [row for rows in self._reported for row in rows]
        for reported in self._reported:
            reported.clear()
        self._unknown = 0
        for row, over_at in list(self._over_at.items()):
            if over_at <= now:
                rows.append(row)
                del self._over_at[row]
        return rows
