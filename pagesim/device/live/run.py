"""A live run: the loop of `pagesim.api.run` over an executor that runs iterations on a device."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pagesim.api import run
from pagesim.errors import CapacityError
from pagesim.kernels.bench import selection
from pagesim.models import model
from pagesim.results.kept_frames import KeptFrames
from pagesim.results.result import Result
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.observer import Observer
from pagesim.setup.engine_config import EngineConfig
from pagesim.setup.server import ProgressCallback
from pagesim.setup.system import System
from pagesim.sim.executor import Executor
from pagesim.sizing import Capacity
from pagesim.workloads.trace import Trace

if TYPE_CHECKING:
    import torch

    from pagesim.device.live.executor import MeasuredExecutor

DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}


def run_live(
    system: System,
    trace: Trace,
    *,
    device: str | None = None,
    cuda_graphs: bool = False,
    swap: str = "gather",
    check: bool = False,
    progress: ProgressCallback | None = None,
    observers: Sequence[Observer] = (),
) -> Result:
    """Replay a trace under one policy, running every iteration on a device.

    Scheduler and memory are those of `pagesim.simulate`; virtual time advances by the device's measured time.
    Weights and token ids are random, from the system's seed.

    Args:
        system: deployment to run, as for `pagesim.api.run`; a `Scenario` is stored with the result. Its
            ``gpu`` sizes the cache unless ``num_blocks`` is given. Its ``cost`` only prices preemptions under
            ``auto``. Without ``cpu_blocks``, swap space has its default size, but at most that of the cache.
        trace: the requests.
        device: ``cpu`` or ``cuda``; by default ``cuda`` if available.
        cuda_graphs: whether decode-only iterations run as CUDA graphs; on cuda.
        swap: swap strategy, a name of ``pagesim.kernels.swap.STRATEGIES``.
        check: whether to compare sequences between iterations with the same ones computed contiguously.
        progress: callback for a progress bar.
        observers: observers called between iterations, while the clock is stopped.

    Returns:
        A result like that of `pagesim.simulate`. ``steps`` has one row per iteration, with the times of its
        parts. ``summary["clock"]`` is ``measured``, and ``summary["live"]`` describes the device and the
        result of a check.

    Raises:
        PagesimError: torch or the device is missing, the model cannot be run or does not fit, or an option is
            invalid; the message says what to do.
    """
    device = selection.device(device)
    import torch

    from pagesim.device.live.preflight import check_block_size, check_options, dtype_on
    from pagesim.kernels.machine import describe_machine

    config = EngineConfig(system)
    spec = model(system.model)
    check_options(system, spec, config.policy, device=device, cuda_graphs=cuda_graphs, swap=swap)
    sized, kv_dtype, max_model_len = config.capacity, config.kv_dtype, config.max_model_len
    check_block_size(sized.block_size)
    if system.cpu_blocks is None:
        system = system.model_copy(update={"cpu_blocks": min(sized.cpu_blocks, sized.num_blocks)})
    dtype = dtype_on(device, kv_dtype)
    notes: tuple[str, ...] = ()
    if "async_scheduling" in config.scheduler.Options.model_fields:
        system = system.model_copy(update={"async_scheduling": False})
        notes = ("a live run has one batch in flight: async_scheduling is off",)
    # Requests come from this process, without a server in front.
    system = system.model_copy(update={"frontend": "0"})
    config = EngineConfig(system)

    made: list[MeasuredExecutor] = []

    def make(scheduler: Scheduler, sized: Capacity, served: Trace) -> Executor:
        longest = _longest(served, max_model_len)
        how: dict[str, Any] = {"dtype": dtype, "device": torch.device(device), "cuda_graphs": cuda_graphs}
        made.append(_equipped(scheduler, sized, config, longest=longest, swap=swap, check=check, **how))
        # Keep the garbage collector from scanning existing objects while the clock runs.
        gc.collect()
        gc.freeze()
        return made[0]

    try:
        result = run(system, trace, executor=make, steps="iterations", progress=progress, observers=observers)
    except torch.OutOfMemoryError as error:
        raise CapacityError(
            f"the {device} ran out of memory in an iteration ({str(error).splitlines()[0]}); decrease "
            "num_blocks, max_num_seqs or max_num_batched_tokens"
        ) from None
    finally:
        gc.unfreeze()
    (executor,) = made
    live: dict[str, Any] = {
        "device": device,
        "dtype": DTYPES[str(dtype).removeprefix("torch.")],
        "cuda_graphs": cuda_graphs,
        "swap": swap,
        "machine": describe_machine(device),
    }
    if executor.checker is not None:
        live["check"] = executor.checker.report()
    assert result.steps is not None
    return replace(
        result,
        summary={**result.summary, "clock": "measured", "live": live},
        notes=(*result.notes, *notes),
        kept_steps=KeptFrames.of(result.steps.assign(**_parts(executor))),
    )


def _equipped(
    scheduler: Scheduler,
    sized: Capacity,
    config: EngineConfig,
    *,
    longest: int,
    dtype: torch.dtype,
    device: torch.device,
    cuda_graphs: bool,
    swap: str,
    check: bool,
) -> MeasuredExecutor:
    """Return a warmed-up executor with weights and pools."""
    from pagesim.device.live.check import Checker
    from pagesim.device.live.executor import MeasuredExecutor
    from pagesim.device.live.graphs import DecodeGraphs
    from pagesim.device.live.model import Model, check_model
    from pagesim.device.live.pools import KvPools
    from pagesim.device.live.preflight import check_memory
    from pagesim.device.live.tokens import TokenIds
    from pagesim.device.live.warmup import warm_up

    system, policy = config.system, config.policy
    spec = model(system.model)
    check_model(spec, longest)
    # v1 never swaps, and sequences with reserved memory are never preempted.
    swaps = policy.reservation == "on-demand" and policy.scheduler != "vllm-v1"
    host_blocks = sized.cpu_blocks if swaps else 0
    check_memory(
        spec,
        sized,
        activation_bytes=config.fitting_capacity.activation_bytes,
        host_blocks=host_blocks,
        null_blocks=config.scheduler.null_blocks,
        dtype=dtype,
        device=device,
    )
    weights = Model(spec, dtype=dtype, device=device, longest=longest, seed=system.seed)
    pools = KvPools(
        spec,
        num_blocks=sized.num_blocks,
        host_blocks=host_blocks,
        block_size=sized.block_size,
        dtype=dtype,
        device=device,
        strategy=swap,
        poisoned=check,
    )
    executor = MeasuredExecutor(scheduler, weights, pools, TokenIds(spec.vocab, system.seed), longest=longest)
    # The scheduler has resolved options left open; static batching has neither limit.
    most = getattr(scheduler, "max_num_seqs", 256)
    if cuda_graphs:
        executor.graphs = DecodeGraphs(weights, pools, longest=longest, most=most)
    warm_up(executor, most_sequences=most, most_tokens=getattr(scheduler, "max_num_batched_tokens", 2560))
    if check:
        executor.checker = Checker(executor, seed=system.seed)
    return executor


def _longest(served: Trace, max_model_len: int) -> int:
    """Return the tokens of the longest sequence whose keys and values are stored."""
    if not len(served):
        return 1
    # A static batch is padded to its longest prompt and its longest answer.
    padded = int(served.prompt_tokens.max()) + int(served.output_tokens.max())
    return max(1, min(padded, max_model_len))


def _parts(executor: MeasuredExecutor) -> dict[str, list[Any]]:
    """Return the columns that a live run adds to ``steps``."""
    names = ("prepare_s", "move_s", "compute_s", "prompt_tokens", "decode_sequences", "decode_context")
    return {name: [getattr(record, name) for record in executor.records] for name in names}
