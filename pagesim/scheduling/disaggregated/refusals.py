"""Configurations for which connectors between prefillers and decoders are not modelled."""

from __future__ import annotations

from pagesim.errors import PagesimError
from pagesim.kvcache import BlockManager
from pagesim.scheduling.vllm_v1_options import VllmV1Options


def check_options(options: VllmV1Options) -> None:
    """Reject options under which the connector's rules are not modelled.

    Raises:
        PagesimError: there are such options; the message says which.
    """
    if options.vllm_version != "0.33.0":
        raise PagesimError(
            f"vllm_version is {options.vllm_version}; prefill apart from decode follows the connector of "
            "vLLM 0.33.0, so it must be 0.33.0"
        )
    if options.scheduling_policy != "fcfs":
        raise PagesimError(
            f"scheduling_policy is {options.scheduling_policy}; prefill apart from decode serves first what "
            "came first, so it must be fcfs"
        )
    if options.ranks > 1:
        raise PagesimError(
            f"data_parallel_size is {options.ranks}; prefill apart from decode is of engines of their own: "
            "leave it out"
        )
    if options.offloads:
        raise PagesimError(
            f"{options.tiers_asked}; prefill apart from decode is without a "
            "tier beside the device: leave it out"
        )
    if (speculation := options.speculation) is not None:
        raise PagesimError(
            f"speculative_tokens is {speculation.tokens}; prefill apart from decode is without drafts: leave "
            "it out"
        )


def check_memory(memory: BlockManager) -> None:
    """Reject memory for hybrid models, whose layers differ in what they keep.

    Raises:
        PagesimError: the memory is hybrid.
    """
    if memory.is_hybrid:
        raise PagesimError(
            f"the model has {len(memory.groups)} KV groups or layers that do not keep all tokens; prefill "
            "apart from decode is for models whose layers keep every token alike"
        )
