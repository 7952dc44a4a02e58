"""Where a GPU's memory goes under vLLM, and how many requests fit, without a trace."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple

import numpy as np

from pagesim.api import run
from pagesim.costs.specs import Capacity, Division, capacity, divide, gpu, model
from pagesim.costs.specs.gpus import GIB
from pagesim.errors import CapacityError, PagesimError
from pagesim.scheduling.vllm_releases import RELEASES
from pagesim.scheduling.vllm_v1_options import VllmV1Options
from pagesim.setup.prepare import memory_of, options_of
from pagesim.setup.presets import BLOCK_SIZE, parts_of
from pagesim.setup.scenario import System
from pagesim.workloads.trace import Trace

POLICY = "vllm-v1"


class Part(NamedTuple):
    """A part of a GPU's memory: what for, how many bytes, and how that is known."""

    name: str
    bytes: int
    known: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The memory of an engine of vLLM before it has served anything.

    Args:
        system: what serves.
        settled: the options that decide, those left out as the release's server takes them.
        division: what each GPU's memory is for, estimated.
        cache_bytes: what is left for the cache on each GPU.
        given: whether ``cache_bytes`` was given rather than estimated.
        sized: the cache that fits, the null block included.
        tokens: "GPU KV cache size".
        concurrency: "Maximum concurrency for ``max_model_len`` tokens per request".
        at_once: such requests that the scheduler runs side by side to their ends, preempting none.
    """

    system: System
    settled: dict[str, Any]
    division: Division
    cache_bytes: int
    given: bool
    sized: Capacity
    tokens: int
    concurrency: float
    at_once: int

    @property
    def parts(self) -> tuple[Part, ...]:
        """Where each GPU's memory goes; the parts make up all of it, but for what is less than a block."""
        of = self.division
        rest = Part("not requested", of.memory - of.requested, f"{of.memory / GIB:.2f} GiB in all")
        if self.given:
            used = Part("weights and all else", of.requested - self.cache_bytes, "what the log leaves")
            return rest, used, Part("KV cache", self.cache_bytes, "from the log")
        return (
            rest,
            Part("weights", of.weights, "exact"),
            Part("activations", of.activations, "estimated"),
            Part("CUDA graphs", of.graphs, "estimated" if of.graphs else "none counted"),
            Part("other", of.other, "estimated"),
            Part("KV cache", self.cache_bytes, "what is left"),
        )

    @property
    def log(self) -> tuple[str, ...]:
        """The lines of the engine's log that say the same."""
        longest = self.settled["max_model_len"]
        return (
            f"Available KV cache memory: {self.cache_bytes / GIB:.2f} GiB",
            f"GPU KV cache size: {self.tokens:,} tokens",
            f"Maximum concurrency for {longest:,} tokens per request: {self.concurrency:.2f}x",
        )

    def as_dict(self) -> dict[str, Any]:
        """Return all of it, for JSON."""
        return {
            "model": self.system.model,
            "gpu": self.system.gpu,
            "options": self.settled,
            "memory": {part.name.lower().replace(" ", "_") + "_bytes": part.bytes for part in self.parts},
            "known": {part.name.lower().replace(" ", "_"): part.known for part in self.parts},
            "block_size": self.sized.block_size,
            "block_bytes": self.sized.block_bytes,
            "num_blocks": self.sized.num_blocks,
            "tokens": self.tokens,
            "max_concurrency": self.concurrency,
            "at_once": self.at_once,
            "log": list(self.log),
        }


def plan(system: System, *, cache_bytes: int | None = None, enforce_eager: bool = False) -> Plan:
    """Plan the memory of a system of policy ``vllm-v1``, and count the requests that fit.

    Args:
        system: what serves; its cost model is not looked at.
        cache_bytes: what the engine's log says is left for the cache on each GPU, instead of the estimate.
        enforce_eager: whether no CUDA graphs are captured.

    Raises:
        CapacityError: the model does not fit, or the cache cannot hold one request of the longest length.
        PagesimError: an option is off.
    """
    policy = parts_of(system.policy, system.scheduler, system.reservation, system.placement)
    options = options_of(system, policy)
    if not isinstance(options, VllmV1Options):
        raise PagesimError(f"policy is {system.policy}; a plan is one of vLLM's memory: choose {POLICY}")
    release = RELEASES[options.vllm_version]
    spec, device = model(system.model), gpu(system.gpu)
    longest = system.max_model_len or spec.max_model_len
    how = memory_of(system.model_copy(update={"sizing": "vllm"}), policy)
    how["cuda_graphs"] &= not enforce_eager
    sized = capacity(
        spec,
        device,
        **how,
        sizing="vllm",
        block_size=system.block_size or BLOCK_SIZE,
        kv_dtype=system.kv_cache_dtype,
        cache_bytes=cache_bytes,
        max_model_len=1,
    )
    _check(system, sized, longest)
    division = divide(spec, device, **how)
    each = ceil(longest / sized.block_size)
    concurrency = sized.num_blocks / each
    settled = {
        "tensor_parallel_size": system.tensor_parallel_size,
        "kv_cache_dtype": system.kv_cache_dtype,
        "gpu_memory_utilization": how["gpu_memory_utilization"],
        "max_model_len": longest,
        **options.model_dump(include={"vllm_version", "max_num_batched_tokens", "max_num_seqs"}),
        "enforce_eager": enforce_eager,
    }
    return Plan(
        system=system,
        settled=settled,
        division=division,
        cache_bytes=division.cache if cache_bytes is None else cache_bytes,
        given=cache_bytes is not None,
        sized=sized,
        tokens=int(concurrency * longest) if release.prints_whole_requests else sized.slots,
        concurrency=concurrency,
        at_once=_at_once(system, sized.num_blocks, longest, ceil(concurrency), how["max_num_seqs"]),
    )


def blocks_behind(available_gib: float, block_bytes: int) -> tuple[int, int]:
    """Return the fewest and the most blocks of a cache whose GiB are these in a log, with two decimals."""
    least, most = (int((available_gib + change) * GIB) // block_bytes for change in (-0.005, 0.005))
    return least, most


def _check(system: System, sized: Capacity, longest: int) -> None:
    """Refuse, as the engine does when it starts, a cache in which not even one longest request fits."""
    most = (sized.num_blocks - 1) * sized.block_size  # one block is the null block
    if longest > most:
        raise CapacityError(
            f"max_model_len is {longest} tokens, but a request of {system.model} can have at most {most} in "
            f"the {sized.num_blocks} KV blocks on {system.tensor_parallel_size} × {system.gpu}, one of them "
            f"the null block: lower max_model_len to at most {most}, or raise gpu_memory_utilization or "
            "tensor_parallel_size"
        )


def _at_once(system: System, num_blocks: int, longest: int, most: int, max_num_seqs: int) -> int:
    """Return how many requests of the longest length run side by side to their ends, none preempted.

    They are replayed: all arrive at once with a prompt of one token, so that all grow in step, and together
    hold the most that they ever can.
    """
    memory = system.model_copy(update={"num_blocks": num_blocks})
    for number in range(min(most, max_num_seqs), 0, -1):
        requests = Trace(
            arrival_s=np.zeros(number),
            prompt_tokens=np.ones(number, np.int64),
            output_tokens=np.full(number, longest - 1),
        )
        if not run(memory, requests, steps="none").summary["preemptions"]["recompute"]:
            return number
    return 0
