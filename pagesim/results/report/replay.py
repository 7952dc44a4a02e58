"""Replay for the memory map: a stored run once more, with snapshots of its memory."""

from __future__ import annotations

from collections.abc import Sequence

from pagesim.accounting.request_log import RequestLog
from pagesim.results.replay import NotReplayed, replayed
from pagesim.results.report.snapshots import Snapshots
from pagesim.results.result import Result
from pagesim.scheduling.arrivals import NEVER
from pagesim.setup.prepare import PreparedSystem
from pagesim.setup.server import Consume, Server


def snapshots_of(result: Result, instants: Sequence[int]) -> Snapshots:
    """Replay a stored run; return snapshots of its memory at some instants.

    Args:
        result: as `pagesim.load` returns it.
        instants: ticks, rising.

    Raises:
        NotReplayed: the run cannot be replayed, or what comes of it is not what was stored.
    """
    return replayed(result, lambda setting, log: replay(setting, log, instants))


def replay(
    setting: PreparedSystem, log: RequestLog, instants: Sequence[int], consume: Sequence[Consume] = ()
) -> Snapshots:
    """Replay a trace on a system; return snapshots of its memory at some instants.

    Args:
        setting: the system and the trace.
        log: where requests' times go.
        instants: ticks, rising.
        consume: called with each chunk of the records.

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
        observers=[snapshots],
        tables=True,
    )
    memory = server.scheduler.memory
    if not memory.names_blocks:
        allocator = setting.config.policy.allocator
        raise NotReplayed(f"allocator {allocator} counts blocks and gives them no numbers")
    server.replay()
    snapshots.idle(server.engine.over_at, NEVER)
    return snapshots
