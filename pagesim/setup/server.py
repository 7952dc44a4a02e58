"""Server: one engine of a prepared system, with its memory and its accounting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pagesim.accounting.chunks import Chunk
from pagesim.accounting.ledger import LedgerShape
from pagesim.accounting.metrics import MemoryMeans, TokenGaps
from pagesim.accounting.pass_recorder import PassRecorder
from pagesim.accounting.records import Recorder
from pagesim.accounting.request_log import RequestLog
from pagesim.accounting.tier_history import TierHistory
from pagesim.kvcache import BlockManager
from pagesim.kvcache.radix import StateRadixManager
from pagesim.scheduling.arrivals import Arrivals
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.failure_modes import FailureMode
from pagesim.scheduling.observer import Observer
from pagesim.scheduling.request import EngineRequest, Status
from pagesim.setup.build import new_pipeline
from pagesim.setup.offload import traffic_of
from pagesim.setup.prepare import PreparedSystem
from pagesim.setup.registry import ALLOCATORS
from pagesim.sim.clock import to_ticks
from pagesim.sim.engine import Engine
from pagesim.sim.executor import Executor, PredictedExecutor
from pagesim.sim.sending import ClosedEngine, SentArrivals
from pagesim.sizing import Capacity
from pagesim.workloads.trace import Trace

ProgressCallback = Callable[[int], None]
"""Called with the number of requests that have ended, each time one ends."""

MakeExecutor = Callable[[Scheduler, Capacity, Trace], Executor]
"""Makes the executor of iterations from the scheduler with its empty memory, the memory's capacity, and the
requests to serve."""

Consume = Callable[[Chunk], None]


class ProgressObserver(Observer):
    """Counts the requests that have ended, for a progress bar.

    Args:
        callback: called with the count each time a request ends.
    """

    def __init__(self, callback: ProgressCallback) -> None:
        self.callback = callback
        self.over = 0

    def finished(self, request: EngineRequest, now: int) -> None:
        self.left(request.row, now, Status.FINISHED)

    def left(self, row: int, now: int, status: Status) -> None:
        self.over += 1
        self.callback(self.over)


class Server:
    """One engine of a system, with its memory and the metrics collected from it.

    Args:
        setting: the prepared system, which all of its engines share.
        log: log that receives the requests' times.
        arrivals: requests to serve.
        consume: callbacks for each chunk of records.
        aborts: (ticks, row) at which clients abort requests that are sent on arrival, in order.
        executor: maker of the executor of iterations; if left out, the system's cost model predicts their
            times. An executor that is an `Observer` also observes.
        observers: further observers, called after the recorder.
        tables: whether blocks must be numbered because an observer reads block tables.
        lock_step: whether the engine steps together with others, so that iterations are timed only later.
    """

    def __init__(
        self,
        setting: PreparedSystem,
        log: RequestLog,
        arrivals: Arrivals,
        *,
        consume: Sequence[Consume] = (),
        aborts: Sequence[tuple[int, int]] = (),
        executor: MakeExecutor | None = None,
        observers: Sequence[Observer] = (),
        tables: bool = False,
        lock_step: bool = False,
    ) -> None:
        config, system = setting.config, setting.config.system
        self.setting = setting
        self.scheduler = setting.new_scheduler(tables=tables)
        self.scheduler.expect(arrivals)
        window, memory = system.window_s, self.scheduler.memory
        self.means = MemoryMeans(
            LedgerShape.of(memory, self.scheduler.parks),
            reserves=setting.reserves,
            window=None if window is None else (to_ticks(window[0]), to_ticks(window[1])),
        )
        self.gaps = TokenGaps()
        accounts: list[Consume] = [self.means.add]
        if setting.streams:
            accounts.append(self.gaps.add)
        accounts += consume

        def account_for(chunk: Chunk) -> None:
            for account in accounts:
                account(chunk)

        self.recorder = (PassRecorder if lock_step else Recorder)(self.scheduler, log, account_for)
        spans = self.scheduler.spans
        carrying_out: Executor = PredictedExecutor(config.cost, None if spans is None else spans.ahead)
        if executor is not None:
            carrying_out = executor(self.scheduler, config.capacity, setting.trace.take(setting.accepted))
            if isinstance(carrying_out, Observer):
                observers = [carrying_out, *observers]
        self._closed: ClosedEngine | None = None
        if isinstance(arrivals, SentArrivals):
            self._closed = ClosedEngine(arrivals)
            observers = [self._closed, *observers]
            log.sent, log.due = arrivals.clients.sent, arrivals.clients.due
        self.tiers: TierHistory | None = None
        copies = setting.copies(self.scheduler)
        if copies is not None:
            self.tiers = TierHistory()
            observers = [self.tiers, *observers]
        self.engine = Engine(
            self.scheduler,
            carrying_out,
            self.recorder,
            observers=observers,
            fast_forward=system.fast_forward and not lock_step,
            until=None if system.until is None else to_ticks(system.until),
            aborts=aborts,
            strict_compat=system.strict_compat,
            copies=copies,
            pipeline=new_pipeline(config),
        )

    def replay(self) -> None:
        """Replay all arrivals; in a closed loop, each request when it is sent."""
        if self._closed is not None:
            self._closed.replay(self.engine)
        else:
            self.engine.replay()
        self.end()

    def end(self) -> None:
        """Close the accounts once the engine has finished."""
        if self.tiers is not None:
            self.tiers.end(self.means.end)

    def traffic(self) -> dict[str, Any]:
        """Return the chunks and bytes that each tier moved, by tier name; empty without tiers."""
        return {} if self.tiers is None else traffic_of(self.setting.config, self.scheduler)

    def leak_notes(self) -> tuple[str, ...]:
        """Return a note if a plug-in allocator still holds blocks after all requests have ended."""
        name, memory = self.setting.config.policy.allocator, self.scheduler.memory
        leaks = self.engine.failure_modes[FailureMode.LEAK]  # leaks that the real engine has, too
        if ALLOCATORS.owns(name) or leaks or Status.UNFINISHED in self.recorder.log.status:
            return ()
        free = memory.free_blocks
        if memory.names_blocks:
            free = min(free, sum(blocks for _, blocks in memory.free_extents()))
        if free == memory.num_blocks:
            return ()
        return (
            f"allocator {name} leaks: all requests are over, and {memory.num_blocks - free} of "
            f"{memory.num_blocks} blocks are not free; check_allocator or "
            "check_block_manager of pagesim.testing names the broken rule",
        )

    def summary(self) -> dict[str, Any]:
        """Return the part of a summary that describes this engine."""
        recorder, sized, drafts = self.recorder, self.setting.config.capacity, self.scheduler.speculation
        memory, means = self.scheduler.memory, self.means.summary()
        groups = {
            name: {
                "block_size": group.block_size,
                "layers": group.layers,
                "filled_bytes": group.filled,
                **means.pop(name),
            }
            for name, group in zip(self.means.shape.groups, memory.groups, strict=False)
        }
        tiers = self.traffic()
        return {
            "failure_modes": {
                failure_mode.key: self.engine.failure_modes[failure_mode] for failure_mode in FailureMode
            },
            "itl": self.gaps.summary(),
            "batch": {"mean": self.means.mean_batch},
            "iterations": recorder.iterations,
            "preemptions": {"recompute": recorder.recomputed_total, "swap": recorder.swapped_total},
            **({} if drafts is None else {"speculation": drafts.summary()}),
            **({} if self.engine.pipeline is None else {"stages": self.engine.pipeline.summary()}),
            "aborted_tokens": self.engine.aborted_tokens,
            "swapped_blocks": {"in": recorder.blocks_in, "out": recorder.blocks_out},
            "memory": {
                "num_blocks": memory.num_blocks,
                "block_size": sized.block_size,
                "cpu_blocks": sized.cpu_blocks,
                **({"capacity_bytes": memory.capacity_bytes} if memory.is_hybrid else {}),
                **({"page_bytes": memory.page_bytes} if memory.is_hybrid and memory.equal_blocks else {}),
                **means,
                **({"groups": groups} if groups else {}),
                **_states(memory),
                **({} if self.tiers is None else {"tiers": self.tiers.summary()}),
            },
            "sharing": {"saving": self.means.saving},
            **({"tiers": tiers} if tiers else {}),
        }


def _states(memory: BlockManager) -> dict[str, Any]:
    """Return the part of a summary about the pool of recurrent states; empty without one."""
    if not isinstance(memory, StateRadixManager):
        return {}
    pool = memory.pool
    return {
        "states": {
            "slots": pool.slots,
            "bytes_per_slot": pool.state_bytes,
            "slots_per_request": memory.slots_per_request,
            "evicted": memory.evicted_states,
        }
    }
