"""Prepare: a system made ready for a trace, which its engines have in common."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pagesim.accounting.ledger import LedgerShape
from pagesim.accounting.metrics import latencies, prefix_hits, throughput
from pagesim.accounting.request_log import RequestLog
from pagesim.costs import Assuming, CostModel, PreemptionPrices
from pagesim.costs.specs import BlockPlan, Capacity, PoolPlan
from pagesim.errors import PagesimError
from pagesim.results.result import request_columns
from pagesim.scheduling.arrivals import Arrivals
from pagesim.scheduling.content import Contents
from pagesim.scheduling.core import Pool, Scheduler
from pagesim.scheduling.dead_ends import DeadEnd, StrictCompatError
from pagesim.scheduling.options import SchedulerOptions
from pagesim.scheduling.request import Status
from pagesim.setup.block_plans import graph_notes, kernel_notes
from pagesim.setup.build import build_memory, build_scheduler
from pagesim.setup.equip import asked_of, equip, keeps_tree, options_of, sizing_of
from pagesim.setup.kv_dtypes import kv_notes
from pagesim.setup.offload import chain_of, copies_of, link_notes, loads_in, with_chunks
from pagesim.setup.presets import Policy, parts_of
from pagesim.setup.reaches import let_follow, unfollowed
from pagesim.setup.registry import SCHEDULERS
from pagesim.setup.requests import aborts, accepted_rows, blocking, take_in
from pagesim.setup.scenario import System
from pagesim.setup.served import served_model
from pagesim.setup.sizes import static_notes, static_sizes
from pagesim.sim.clients import Clients
from pagesim.sim.clock import LONGEST_S, TICKS_PER_SECOND, to_ticks
from pagesim.sim.copies import TierCopies
from pagesim.sim.sending import SentArrivals
from pagesim.workloads.trace import IntColumn, Trace


@dataclass(frozen=True, slots=True)
class PreparedSystem:
    """A system made ready for a trace: everything that its engines have in common.

    Attributes:
        system: the options as the user gave them.
        policy: its parts.
        sized: its memory, the null block of vllm-v1 left out.
        options: the scheduler's.
        max_model_len: tokens; no request is longer.
        cost: what iterations take.
        trace: the requests as the engine sees them.
        accepted: rows of the requests that are not rejected at submission.
        request_of: the row of the original trace that each row is, or is a sample of, ``[N]``.
        pool: in which its engines are, where prefill is apart from decode.
    """

    system: System
    policy: Policy
    sized: Capacity
    options: SchedulerOptions
    max_model_len: int
    cost: CostModel
    trace: Trace
    accepted: IntColumn
    request_of: IntColumn
    pool: Pool | None = None

    @property
    def reserves(self) -> bool:
        """Whether memory is reserved ahead."""
        return self.policy.reservation != "on-demand"

    @property
    def streams(self) -> bool:
        """Whether a token has a time of its own; a static batch is answered as a whole."""
        return SCHEDULERS.find(self.policy.scheduler).streams

    def new_scheduler(self, *, tables: bool = False) -> Scheduler:
        """Return a scheduler with empty memory; ``tables`` if blocks must have numbers."""
        # After the fork of a beam only block tables tell which blocks its samples share.
        needs_tables = tables or int(self.trace.beam_width.max(initial=1)) > 1
        return _new_scheduler(
            self.system,
            self.policy,
            self.sized,
            self.options,
            self.max_model_len,
            self.cost,
            tables=needs_tables,
            pool=self.pool,
        )

    def ledger_shape(self) -> LedgerShape:
        """Return what the ledger of its engines has."""
        scheduler = self.new_scheduler()
        return LedgerShape.of(scheduler.memory, scheduler.parks)

    @property
    def keeps_tree(self) -> bool:
        """Whether prefixes are cached in a radix tree."""
        return keeps_tree(self.options)

    @property
    def counts_pools(self) -> bool:
        """Whether there is a table of where the tokens of a tree's pool are, or those of two pools."""
        return self.keeps_tree or isinstance(self.sized.plan, PoolPlan)

    @property
    def is_closed(self) -> bool:
        """Whether what is over decides when other requests are sent: a closed loop."""
        return self.system.max_concurrency is not None or self.trace.think_s is not None

    def copies(self, scheduler: Scheduler) -> TierCopies | None:
        """Return what carries out the copies between a scheduler's device and its tiers; None without any."""
        return copies_of(self.system, self.sized, self.cost, self.options, scheduler)

    def clients(self) -> Clients | None:
        """Return who sends the requests in a closed loop; None where each is sent at its arrival."""
        if not self.is_closed:
            return None
        system, trace = self.system, self.trace
        return Clients(
            trace,
            self.accepted,
            self.request_of,
            max_concurrency=system.max_concurrency,
            client_timeout=system.client_timeout,
            until=None if system.until is None else to_ticks(system.until),
        )

    def aborts(self) -> list[tuple[int, int]]:
        """Return when clients go away that send every request at its arrival, (ticks, row), in order."""
        # In a closed loop they are known once a request is sent.
        return [] if self.is_closed else aborts(self.trace, self.system.client_timeout)

    def arrivals(self) -> Arrivals:
        """Return the requests of a single engine, as its scheduler may see them."""
        whole, clients = self.requests(), self.clients()
        return whole if clients is None else SentArrivals(whole, clients)

    def requests(self) -> Arrivals:
        """Return the requests that take part, at their arrivals."""
        contents, system = None, self.system
        scheduler = SCHEDULERS.find(self.policy.scheduler)
        if scheduler.names_contents(self.options):
            contents = Contents(
                self.trace,
                self.request_of,
                self.sized.block_size,
                lookahead=scheduler.hash_lookahead(self.options),
            )
        return Arrivals(
            self.trace,
            self.accepted,
            drop=system.beam_drop,
            seed=system.seed,
            contents=contents,
            request_of=self.request_of,
        )

    def new_log(self) -> RequestLog:
        """Return an empty log, in which the requests that are not accepted are rejected."""
        log = RequestLog(len(self.trace))
        log.notes_samples = self.trace.sample_tokens is not None
        if getattr(self.options, "offloads", False):
            log.loaded_tokens = {}
        rejected = np.ones(len(self.trace), bool)
        rejected[self.accepted] = False
        for row in np.flatnonzero(rejected).tolist():
            log.status[row] = Status.REJECTED
        return log

    def summary(self, log: RequestLog) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what of a summary is about requests, and the columns of the requests table."""
        columns = request_columns(self.trace, log, self.system.frontend_s)
        status = np.frombuffer(log.status, np.uint8)
        ended = {s: int((status == s).sum()) for s in Status}
        requests = {
            "total": len(self.trace),
            "finished": ended[Status.FINISHED],
            "rejected": ended[Status.REJECTED] + ended[Status.IGNORED],
            "stuck": ended[Status.STUCK],
            "aborted": ended[Status.ABORTED],
            "unfinished": ended[Status.UNFINISHED],
        }
        of_requests = {
            "requests": requests,
            "rejections": self._rejections(
                np.flatnonzero((status == Status.REJECTED) | (status == Status.IGNORED))
            ),
            "options": self.settled(),
            **latencies(columns),
            "throughput": throughput(columns),
            "prefix": prefix_hits(columns),
        }
        return of_requests, columns

    def _rejections(self, rows: IntColumn) -> dict[str, int]:
        """Return how many of the rejected requests exceed each limit, by the sentence that names it."""
        found: Counter[str] = Counter()
        if len(rows):
            scheduler, trace = self.new_scheduler(), self.trace
            samples = np.maximum(trace.n, trace.beam_width)
            shapes = (trace.prompt_tokens, trace.output_tokens, samples)
            for shape, count in Counter(zip(*(each[rows].tolist() for each in shapes), strict=True)).items():
                found[scheduler.refusal(*shape)] += count
        return dict(found)

    def settled(self) -> dict[str, dict[str, Any]]:
        """Return the options that decide on memory and scheduling: those ``given``, and the ``defaults``."""
        system = self.system
        sizing, share = sizing_of(system, self.policy)
        values: dict[str, Any] = {
            **self.options.model_dump(exclude_none=True),
            "max_model_len": self.max_model_len,
        }
        if kv_notes(system):
            values["kv_cache_dtype"] = system.kv_dtype
        if system.num_blocks is None:
            values["sizing"] = sizing
            if sizing == "vllm":
                values["gpu_memory_utilization"] = share
        values |= static_sizes(system, self.policy, self.options, self.sized, self.max_model_len)
        given = {name for name in values if system.option(name) is not None}
        return {
            "given": {name: value for name, value in values.items() if name in given},
            "defaults": {name: value for name, value in values.items() if name not in given},
        }

    def notes(self) -> tuple[str, ...]:
        """Return what was noticed or assumed, once everything has run."""
        beyond = [
            f"cost {self.system.cost} was measured for fewer {axis} than the {size:,} here: extrapolated"
            for axis, size in self.cost.beyond.items()
        ]
        assumed = self.cost.notes if isinstance(self.cost, Assuming) else ()
        blind = unfollowed(self.cost, SCHEDULERS.find(self.policy.scheduler), self.policy.scheduler)
        defaults = self.settled()["defaults"]
        # Those whose default depends on the machine, which not every scheduler has.
        asked = asked_of(self.system, self.policy)
        taken = [name for name in defaults if getattr(asked, name, ...) is None]
        served = ", ".join(f"{name} {defaults[name]}" for name in taken)
        as_served = (
            [f"{self.policy.scheduler} on {self.system.gpu} takes by default {served}"] if taken else []
        )
        of_policy = (
            [f"{self.system.policy}: {self.policy.note}"] if self.policy.note and self.sized.plan else []
        )
        spec = served_model(self.system)
        of_model = (*spec.notes, *kv_notes(self.system))
        of_kernels = kernel_notes(self.system, spec) if isinstance(self.sized.plan, BlockPlan) else ()
        links = link_notes(self.system, self.cost)
        sizes = (*as_served, *static_notes(self.system, self.policy, self.sized))
        return (
            *self.trace.notes,
            *of_model,
            *of_kernels,
            *graph_notes(self.options, self.sized.plan),
            *assumed,
            *blind,
            *beyond,
            *sizes,
            *of_policy,
            *links,
        )

    def stopped(self, error: StrictCompatError) -> PagesimError:
        """Return the error for a run that stops where the real engine goes no further."""
        when = f"at {error.now / TICKS_PER_SECOND:.6f} s: " if error.now else ""
        return PagesimError(
            f"strict_compat: {when}request {self.trace.request_id[error.row]}: {error.dead_end.what}; the "
            f"real engine of {self.system.policy} {error.dead_end.really} "
            "(without strict_compat it is counted and the others go on)"
        )

    def too_long(self) -> PagesimError:
        """Return the error for an iteration that is longer than all that the clock can count."""
        return PagesimError(
            f"the run exceeds {LONGEST_S:g} s of simulated time under cost {self.system.cost}; "
            "lower its numbers"
        )


def prepare(system: System, trace: Trace) -> PreparedSystem:
    """Make a system ready for a trace.

    Raises:
        PagesimError: an option, the trace or their combination is off; the sentence says what to do.
    """
    policy = parts_of(system.policy, system.scheduler, system.reservation, system.allocator)
    options = options_of(system, policy)
    sized, max_model_len, cost = equip(system, policy)
    options = with_chunks(options, sized)
    scheduler = SCHEDULERS.find(policy.scheduler)
    num_blocks, block_size = sized.num_blocks, sized.block_size
    trace, request_of = take_in(trace, policy.scheduler, scheduler, max_model_len, num_blocks, block_size)
    setting = PreparedSystem(
        system, policy, sized, options, max_model_len, cost, trace, np.arange(len(trace)), request_of
    )
    empty = setting.new_scheduler()
    accepted = accepted_rows(trace, empty)
    if note := blocking(trace, empty):
        setting = replace(setting, trace=trace.with_columns({}, note))
    if system.strict_compat:
        takes_in = scheduler.takes_in(trace.prompt_tokens, trace.output_tokens, max_model_len)
        entering = np.flatnonzero(takes_in)
        if not scheduler.streams and len(accepted) < len(entering):
            row = int(np.setdiff1d(entering, accepted)[0])
            raise setting.stopped(StrictCompatError(DeadEnd.NEVER_BATCHED, row, 0))
        accepted = entering
    return replace(setting, accepted=accepted)


def check(system: System) -> None:
    """Say at once, before any trace is made, if the options of a system do not go together.

    Raises:
        PagesimError: as `prepare` would; what only a trace can show is not looked for.
    """
    policy = parts_of(system.policy, system.scheduler, system.reservation, system.allocator)
    sized, max_model_len, cost = equip(system, policy)
    options = with_chunks(options_of(system, policy), sized)
    _new_scheduler(system, policy, sized, options, max_model_len, cost)


def _new_scheduler(
    system: System,
    policy: Policy,
    sized: Capacity,
    options: SchedulerOptions,
    max_model_len: int,
    cost: CostModel,
    *,
    tables: bool = False,
    pool: Pool | None = None,
) -> Scheduler:
    memory = build_memory(
        policy,
        options,
        num_blocks=sized.num_blocks,
        block_size=sized.block_size,
        cpu_blocks=sized.cpu_blocks,
        max_model_len=max_model_len,
        plan=sized.plan,
        tables=tables,
    )
    scheduler = build_scheduler(
        policy,
        memory,
        options,
        max_model_len=max_model_len,
        prices=PreemptionPrices(cost, loads_in(system, sized, cost, options)),
        pool=pool,
        chain=chain_of(system, sized, cost, options),
    )
    let_follow(scheduler, cost)
    return scheduler
