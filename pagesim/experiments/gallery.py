"""Gallery: how a GPU's memory is used while a model serves more requests than its KV cache holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil

import numpy as np

from pagesim.api import run
from pagesim.errors import CapacityError, PagesimError
from pagesim.experiments.holdings import ANY_COST, ENTRIES, FREE, holding, slot_bytes
from pagesim.experiments.loads import LOADS
from pagesim.experiments.plan import POLICY, Plan, plan
from pagesim.experiments.sweeps.workers import Workers
from pagesim.models import model
from pagesim.results.gpu_memory import FullMemory
from pagesim.setup.system import System
from pagesim.workloads.trace import Trace

MODELS = (
    "llama-3.1-8b",
    "gpt-oss-120b",
    "gemma3-27b",
    "qwen3-next-80b",
    "granite-4-h-small",
    "nemotron-h-8b",
    "nemotron-3-nano",
    "falcon-h1-7b",
)
"""Models of the documentation's figure: full attention only, with sliding windows, and with states."""

GPUS = (1, 2, 4, 8)
"""Numbers of GPUs to try; a model is split over the fewest that it fits on."""

LONGEST_REQUEST = 32768
"""Tokens of the longest request that a server accepts, unless the model's own maximum is lower."""

WARM_UP = 2000
"""Iterations before memory is measured; the first requests have finished by then."""

LOOKED_AT = 2000
"""Number of iterations that the mean covers."""

CROWD = 2
"""Number of clients per request of mean length that the blocks hold."""

SAMPLE = (256, 4000)
"""Clients and iterations of the load that determines the mean length."""

SEQUENCES = 1024
"""Maximum number of running sequences, doubled while the blocks hold nearly as many."""

SEED = 0
"""Seed of the loads."""

ROOM = 1.1
"""Ratio of the sequences that may run to the requests of mean length that the blocks hold."""

PARTS = ("not requested", "weights", "activations", "CUDA graphs", "other", *ENTRIES, *FREE)
"""Uses of a GPU's memory: the parts of a plan and the entries of the ledger."""


def gallery(
    models: Sequence[str] = MODELS, *, gpu: str = "h100", jobs: int | None = None
) -> Iterator[FullMemory]:
    """Yield the memory of each model under each load, in order of completion.

    Args:
        models: names or files, as for ``--model``.
        gpu: GPU for all of them.
        jobs: number of parallel replays; None for one per core.

    Raises:
        PagesimError: a model or the GPU is unknown, or a model does not fit on eight of these GPUs.
    """
    calls = [(name, load, gpu) for name in models for load in LOADS]
    with Workers(jobs) as workers:
        yield from workers.call(full, calls)


def full(name: str, load: str, gpu: str) -> FullMemory:
    """Replay a load that exceeds the cache, and return how the memory of each GPU was used.

    Args:
        name: name of a model.
        load: see `LOADS`.
        gpu: see `gallery`.

    Raises:
        PagesimError: see `gallery`.
    """
    lengths = {each: _mean_tokens(make(*SAMPLE, SEED)) for each, make in LOADS.items()}
    planned = _server(name, gpu, min(lengths.values()))
    clients, iterations = ceil(CROWD * _held_at_once(planned, lengths[load])), WARM_UP + LOOKED_AT
    system = planned.system.model_copy(
        update={
            "num_blocks": planned.sized.num_blocks,
            "cost": ANY_COST,
            "max_concurrency": clients,
            "until": float(iterations),
        }
    )
    result = run(system, LOADS[load](clients, iterations, SEED), steps="iterations")
    steps = result.steps
    assert steps is not None
    steps = steps[(steps["num_batched_tokens"] > 0) & (steps["step"] >= WARM_UP)]
    places = int(planned.settled["max_num_seqs"])
    if not len(steps) or not int(steps["num_waiting"].min()) or int(steps["num_running"].max()) >= places:
        raise PagesimError(
            f"under {load} requests do not always wait for memory: the cache of {name} on {gpu} is not full"
        )
    unit = slot_bytes(result)
    entries = [entry for entry in (*ENTRIES, *FREE) if entry in steps]
    held = {entry: int(steps[entry].sum()) * unit // len(steps) for entry in entries}
    return FullMemory(
        model=name,
        gpu=gpu,
        tensor_parallel_size=system.tensor_parallel_size,
        load=load,
        clients=clients,
        max_num_seqs=places,
        running=float(steps["num_running"].mean()),
        waiting=float(steps["num_waiting"].mean()),
        num_blocks=planned.sized.num_blocks,
        bytes=_all_of(planned, held),
    )


def _server(name: str, gpu: str, tokens: int) -> Plan:
    """Return a server on as few GPUs as possible, in which requests of this length wait for blocks only.

    It may run so many sequences that none waits for a slot. But for models with states, vLLM does not start
    with more sequences than blocks.
    """
    spec = model(name)
    asked = System.model_validate(
        {
            "policy": POLICY,
            "model": name,
            "gpu": gpu,
            "max_model_len": min(LONGEST_REQUEST, spec.max_model_len),
            "enable_prefix_caching": True,
            "max_num_seqs": SEQUENCES,
        }
    )
    found = _on_fewest(asked)
    sequences = SEQUENCES
    while ROOM * _held_at_once(found, tokens) > sequences:
        sequences *= 2
        found = _with_sequences(found, sequences)
    if any(layer.kind == "state" for layer in spec.cache_layers) and found.sized.num_blocks < sequences:
        found = _with_sequences(found, found.sized.num_blocks)
    return found


def _held_at_once(planned: Plan, tokens: int) -> float:
    """Return how many requests of ``tokens`` tokens the blocks hold."""
    blocks = planned.sized.num_blocks
    return blocks / holding(planned.system.model_copy(update={"num_blocks": blocks}), tokens).blocks


def _on_fewest(asked: System) -> Plan:
    for number in GPUS:
        try:
            return plan(asked.model_copy(update={"tensor_parallel_size": number}), full_graphs=False)
        except CapacityError:
            if number == GPUS[-1]:
                raise
    raise AssertionError("a plan is made or refused")


def _with_sequences(found: Plan, number: int) -> Plan:
    return plan(found.system.model_copy(update={"max_num_seqs": number}), full_graphs=False)


def _mean_tokens(trace: Trace) -> int:
    """Return the mean length of a running request, averaged over iterations."""
    lengths = trace.prompt_tokens + trace.output_tokens / 2
    return int(np.average(lengths, weights=trace.output_tokens))


def _all_of(planned: Plan, held: dict[str, int]) -> dict[str, int]:
    """Return the parts of a GPU's memory in whole bytes that add up to all of it.

    The null block and any remainder smaller than a block count as ``other``. What is lost by rounding means
    down counts as ``free``.
    """
    parts = {part.name: part.bytes for part in planned.parts[:-1]}
    cache = (planned.sized.num_blocks - 1) * planned.sized.block_bytes
    parts["other"] += planned.cache_bytes - cache
    held = {**held, "free": held["free"] + cache - sum(held.values())}
    return {name: parts.get(name, held.get(name, 0)) for name in PARTS}
