"""Traits: what a scheduler declares about its engine before there is any memory or request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from pagesim.errors import PagesimError
from pagesim.kvcache import BlockManager
from pagesim.kvcache.radix import HostPool, StatePool, WindowPool
from pagesim.scheduling.arrivals import NEVER
from pagesim.scheduling.options import Machine, SchedulerOptions
from pagesim.setup.compiled import mypyc_attr
from pagesim.workloads.trace import IntColumn

Pool = Literal["prefill", "decode"]
"""Role of a replica under disaggregated prefill."""

SampleMode = Literal["together", "apart", "requests", "one"]


@mypyc_attr(allow_interpreted_subclasses=True)
class SchedulerTraits:
    """A scheduler's options, the memory and requests that it supports, and what depends on its options.

    A scheduler overrides the traits in which it differs; no other part of pagesim checks its name.
    """

    __slots__ = ()

    Options: ClassVar[type[SchedulerOptions]] = SchedulerOptions
    """Options class: each field is a command-line flag, a field of a scenario file and a keyword."""

    samples: ClassVar[SampleMode] = "together"
    """How the samples of a request are served: they end together, end apart, or are separate requests;
    or only one is allowed."""

    has_beams: ClassVar[bool] = True
    """Whether beam search is supported."""

    streams: ClassVar[bool] = True
    """Whether each token has its own time; if not, a request's whole answer is returned at once."""

    reservations: ClassVar[tuple[str, ...]] = ("max", "pow2", "oracle", "on-demand")
    """Reservation policies that it supports."""

    allocators: ClassVar[tuple[str, ...] | None] = None
    """Names of pagesim's own allocators that it supports; None for all."""

    takes_plugins: ClassVar[bool] = True
    """Whether it supports allocators from plug-ins."""

    memory_reason: ClassVar[str] = ""
    """Why it needs these reservations and allocators, for the message that rejects others."""

    null_blocks: ClassVar[int] = 0
    """Number of blocks in the cache that no sequence ever holds."""

    needs_sharing: ClassVar[bool] = False
    """Whether memory must share blocks between sequences."""

    drops_last_token: ClassVar[bool] = False
    """Whether a client that disconnects during an iteration gets none of its tokens, not even a last one."""

    loses_in_flight: ClassVar[bool] = False
    """Whether a preempted request also loses its token in flight."""

    follows_reach: ClassVar[bool] = False
    """Whether batches record what layers with a limited attention span read (``spans``)."""

    serves_hybrids: ClassVar[bool] = True
    """Whether hybrid models are supported, whose layers differ in what they keep."""

    empty_turns: ClassVar[bool] = True
    """Whether an empty plan counts as an iteration of zero length when batches are scheduled ahead."""

    sizing: ClassVar[Literal["paper", "vllm", "sglang"]] = "paper"
    """Method that computes the number of blocks if the system does not set it."""

    @classmethod
    def kind_for(cls, options: Any) -> type[Any]:
        """Return the scheduler class for these options: this class or a subclass."""
        return cls

    @classmethod
    def kind_in_pool(cls, options: Any, pool: Pool) -> Callable[..., Any]:
        """Return a factory of schedulers for a pool of replicas that only prefill, or only decode.

        Raises:
            PagesimError: the scheduler has no connector between such pools, at least under these options.
        """
        raise PagesimError(
            "this policy has no connector between replicas that prefill and replicas that decode; choose "
            "policy vllm-v1"
        )

    @classmethod
    def longest_sequence(cls, max_model_len: int) -> int | None:
        """Return the length (prompt + output) at which sequences are cut off; None if longer are rejected."""
        return None

    @classmethod
    def most_output(
        cls, prompt: IntColumn, max_model_len: int, num_blocks: int, block_size: int
    ) -> IntColumn | None:
        """Return how many tokens each prompt may generate, ``[N]``; None if longer requests are rejected.

        Args:
            prompt: prompt lengths in tokens, ``[N]``.
            max_model_len: maximum length of a sequence in tokens.
            num_blocks: blocks of the cache, without null blocks.
            block_size: tokens per block.
        """
        longest = cls.longest_sequence(max_model_len)
        return None if longest is None else np.maximum(1, longest - prompt)

    @classmethod
    def memory_for(
        cls,
        options: Any,
        num_blocks: int,
        block_size: int,
        second: WindowPool | StatePool | HostPool | None = None,
    ) -> BlockManager | None:
        """Return the scheduler's own block manager, empty, under these options; None if it has none.

        Args:
            options: resolved options.
            num_blocks: blocks that sequences can hold.
            block_size: tokens per block.
            second: pool of sliding-window layers, of recurrent states or on the host, if there is one.
        """
        return None

    @classmethod
    def takes_in(cls, prompt: IntColumn, output: IntColumn, max_model_len: int) -> npt.NDArray[np.bool_]:
        """Return which requests the real engine accepts, whether or not it then serves them, ``[N]``."""
        return prompt + output <= max_model_len

    @classmethod
    def resolve(cls, options: Any, machine: Machine) -> SchedulerOptions:
        """Return the options with all defaults filled in that depend on the machine.

        Raises:
            PagesimError: the engine would not start with these options.
        """
        resolved: SchedulerOptions = options
        return resolved

    @classmethod
    def gpu_memory_utilization(cls, options: Any) -> float:
        """Return the share of GPU memory to use under sizing vllm, if the system does not set it."""
        return 0.9

    @classmethod
    def default_block_size(cls, machine: Machine) -> int | None:
        """Return the token slots per block if the system does not set them; None for the policy's default."""
        return None

    @classmethod
    def schedules_ahead(cls, options: Any) -> bool:
        """Whether the engine schedules an iteration while the previous one runs.

        Args:
            options: resolved options.
        """
        return False

    @classmethod
    def graphs_to(cls, options: Any) -> int:
        """Return the size in tokens of the largest iteration with a prompt that runs as a CUDA graph.

        Args:
            options: resolved options.
        """
        return 0

    @classmethod
    def counts_cuda_graphs(cls, options: Any) -> bool:
        """Whether the memory of CUDA graphs is deducted from the cache, under sizing vllm."""
        return False

    @classmethod
    def keeps_sampler_buffers(cls, options: Any) -> bool:
        """Whether the sampler keeps buffers for all requests, under sizing vllm."""
        return False

    @classmethod
    def caches_prefixes(cls, options: Any) -> bool:
        """Whether memory must look up blocks by their content under these options."""
        return False

    @classmethod
    def needs_tables(cls, options: Any) -> bool:
        """Whether memory must keep block tables with block numbers under these options."""
        return False

    @classmethod
    def names_contents(cls, options: Any) -> bool:
        """Whether requests must have a `Content` under these options."""
        return cls.caches_prefixes(options)

    @classmethod
    def hash_lookahead(cls, options: Any) -> int:
        """Return how many tokens after a block its hash also covers under these options."""
        return 0

    @classmethod
    def reuses_unhashed_first(cls, options: Any) -> bool:
        """Whether freed blocks without a hash are reused before cached ones."""
        return True

    # Copies that run next to the iterations; most schedulers have none

    def decided_at(self, now: int) -> int:
        """Return when the plan that began at ``now`` is complete: later if it had to wait for a copy."""
        return now

    def launched(self, end: int) -> int:
        """Note when the launched iterations end; return when they end including what they load."""
        return end

    @property
    def wakes_at(self) -> int:
        """When the copy ends for which a request waits while nothing runs; ``NEVER`` for none."""
        return NEVER
