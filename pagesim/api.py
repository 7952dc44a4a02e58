"""The public API: replay a trace under one or several policies and get tables."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import fields, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pagesim.accounting.timeline import Timeline
from pagesim.accounting.tree_history import TreeHistory
from pagesim.costs import CostModel
from pagesim.errors import PagesimError
from pagesim.results.recorded_tables import batch_table, preemption_table, tier_columns, tree_table
from pagesim.results.result import Result
from pagesim.results.step_table import StepTable
from pagesim.scheduling.failure_modes import StrictCompatError
from pagesim.scheduling.observer import Observer
from pagesim.setup.comparison import each_policy
from pagesim.setup.data_parallel import engines_of
from pagesim.setup.prepare import prepare
from pagesim.setup.scenario import COMPARED, Scenario
from pagesim.setup.server import MakeExecutor, ProgressCallback, ProgressObserver, Server
from pagesim.setup.system import System, checked
from pagesim.sim.clock import BEYOND_THE_CLOCK
from pagesim.workloads import decode_as, make_trace
from pagesim.workloads.trace import Trace

if TYPE_CHECKING:  # pandas is slow to import and needed only once a table is accessed
    import pandas as pd

Rows = Literal["none", "stretches", "iterations"]
"""What the steps table holds: nothing, one row per stretch of similar iterations, or one per iteration."""


def simulate(
    trace: Trace | pd.DataFrame | str | PathLike[str],
    policy: str = "vllm-v1",
    *,
    steps: Rows = "stretches",
    observers: Sequence[Observer] = (),
    **options: Any,
) -> Result:
    """Replay a trace under one policy.

    Args:
        trace: requests as a `Trace`, a DataFrame with the columns of a trace file, or the name of a bundled
            workload or a path, as for `make_trace`.
        policy: a name from `POLICIES`.
        steps: granularity of the result's ``steps`` table.
        observers: callbacks for what happens in the engine; they change nothing.
        **options: fields of `System`, such as ``model="opt-13b"``, ``num_blocks=983`` or
            ``window="300:900"``.

    Raises:
        PagesimError: an option, the trace or their combination is invalid; the message says what to do.

    Example:
        >>> import pagesim as ps
        >>> trace = ps.make_trace("sharegpt", arrivals="poisson", rate=2.0, duration=60)
        >>> result = ps.simulate(trace, "orca-max")
        >>> result.summary["requests"]["unfinished"]
        0
    """
    system = checked(System, {"policy": policy, **options})
    return run(system, as_trace(trace), steps=steps, observers=observers)


def compare(
    trace: Trace | pd.DataFrame | str | PathLike[str],
    policies: Sequence[str] = COMPARED,
    *,
    steps: Rows = "stretches",
    **options: Any,
) -> dict[str, Result]:
    """Replay one trace under several policies and return the results by policy, in the given order.

    Args:
        trace: as for `simulate`.
        policies: names from `POLICIES`.
        steps: as for `simulate`.
        **options: as for `simulate`; options that only some policies support are passed only to those.

    Raises:
        PagesimError: as `simulate`.
    """
    if isinstance(policies, str):
        raise PagesimError(f"policies is {policies!r}; give a list of names, such as [{policies!r}]")
    systems = each_policy(checked(System, dict(options)), policies)
    requests = as_trace(trace)
    return {policy: run(system, requests, steps=steps) for policy, system in systems.items()}


def run(
    system: System,
    trace: Trace,
    *,
    steps: Rows = "stretches",
    progress: ProgressCallback | None = None,
    cost: CostModel | None = None,
    executor: MakeExecutor | None = None,
    timeline: Timeline | None = None,
    observers: Sequence[Observer] = (),
    tables: bool = False,
) -> Result:
    """Replay a trace on a system; `simulate` and the command line call this.

    Args:
        system: deployment to simulate; a `Scenario` is kept with the result so that it can be run again.
        trace: requests to serve.
        steps: granularity of the result's ``steps`` table.
        progress: callback for a progress bar.
        cost: cost model to use in place of the one that the system names.
        executor: factory of what executes the iterations; by default a cost model predicts them.
        timeline: timeline to record; its ``every`` must agree with ``steps``.
        observers: further observers, called after the recorder.
        tables: whether to keep block tables even if nothing reads them; decisions are the same.
    """
    started = time.perf_counter()
    option, engines = engines_of(system)
    if engines > 1:
        raise PagesimError(
            f"{option} is {engines}, and this replays one engine: leave it out, or call "
            "simulate_cluster, as pagesim run does"
        )
    setting = prepare(system, trace)
    if cost is not None:
        setting = replace(setting, config=replace(setting.config, other_cost=cost))
    log = setting.new_log()
    arrivals = setting.arrivals()
    table = StepTable(
        arrivals,
        every=steps == "iterations",
        shape=setting.ledger_shape(),
        reserves=setting.reserves,
    )
    if timeline is not None:
        timeline.begin(setting.config.cost, setting.trace, log)
    tree = TreeHistory() if setting.counts_pools and steps != "none" else None
    server = Server(
        setting,
        log,
        arrivals,
        consume=[] if steps == "none" else [table.add, *([] if timeline is None else [timeline.add])],
        aborts=setting.aborts(),
        executor=executor,
        observers=[
            *([] if timeline is None else [timeline]),
            *([] if tree is None else [tree]),
            *([] if progress is None else [ProgressObserver(progress)]),
            *observers,
        ],
        tables=tables or executor is not None,
    )
    try:
        server.replay()
    except StrictCompatError as error:
        raise setting.stopped(error) from None
    except BEYOND_THE_CLOCK:
        raise setting.too_long() from None
    of_engine, rows, tiers = server.summary(), server.recorder.rows, server.tiers
    notes = (*setting.notes(), *server.leak_notes())
    table.forget_arrivals()
    del server, arrivals  # a long run's arrivals take a large part of its memory
    of_requests, columns = setting.summary(log)
    summary: dict[str, Any] = {
        "policy": system.policy,
        "requests": of_requests.pop("requests"),
        "failure_modes": of_engine.pop("failure_modes"),
        **of_requests,
        **of_engine,
        "extrapolated": dict(setting.config.cost.beyond),
        "sim": {
            "wall_s": time.perf_counter() - started,
            "peak_rss_mb": peak_rss_mb(),
            "rows": rows,
        },
    }
    return Result(
        scenario=system,
        summary=summary,
        request_columns=columns,
        kept_steps=table.finished() if steps != "none" else None,
        batches=batch_table(columns) if not setting.streams else None,
        preemptions=preemption_table(setting.trace, log) if system.option("preemption") == "auto" else None,
        tier_columns=None if tiers is None else tier_columns(tiers),
        tree=None if tree is None else tree_table(tree),
        notes=notes,
    )


def trace_of(scenario: Scenario) -> Trace:
    """Return the requests that a scenario describes."""
    trace = make_trace(
        scenario.trace,
        arrivals=scenario.arrivals,
        rate=scenario.rate,
        cv=scenario.cv,
        duration=scenario.duration,
        num_requests=scenario.num_requests,
        seed=scenario.seed,
        turns=scenario.turns,
        tokenizer=scenario.tokenizer,
        on_bad_row=scenario.on_bad_row,
        shared_prefix=scenario.shared_prefix,
        think=scenario.think,
    )
    return decode_as(trace, n=scenario.n, beam_width=scenario.beam_width)


def as_trace(trace: Trace | pd.DataFrame | str | PathLike[str]) -> Trace:
    """Convert any accepted form of a trace to a `Trace`.

    Raises:
        PagesimError: a column is missing or unknown, or a file cannot be read.
    """
    if isinstance(trace, Trace):
        return trace
    if not isinstance(trace, str | PathLike):
        known = [f.name for f in fields(Trace) if f.name != "notes"]
        if unknown := [name for name in trace.columns if name not in known]:
            raise PagesimError(f"the trace has a column {unknown[0]!r}; it may have {', '.join(known)}")
        if missing := [name for name in ("prompt_tokens", "output_tokens") if name not in trace.columns]:
            raise PagesimError(f"the trace has no column {missing[0]}")
        columns: dict[str, Any] = {name: trace[name].to_numpy() for name in trace.columns}
        columns.setdefault("arrival_s", np.zeros(len(trace)))
        if len(trace) and "hash_block_size" in columns:
            sizes = np.unique(columns["hash_block_size"])
            if len(sizes) > 1:
                raise PagesimError(
                    f"hash_block_size is {sizes[0]} and {sizes[1]}; it must be the same in every row"
                )
            columns["hash_block_size"] = sizes[0]
        return Trace(**columns)
    return make_trace(Path(trace) if isinstance(trace, PathLike) else trace)


def peak_rss_mb() -> float:
    """Return this process's peak resident memory, in MB."""
    # On Linux, getrusage also counts the memory of the parent's copy from before this program was executed;
    # /proc/self/status does not.
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 2**10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10
