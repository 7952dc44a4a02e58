"""The public API: replay a trace under a policy, or under several, and get tables."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, Unpack

import numpy as np

from pagesim.clock import LONGEST_S, TICKS_PER_SECOND, to_tick_column, to_ticks
from pagesim.cost import CostModel, PreemptionPrices, parse_cost
from pagesim.engine import Engine, StrictCompatError
from pagesim.errors import PagesimError
from pagesim.executors import Executor, PredictedExecutor
from pagesim.intake import aborts, accepted_rows, entering_rows, take_in
from pagesim.memory import Allocator
from pagesim.metrics import MemoryMeans, TokenGaps, latencies, prefix_hits, throughput
from pagesim.policies import Limits, Policy, build_memory, build_scheduler, granularity, parts_of
from pagesim.records import Chunk, Recorder, Status
from pagesim.request import Trace
from pagesim.results import Result, StepTable, batch_table, preemption_table, request_columns
from pagesim.scenario import COMPARED, Scenario, System, checked, each_policy
from pagesim.scheduling import Arrivals, Contents, DeadEnd, Scheduler
from pagesim.specs import Capacity, capacity, gpu, model
from pagesim.workloads import decode_as, make_trace

if TYPE_CHECKING:  # pandas takes long to import, and a run needs it only when a table is looked at
    import pandas as pd

Watch = Callable[[int], None]
"""Called now and then with the number of requests that are over."""

MakeExecutor = Callable[[Scheduler, Capacity, Trace], Executor]
"""Makes what carries out iterations, from the scheduler with its empty memory, the memory's size, and the
requests that are served."""

Rows = Literal["none", "stretches", "iterations"]
"""What the steps table holds: nothing, a row a stretch of like iterations, or a row an iteration."""


class SystemOptions(TypedDict, total=False):
    """Keywords of `simulate`: the fields of `System`, which says what each means and its default."""

    scheduler: str | None
    reservation: str | None
    placement: str | None
    model: str
    gpu: str
    tp: int
    kv_dtype: str
    sizing: str
    gpu_memory_utilization: float
    block_size: int | None
    page_size: str | None
    num_blocks: int | None
    cpu_blocks: int | None
    max_model_len: int | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    max_batch: int | None
    compat: str | None
    max_paddings: int | None
    chunked_prefill: bool | None
    long_prefill_token_threshold: int | None
    reserve_full_isl: bool | None
    prefix_caching: bool | None
    watermark: float | None
    preemption: str
    beam_drop: float
    strict_compat: bool
    seed: int
    client_timeout: float | None
    cost: str
    window: str | None
    until: float | None
    leap: bool


def simulate(
    trace: Trace | pd.DataFrame | str | PathLike[str],
    policy: str = "vllm-sosp",
    *,
    steps: Rows = "stretches",
    **options: Unpack[SystemOptions],
) -> Result:
    """Replay a trace under one policy.

    Args:
        trace: requests; a DataFrame with the columns of a trace file; or what `make_trace` takes, a bundled
            workload's name or a path.
        policy: a name of `POLICIES`.
        steps: what the result's ``steps`` table holds.
        **options: the fields of `System`, such as ``model="opt-13b"``, ``num_blocks=983`` or
            ``window="300:900"``.

    Raises:
        PagesimError: an option, the trace or their combination is off; the sentence says what to do.

    Example:
        >>> import pagesim as ps
        >>> trace = ps.make_trace("sharegpt", arrivals="poisson", rate=2.0, duration=60)
        >>> result = ps.simulate(trace, "orca-max")
        >>> result.summary["requests"]["unfinished"]
        0
    """
    system = checked(System, {"policy": policy, **options})
    return run(system, _as_trace(trace), steps=steps)


def compare(
    trace: Trace | pd.DataFrame | str | PathLike[str],
    policies: Sequence[str] = COMPARED,
    *,
    steps: Rows = "stretches",
    **options: Unpack[SystemOptions],
) -> dict[str, Result]:
    """Replay one trace under several policies; return the results by policy, in their order.

    Args:
        trace: as for `simulate`.
        policies: names of `POLICIES`.
        steps: as for `simulate`.
        **options: as for `simulate`; ``max_batch`` and ``preemption`` go to the policies that can use them.
    """
    systems = each_policy(checked(System, dict(options)), policies)
    requests = _as_trace(trace)
    return {policy: run(system, requests, steps=steps) for policy, system in systems.items()}


def run(
    system: System,
    trace: Trace,
    *,
    steps: Rows = "stretches",
    watch: Watch | None = None,
    executor: MakeExecutor | None = None,
) -> Result:
    """Replay a trace on a system; what `simulate` and the command line call.

    Args:
        system: what serves; a `Scenario` is kept with the result so that it can be run again.
        trace: the requests.
        steps: what the result's ``steps`` table holds.
        watch: for a progress bar.
        executor: what carries out the iterations; left out, the system's cost model predicts them.
    """
    started = time.perf_counter()
    policy, sized, limits, cost, memory, scheduler = _build(system)
    trace, request_of = take_in(trace, policy, limits)
    accepted = accepted_rows(trace, scheduler)
    if system.strict_compat:
        entering = entering_rows(trace, policy, limits)
        if policy.scheduler == "static" and len(accepted) < len(entering):
            row = int(np.setdiff1d(entering, accepted)[0])
            raise _strict(system, trace, StrictCompatError(DeadEnd.NEVER_BATCHED, row, 0))
        accepted = entering
    contents = None
    if limits.prefix_caching:
        contents = Contents(trace.take(accepted), request_of[accepted], sized.block_size)
    scheduler.expect(Arrivals(trace, accepted, drop=system.beam_drop, seed=system.seed, contents=contents))
    reserves = policy.reservation != "on-demand"
    slots = sized.slots
    window = None if system.window_s is None else (to_ticks(system.window_s[0]), to_ticks(system.window_s[1]))
    means = MemoryMeans(slots, reserves=reserves, window=window)
    gaps = TokenGaps()
    table = StepTable(
        to_tick_column(trace.arrival_s)[accepted],
        every=steps == "iterations",
        num_blocks=sized.num_blocks,
        block_size=sized.block_size,
        reserves=reserves,
    )
    streams = policy.scheduler != "static"  # a static batch is answered as a whole: no token has its own time

    def consume(chunk: Chunk) -> None:
        means.add(chunk)
        if streams:
            gaps.add(chunk)
        if steps != "none":
            table.add(chunk)

    recorder = Recorder(memory, len(trace), consume)
    turned_away = np.ones(len(trace), bool)
    turned_away[accepted] = False
    for row in np.flatnonzero(turned_away).tolist():
        recorder.status[row] = Status.REJECTED
    until = None if system.until is None else to_ticks(system.until)
    engine = Engine(
        scheduler,
        PredictedExecutor(cost) if executor is None else executor(scheduler, sized, trace.take(accepted)),
        recorder,
        leap=system.leap,
        until=until,
        aborts=aborts(trace, system.client_timeout),
        strict_compat=system.strict_compat,
        watch=watch,
    )
    try:
        engine.run()
    except StrictCompatError as error:
        raise _strict(system, trace, error) from None
    except OverflowError:  # an iteration alone is longer than all that the clock can count
        raise PagesimError(
            f"the run exceeds {LONGEST_S:g} s of simulated time under cost {system.cost}; lower its numbers"
        ) from None
    columns = request_columns(trace, recorder)
    status = np.frombuffer(recorder.status, np.uint8)
    ended = {s: int((status == s).sum()) for s in Status}
    summary: dict[str, Any] = {
        "policy": system.policy,
        "requests": {
            "total": len(trace),
            "finished": ended[Status.FINISHED],
            "rejected": ended[Status.REJECTED] + ended[Status.IGNORED],
            "stuck": ended[Status.STUCK],
            "aborted": ended[Status.ABORTED],
            "unfinished": ended[Status.UNFINISHED],
        },
        "dead_ends": {dead_end.key: engine.dead_ends[dead_end] for dead_end in DeadEnd},
        **latencies(columns),
        "itl": gaps.summary(),
        "throughput": throughput(columns),
        "batch": {"mean": means.mean_batch},
        "iterations": recorder.iterations,
        "preemptions": {"recompute": recorder.recomputed_total, "swap": recorder.swapped_total},
        "aborted_tokens": engine.aborted_tokens,
        "prefix": prefix_hits(columns),
        "swapped_blocks": {"in": recorder.blocks_in, "out": recorder.blocks_out},
        "memory": {
            "num_blocks": sized.num_blocks,
            "block_size": sized.block_size,
            "cpu_blocks": sized.cpu_blocks,
            **means.summary(),
        },
        "sharing": {"saving": means.saving},
        "extrapolated": dict(cost.beyond),
        "sim": {
            "wall_s": time.perf_counter() - started,
            "peak_rss_mb": _peak_rss_mb(),
            "decisions": engine.decisions,
        },
    }
    return Result(
        scenario=system,
        summary=summary,
        request_columns=columns,
        steps=table.frame() if steps != "none" else None,
        batches=batch_table(columns) if not streams else None,
        preemptions=preemption_table(trace, recorder) if system.preemption == "auto" else None,
        notes=(*trace.notes, *_extrapolations(system, cost)),
    )


def check(system: System) -> None:
    """Say at once, before any trace is made, if the options of a system do not go together.

    Raises:
        PagesimError: as `run` would; what only a trace can show is not looked for.
    """
    _build(system)


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
        rounds=scenario.rounds,
        tokenizer=scenario.tokenizer,
        on_bad_row=scenario.on_bad_row,
        shared_prefix=scenario.shared_prefix,
    )
    return decode_as(trace, n=scenario.n, beam_width=scenario.beam_width)


def _as_trace(trace: Trace | pd.DataFrame | str | PathLike[str]) -> Trace:
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


class _Built(NamedTuple):
    """The parts of a system, put together and empty."""

    policy: Policy
    sized: Capacity
    limits: Limits
    cost: CostModel
    memory: Allocator
    scheduler: Scheduler


def _build(system: System) -> _Built:
    policy = parts_of(system.policy, system.scheduler, system.reservation, system.placement)
    sized, limits, cost = equip(system, policy)
    if policy.scheduler == "vllm-v1":
        # Block 0 is the null block; no sequence ever holds it.
        sized = replace(sized, num_blocks=sized.num_blocks - 1)
        if not sized.num_blocks:
            raise PagesimError("num_blocks is 1; vllm-v1 needs at least 2, of which one is its null block")
    memory = build_memory(
        policy,
        num_blocks=sized.num_blocks,
        block_size=sized.block_size,
        cpu_blocks=sized.cpu_blocks,
        limits=limits,
    )
    scheduler = build_scheduler(policy, memory, limits, PreemptionPrices(cost))
    return _Built(policy, sized, limits, cost, memory, scheduler)


def _extrapolations(system: System, cost: CostModel) -> list[str]:
    return [
        f"cost {system.cost} was measured for fewer {axis} than the {size:,} here: extrapolated"
        for axis, size in cost.beyond.items()
    ]


def equip(system: System, policy: Policy) -> tuple[Capacity, Limits, CostModel]:
    """Return the memory, the limits and the costs of a system under its policy.

    Raises:
        PagesimError: an option is off, or the model does not fit.
    """
    spec, device = model(system.model), gpu(system.gpu)
    limits = Limits(
        max_model_len=system.max_model_len or spec.max_model_len,
        max_num_seqs=system.max_num_seqs,
        max_num_batched_tokens=system.max_num_batched_tokens,
        max_batch=system.max_batch,
        compat=system.compat,
        max_paddings=system.max_paddings,
        chunked_prefill=system.chunked_prefill,
        long_prefill_token_threshold=system.long_prefill_token_threshold,
        reserve_full_isl=system.reserve_full_isl,
        prefix_caching=system.prefix_caching,
        watermark=system.watermark,
        preemption=system.preemption,
    )
    # The engines of the paper's time start with a cache shorter than the longest request; vLLM's later ones
    # refuse to.
    checks_length = system.sizing == "vllm" and system.num_blocks is None
    block_size, page_bytes = granularity(policy, system.block_size, system.page_size)
    sized = capacity(
        spec,
        device,
        tp=system.tp,
        block_size=block_size,
        page_bytes=page_bytes,
        kv_dtype=system.kv_dtype,
        sizing=system.sizing,
        gpu_memory_utilization=system.gpu_memory_utilization,
        max_num_batched_tokens=system.max_num_batched_tokens,
        max_model_len=limits.max_model_len if checks_length else None,
        num_blocks=system.num_blocks,
    )
    if page_bytes is not None and system.cpu_blocks:
        raise PagesimError(
            f"cpu_blocks is {system.cpu_blocks}; placement virtual has no swap space: its pages are unmapped "
            "and never moved to the host"
        )
    if system.cpu_blocks is not None:
        sized = replace(sized, cpu_blocks=system.cpu_blocks)
    cost = parse_cost(
        system.cost,
        model=spec,
        gpu=device,
        tp=system.tp,
        block_size=sized.block_size,
        kv_dtype=system.kv_dtype,
    )
    return sized, limits, cost


def _strict(system: System, trace: Trace, error: StrictCompatError) -> PagesimError:
    when = f"at {error.now / TICKS_PER_SECOND:.6f} s: " if error.now else ""
    return PagesimError(
        f"strict_compat: {when}request {trace.request_id[error.row]}: {error.dead_end.what}; the real engine "
        f"of {system.policy} {error.dead_end.really} "
        "(without strict_compat it is counted and the others go on)"
    )


def _peak_rss_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10
