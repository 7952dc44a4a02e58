"""Traits: what a scheduler says of the engine it is taken from, before there is any memory or request."""

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
"""What a replica does where prefill is disaggregated from decode."""

SampleMode = Literal["together", "apart", "requests", "one"]


@mypyc_attr(allow_interpreted_subclasses=True)
class SchedulerTraits:
    """Its options, what of memory and requests it can serve, and what depends on the options chosen.

    A scheduler overrides those in which it differs; no other part of pagesim asks for its name.
    """

    __slots__ = ()

    Options: ClassVar[type[SchedulerOptions]] = SchedulerOptions
    """What can be chosen: each field is a flag, a field of a scenario file and a keyword."""

    samples: ClassVar[SampleMode] = "together"
    """What becomes of the samples of a request: they end together or apart, or are requests of their own;
    or there may be only one."""

    has_beams: ClassVar[bool] = True
    """Whether requests may search beams."""

    streams: ClassVar[bool] = True
    """Whether a token has a time of its own; if not, requests are answered as a whole."""

    reservations: ClassVar[tuple[str, ...]] = ("max", "pow2", "oracle", "on-demand")
    """The reservations with which it works."""

    allocators: ClassVar[tuple[str, ...] | None] = None
    """The allocators with which it works, of those that come with pagesim, by name; None for all."""

    takes_plugins: ClassVar[bool] = True
    """Whether it works with an allocator that a plug-in brings."""

    memory_reason: ClassVar[str] = ""
    """Why it needs such memory, for the sentence that refuses another."""

    null_blocks: ClassVar[int] = 0
    """Blocks of the cache that no sequence ever holds."""

    needs_sharing: ClassVar[bool] = False
    """Whether memory must share blocks between sequences."""

    drops_last_token: ClassVar[bool] = False
    """Whether a client that goes away during an iteration gets nothing of it, not even a last token."""

    loses_in_flight: ClassVar[bool] = False
    """Whether a request that loses its place loses the token, too, that is in flight for it."""

    follows_reach: ClassVar[bool] = False
    """Whether a batch says what layers read that look back on some tokens only (``spans``)."""

    serves_hybrids: ClassVar[bool] = True
    """Whether layers may differ in what they keep."""

    empty_turns: ClassVar[bool] = True
    """Whether an empty plan is an iteration, of no length, where batches are scheduled ahead."""

    sizing: ClassVar[Literal["paper", "vllm", "sglang"]] = "paper"
    """How the number of blocks is worked out where a system leaves it open."""

    @classmethod
    def kind_for(cls, options: Any) -> type[Any]:
        """Return the class that decides under these options: this one, or one that derives from it."""
        return cls

    @classmethod
    def kind_in_pool(cls, options: Any, pool: Pool) -> Callable[..., Any]:
        """Return what makes the scheduler of a pool of replicas that only prefill, or only decode.

        Raises:
            PagesimError: the scheduler has no connector between such pools, or not under these options.
        """
        raise PagesimError(
            "this policy has no connector between replicas that prefill and replicas that decode; choose "
            "policy vllm-v1"
        )

    @classmethod
    def longest_sequence(cls, max_model_len: int) -> int | None:
        """Return prompt + output at which the engine ends a sequence; None where it rejects longer ones."""
        return None

    @classmethod
    def most_output(
        cls, prompt: IntColumn, max_model_len: int, num_blocks: int, block_size: int
    ) -> IntColumn | None:
        """Return the tokens that the engine lets each prompt generate, ``[N]``; None where it rejects others.

        Args:
            prompt: tokens, ``[N]``.
            max_model_len: tokens.
            num_blocks: of the cache, without null blocks.
            block_size: tokens a block.
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
        """Return the empty memory that the scheduler brings with it under these options; None for none.

        Args:
            options: resolved.
            num_blocks: that sequences can hold.
            block_size: tokens a block.
            second: the pool of layers with a window, of recurrent states or on the host, where there is one.
        """
        return None

    @classmethod
    def takes_in(cls, prompt: IntColumn, output: IntColumn, max_model_len: int) -> npt.NDArray[np.bool_]:
        """Say which requests the real engine takes in, served or not, ``[N]``."""
        return prompt + output <= max_model_len

    @classmethod
    def resolve(cls, options: Any, machine: Machine) -> SchedulerOptions:
        """Return the options with those replaced whose default depends on where the engine runs.

        Raises:
            PagesimError: the engine would not start with these.
        """
        resolved: SchedulerOptions = options
        return resolved

    @classmethod
    def gpu_memory_utilization(cls, options: Any) -> float:
        """Return the share of GPU memory to use, under sizing vllm, where a system leaves it open."""
        return 0.9

    @classmethod
    def default_block_size(cls, machine: Machine) -> int | None:
        """Return the token slots of a block where a system leaves it open; None for the policy's."""
        return None

    @classmethod
    def schedules_ahead(cls, options: Any) -> bool:
        """Whether the engine schedules an iteration while the one before it runs.

        Args:
            options: resolved.
        """
        return False

    @classmethod
    def graphs_to(cls, options: Any) -> int:
        """Return the tokens of the largest iteration with a prompt that CUDA graphs launch.

        Args:
            options: resolved.
        """
        return 0

    @classmethod
    def counts_cuda_graphs(cls, options: Any) -> bool:
        """Whether memory of CUDA graphs is left out of the cache, under sizing vllm."""
        return False

    @classmethod
    def keeps_sampler_buffers(cls, options: Any) -> bool:
        """Whether the sampler keeps buffers for all requests, under sizing vllm."""
        return False

    @classmethod
    def caches_prefixes(cls, options: Any) -> bool:
        """Whether memory must find blocks by their content under these options."""
        return False

    @classmethod
    def needs_tables(cls, options: Any) -> bool:
        """Whether blocks must have numbers under these options."""
        return False

    @classmethod
    def names_contents(cls, options: Any) -> bool:
        """Whether requests must be known by their content under these options."""
        return cls.caches_prefixes(options)

    @classmethod
    def hash_lookahead(cls, options: Any) -> int:
        """Return how many tokens behind a block its content covers under these options."""
        return 0

    @classmethod
    def reuses_unhashed_first(cls, options: Any) -> bool:
        """Whether freed blocks that cannot be found are taken before cached ones."""
        return True

    # Copies of its own, beside its iterations; most have none

    def decided_at(self, now: int) -> int:
        """Return when the plan that was begun at ``now`` is made: later where it waited for a copy."""
        return now

    def launched(self, end: int) -> int:
        """Learn when the iterations are over that were launched; return when, what is loaded included."""
        return end

    @property
    def wakes_at(self) -> int:
        """When a copy ends for which a request waits where nothing runs; ``NEVER`` for none."""
        return NEVER
