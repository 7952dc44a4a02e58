"""Prepare: a system prepared for a trace, shared by all of its engines."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pagesim.accounting.ledger import LedgerShape
from pagesim.accounting.metrics import latencies, prefix_hits, throughput
from pagesim.accounting.request_log import RequestLog
from pagesim.errors import PagesimError
from pagesim.results.recorded_tables import request_columns
from pagesim.scheduling.arrivals import Arrivals
from pagesim.scheduling.content import Contents
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.failure_modes import FailureMode, StrictCompatError
from pagesim.scheduling.request import Status
from pagesim.scheduling.traits import Pool
from pagesim.setup.build import new_scheduler
from pagesim.setup.engine_config import EngineConfig
from pagesim.setup.notes import resolved_options, system_notes
from pagesim.setup.offload import copies_of
from pagesim.setup.requests import aborts, accepted_rows, blocking, take_in
from pagesim.setup.system import System
from pagesim.sim.clients import Clients
from pagesim.sim.clock import LONGEST_S, TICKS_PER_SECOND, to_ticks
from pagesim.sim.copies import TierCopies
from pagesim.sim.sending import SentArrivals
from pagesim.sizing import PoolPlan, StatePlan
from pagesim.workloads.trace import IntColumn, Trace


@dataclass(frozen=True, slots=True)
class PreparedSystem:
    """A system prepared for a trace: everything that its engines share.

    Attributes:
        config: what each engine starts with.
        trace: requests as the engine sees them.
        accepted: rows of the requests that are not rejected at submission.
        request_of: row of the original trace that each row is, or is a sample of, ``[N]``.
        pool: pool of its engines if prefill and decode are disaggregated.
    """

    config: EngineConfig
    trace: Trace
    accepted: IntColumn
    request_of: IntColumn
    pool: Pool | None = None

    @property
    def reserves(self) -> bool:
        """Whether memory is reserved at admission instead of on demand."""
        return self.config.policy.reservation != "on-demand"

    @property
    def streams(self) -> bool:
        """Whether each token has its own time; a static batch is answered as a whole."""
        return self.config.scheduler.streams

    def new_scheduler(self, *, tables: bool = False) -> Scheduler:
        """Return a scheduler with empty memory; pass ``tables`` if blocks must be numbered."""
        # After a beam forks, only block tables tell which blocks its samples share.
        needs_tables = tables or int(self.trace.beam_width.max(initial=1)) > 1
        return new_scheduler(self.config, tables=needs_tables, pool=self.pool)

    def ledger_shape(self) -> LedgerShape:
        """Return the shape of its engines' ledgers."""
        scheduler = self.new_scheduler()
        return LedgerShape.of(scheduler.memory, scheduler.parks)

    @property
    def counts_pools(self) -> bool:
        """Whether a table records how a radix tree's pool, or two pools, are used."""
        return self.config.caches_in_tree or isinstance(self.config.capacity.plan, PoolPlan | StatePlan)

    @property
    def is_closed(self) -> bool:
        """Whether the end of requests decides when others are sent: a closed loop."""
        return self.config.system.max_concurrency is not None or self.trace.think_s is not None

    def copies(self, scheduler: Scheduler) -> TierCopies | None:
        """Return the executor of copies between a scheduler's device and its tiers; None without tiers."""
        return copies_of(self.config, scheduler) if self.config.offloads else None

    def clients(self) -> Clients | None:
        """Return the clients that send requests in a closed loop; None if each is sent on arrival."""
        if not self.is_closed:
            return None
        system, trace = self.config.system, self.trace
        return Clients(
            trace,
            self.accepted,
            self.request_of,
            max_concurrency=system.max_concurrency,
            client_timeout=system.client_timeout,
            until=None if system.until is None else to_ticks(system.until),
        )

    def aborts(self) -> list[tuple[int, int]]:
        """Return (ticks, row) of client aborts in order, if every request is sent on arrival."""
        # In a closed loop they are known only once a request is sent.
        return [] if self.is_closed else aborts(self.trace, self.config.system.client_timeout)

    def arrivals(self) -> Arrivals:
        """Return the arrivals at a single engine, as its scheduler may see them."""
        whole, clients = self.requests(), self.clients()
        return whole if clients is None else SentArrivals(whole, clients)

    def requests(self) -> Arrivals:
        """Return the accepted requests with their arrival times."""
        config, contents = self.config, None
        if config.scheduler.names_contents(config.options):
            contents = Contents(
                self.trace,
                self.request_of,
                config.capacity.block_size,
                lookahead=config.scheduler.hash_lookahead(config.options),
            )
        return Arrivals(
            self.trace,
            self.accepted,
            drop=config.system.beam_drop,
            seed=config.system.seed,
            contents=contents,
            request_of=self.request_of,
        )

    def new_log(self) -> RequestLog:
        """Return an empty log in which requests that are not accepted are marked as rejected."""
        log = RequestLog(len(self.trace))
        if self.config.offloads or getattr(self.config.options, "enable_hierarchical_cache", False):
            log.loaded_tokens = {}
        rejected = np.ones(len(self.trace), bool)
        rejected[self.accepted] = False
        for row in np.flatnonzero(rejected).tolist():
            log.status[row] = Status.REJECTED
        return log

    def summary(
        self, log: RequestLog, served_by: npt.NDArray[np.int64] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the part of a summary about requests, and the columns of the requests table.

        Args:
            log: log of the requests.
            served_by: replica that each request was sent to, ``[N]``; a single front end if left out.
        """
        columns = request_columns(self.trace, log, self.config.front_end, served_by)
        status = np.frombuffer(log.status, np.uint8)
        ended = {s: int((status == s).sum()) for s in Status}
        requests = {
            "total": len(self.trace),
            "finished": ended[Status.FINISHED],
            "rejected": ended[Status.REJECTED] + ended[Status.IGNORED],
            "unschedulable": ended[Status.UNSCHEDULABLE],
            "aborted": ended[Status.ABORTED],
            "unfinished": ended[Status.UNFINISHED],
        }
        of_requests = {
            "requests": requests,
            "rejections": self._rejections(
                np.flatnonzero((status == Status.REJECTED) | (status == Status.IGNORED))
            ),
            "options": resolved_options(self.config),
            **latencies(columns),
            "throughput": throughput(columns),
            "prefix": prefix_hits(columns),
        }
        return of_requests, columns

    def _rejections(self, rows: IntColumn) -> dict[str, int]:
        """Return how many rejected requests exceed each limit, by the message that names the limit."""
        found: Counter[str] = Counter()
        if len(rows):
            scheduler, trace = self.new_scheduler(), self.trace
            samples = np.maximum(trace.n, trace.beam_width)
            shapes = (trace.prompt_tokens, trace.output_tokens, samples)
            for shape, count in Counter(zip(*(each[rows].tolist() for each in shapes), strict=True)).items():
                found[scheduler.refusal(*shape) or scheduler.later_refusal(*shape)] += count
        return dict(found)

    def notes(self) -> tuple[str, ...]:
        """Return notes on observations and assumptions, once everything has run."""
        return (*self.trace.notes, *self._burst_notes(), *system_notes(self.config))

    def _burst_notes(self) -> tuple[str, ...]:
        """Return a note if all requests arrive at once, so that latencies are those of a burst."""
        arrivals = self.trace.arrival_s
        if self.config.system.max_concurrency is not None or len(arrivals) < 2 or arrivals[-1] > arrivals[0]:
            return ()
        return (
            f"all {len(arrivals):,} requests arrive at once: latencies grow with their number and are no "
            "server's under a steady load; rate spreads arrivals, max_concurrency bounds them",
        )

    def stopped(self, error: StrictCompatError) -> PagesimError:
        """Return the error for a run that stops where the real engine fails."""
        when = f"at {error.now / TICKS_PER_SECOND:.6f} s: " if error.now else ""
        mode = error.failure_mode
        return PagesimError(
            f"strict_compat: {when}request {self.trace.request_id[error.row]}: {mode.what}; the "
            f"real engine of {self.config.system.policy} {mode.really} "
            "(without strict_compat it is counted and the others go on)"
        )

    def too_long(self) -> PagesimError:
        """Return the error for an iteration that exceeds the clock's range."""
        return PagesimError(
            f"the run exceeds {LONGEST_S:g} s of simulated time under cost {self.config.system.cost}; "
            "lower its numbers"
        )


def prepare(system: System, trace: Trace) -> PreparedSystem:
    """Prepare a system for a trace.

    Raises:
        PagesimError: an option, the trace or their combination is invalid; the message says what to do.
    """
    config = EngineConfig(system)
    trace, request_of = take_in(trace, config)
    setting = PreparedSystem(config, trace, np.arange(len(trace)), request_of)
    empty = setting.new_scheduler()
    accepted = accepted_rows(trace, empty)
    if note := blocking(trace, empty):
        setting = replace(setting, trace=trace.with_columns({}, note))
    if system.strict_compat:
        takes_in = config.scheduler.takes_in(trace.prompt_tokens, trace.output_tokens, config.max_model_len)
        entering = np.flatnonzero(takes_in)
        if not config.scheduler.streams and len(accepted) < len(entering):
            row = int(np.setdiff1d(entering, accepted)[0])
            raise setting.stopped(StrictCompatError(FailureMode.NEVER_BATCHED, row, 0))
        accepted = entering
    return replace(setting, accepted=accepted)


def check(system: System) -> None:
    """Check, before any trace is made, that a system's options are valid together.

    Raises:
        PagesimError: an option is invalid, or options are incompatible.
    """
    new_scheduler(EngineConfig(system))
