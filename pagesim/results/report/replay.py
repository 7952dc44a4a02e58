"""Replay for the memory map: a stored run once more, with snapshots of its memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pagesim.accounting.request_log import RequestLog
from pagesim.results.replay import NotReplayed, replayed
from pagesim.results.report.snapshots import Snapshots
from pagesim.results.result import Result
from pagesim.scheduling.arrivals import NEVER
from pagesim.scheduling.observer import Observer
from pagesim.setup.prepare import PreparedSystem
from pagesim.setup.server import Consume, ProgressObserver, Server

ProgressCallback = Callable[[str], object]
"""Called with what is being done."""

UPDATE_EVERY = 500
"""Requests between two updates of a progress line."""


def requests_over(name: str, result: Result, progress: ProgressCallback) -> ProgressObserver:
    """Say what share of a stored run has been replayed; return the observer of the replay that does."""
    total = max(1, len(result.request_columns["arrival_s"]))

    def update(over: int) -> None:
        if over % UPDATE_EVERY == 0:
            progress(f"replaying {name}: {100 * over // total} %")

    update(0)
    return ProgressObserver(update)


def snapshots_of(result: Result, instants: Sequence[int], *observers: Observer) -> Snapshots:
    """Replay a stored run; return snapshots of its memory at some instants.

    Args:
        result: as `pagesim.load` returns it.
        instants: ticks, rising.
        observers: further ones of the replay.

    Raises:
        NotReplayed: the run cannot be replayed, or what comes of it is not what was stored.
    """
    return replayed(result, lambda setting, log: replay(setting, log, instants, observers=observers))


def replay(
    setting: PreparedSystem,
    log: RequestLog,
    instants: Sequence[int],
    consume: Sequence[Consume] = (),
    observers: Sequence[Observer] = (),
) -> Snapshots:
    """Replay a trace on a system; return snapshots of its memory at some instants.

    Args:
        setting: the system and the trace.
        log: where requests' times go.
        instants: ticks, rising.
        consume: called with each chunk of the records.
        observers: called after what takes the snapshots.

    Raises:
        NotReplayed: its blocks have no numbers.
    """
    snapshots = Snapshots(instants)
    server = Server(
        setting,
        log,
        setting.arrivals(),
        consume=consume,
        aborts=setting.aborts(),
        observers=[snapshots, *observers],
        tables=True,
    )
    memory = server.scheduler.memory
    if not memory.names_blocks:
        allocator = setting.config.policy.allocator
        raise NotReplayed(f"allocator {allocator} counts blocks and gives them no numbers")
    server.replay()
    snapshots.idle(server.engine.over_at, NEVER)
    return snapshots
