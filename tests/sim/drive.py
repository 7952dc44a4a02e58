"""An engine that is driven to its end, and what it decided and counted, in columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pagesim.accounting.chunks import Chunk
from pagesim.accounting.ledger import GROUP_ENTRIES
from pagesim.accounting.records import Recorder
from pagesim.accounting.request_log import RequestLog
from pagesim.costs import CostModel
from pagesim.scheduling.arrivals import Arrivals
from pagesim.scheduling.content import Contents
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.observer import Observer
from pagesim.setup.build import count_spans
from pagesim.sim.engine import Engine
from pagesim.sim.executor import PredictedExecutor
from pagesim.workloads.trace import Trace

Columns = dict[str, np.ndarray]


def drive(
    scheduler: Scheduler,
    trace: Trace,
    cost: CostModel,
    *,
    fast_forward: bool,
    chunk: int | None = None,
    observers: Sequence[Observer] = (),
    aborts: Sequence[tuple[int, int]] = (),
    rows: Sequence[int] | None = None,
    contents: Contents | None = None,
) -> tuple[Columns, int]:
    """Return columns over requests and over iterations, and in how many rows the latter were written.

    Args:
        scheduler: of an engine that has served nothing.
        trace: the requests.
        cost: what iterations take.
        fast_forward: whether iterations that decide nothing are taken at once.
        chunk: iterations after which the records are handed on.
        observers: of the engine.
        aborts: ticks, and the row of the request that goes then.
        rows: of the requests that are served; all if left out.
        contents: what their prompts share; nothing if left out.
    """
    served = np.arange(len(trace)) if rows is None else np.array(rows)
    scheduler.expect(Arrivals(trace, served, contents=contents))
    count_spans(scheduler, cost)
    ahead = None if scheduler.spans is None else scheduler.spans.ahead
    log = RequestLog(len(trace))
    chunks: list[Chunk] = []
    recorder = Recorder(scheduler, log, chunks.append)
    if chunk is not None:
        recorder.full_at = recorder._chunk_iterations = chunk
    executor = PredictedExecutor(cost, ahead)
    how = {"observers": list(observers), "fast_forward": fast_forward, "aborts": list(aborts)}
    Engine(scheduler, executor, recorder, **how).replay()
    memory = scheduler.memory
    assert memory.free_blocks == memory.num_blocks, "what was taken is given back"
    columns = {name: np.array(getattr(log, name)) for name in _OF_REQUESTS}

    def joined(parts: list[np.ndarray]) -> np.ndarray:
        return np.concatenate(parts)

    columns |= {
        name: joined([getattr(each, name) for each in chunks]) for name in ("clock", "start", "ticks")
    }
    columns["blocks"] = joined([each.ledger.physical_blocks for each in chunks])
    columns["logical"] = joined([each.ledger.logical_blocks for each in chunks])
    for entry in chunks[0].ledger.entries:
        columns[entry] = joined([each.ledger.entries[entry] for each in chunks])
    for number in range(len(chunks[0].ledger.groups)):
        for entry in GROUP_ENTRIES:
            parts = [each.ledger.groups[number].entries[entry] for each in chunks]
            columns[f"{entry}_{number}"] = joined(parts)
    columns["running"] = joined([each.rows["running_sequences"][each.rows.stretch] for each in chunks])
    columns["context"] = joined(
        [
            each.rows["context_tokens"][each.rows.stretch]
            + each.rows.offset * each.rows["context_growth"][each.rows.stretch]
            for each in chunks
        ]
    )
    return columns, recorder.rows


_OF_REQUESTS = ("first_scheduled", "first_token", "finish", "recomputes")
