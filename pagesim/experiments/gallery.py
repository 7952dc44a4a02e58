"""Gallery: where all memory of a GPU goes while a model serves more than its KV cache holds."""

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
"""Models of the figure in the documentation: full attention alone, beside windows, and beside states."""

GPUS = (1, 2, 4, 8)
"""A model is divided over the fewest of these on which it fits."""

LONGEST_REQUEST = 32768
"""Tokens of the longest request that a server takes, or the model's own if that is less."""

WARM_UP = 2000
"""Iterations before memory is looked at; the requests of the first ones are over then."""

LOOKED_AT = 2000
"""Iterations over which the mean is taken."""

CROWD = 2
"""Clients for each request of mean length that the blocks hold."""

SAMPLE = (256, 4000)
"""Clients and iterations of the load by which the mean length is known."""

SEQUENCES = 1024
"""Sequences that a server runs at most, doubled while the blocks hold nearly as many."""

SEED = 0
"""Of the loads."""

ROOM = 1.1
"""Sequences that a server may run, for each request of mean length that the blocks hold."""

PARTS = ("not requested", "weights", "activations", "CUDA graphs", "other", *ENTRIES, *FREE)
"""What a GPU's memory is for: the parts of a plan, and the entries of the ledger."""


def gallery(
    models: Sequence[str] = MODELS, *, gpu: str = "h100", jobs: int | None = None
) -> Iterator[FullMemory]:
    """Yield the memory of each model under each load, in the order in which it is known.

    Args:
        models: names, or files, as ``--model`` takes.
        gpu: for all of them.
        jobs: replays at a time; None for one a core.

    Raises:
        PagesimError: there is no such model or GPU, or a model does not fit on eight of these GPUs.
    """
    calls = [(name, load, gpu) for name in models for load in LOADS]
    with Workers(jobs) as workers:
        yield from workers.call(full, calls)


def full(name: str, load: str, gpu: str) -> FullMemory:
    """Replay a load that is more than the cache holds, and say where the memory of each GPU was.

    Args:
        name: of a model.
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
    """Return a server on as few GPUs as hold it, in which requests of so many tokens wait for blocks.

    It runs so many sequences that they do not wait for a place; but beside states vLLM does not start with
    more sequences than blocks.
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
    """Return how many requests of so many tokens the blocks hold."""
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
    """Return how long a running request is, mean over iterations."""
    lengths = trace.prompt_tokens + trace.output_tokens / 2
    return int(np.average(lengths, weights=trace.output_tokens))


def _all_of(planned: Plan, held: dict[str, int]) -> dict[str, int]:
    """Return the parts of a GPU's memory as whole bytes that sum to it.

    The null block, and what is less than a block, are ``other``; what is lost where means are rounded down is
    ``free``.
    """
    parts = {part.name: part.bytes for part in planned.parts[:-1]}
    cache = (planned.sized.num_blocks - 1) * planned.sized.block_bytes
    parts["other"] += planned.cache_bytes - cache
    held = {**held, "free": held["free"] + cache - sum(held.values())}
    return {name: parts.get(name, held.get(name, 0)) for name in PARTS}
