"""Options of `Trtllm`, under TensorRT-LLM's own names."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pagesim.errors import PagesimError
from pagesim.scheduling.options import MOST, SchedulerOptions
from pagesim.scheduling.trtllm.chunking import ChunkingPolicy

CapacityPolicy = Literal["GUARANTEED_NO_EVICT", "MAX_UTILIZATION"]


class TrtllmOptions(SchedulerOptions):
    """Options of TensorRT-LLM, whose blocks hold ``tokens_per_block`` and requests ``max_seq_len`` tokens."""

    capacity_scheduler_policy: CapacityPolicy = Field(
        "GUARANTEED_NO_EVICT",
        description="Start a request only if it can run to completion, or as soon as its prompt fits.",
    )
    max_batch_size: int = Field(2048, ge=1, le=MOST, description="Maximum number of started requests.")
    max_num_tokens: int = Field(8192, ge=1, le=MOST, description="Maximum number of tokens per iteration.")
    enable_chunked_prefill: bool = Field(False, description="Split prompts into chunks.")
    context_chunking_policy: ChunkingPolicy = Field(
        "FIRST_COME_FIRST_SERVED", description="Rule by which prompts share the tokens of an iteration."
    )
    disable_overlap_scheduler: bool = Field(
        False, description="Schedule an iteration only when the one before it has finished."
    )
    enable_block_reuse: bool = Field(False, description="Reuse blocks of other requests; not simulated.")
    max_new_tokens: int | None = Field(
        None,
        ge=1,
        le=MOST,
        description="Minimum number of output tokens that a request asks for; a stop token ends it earlier.",
    )


def check(options: TrtllmOptions) -> None:
    """Check that the options do not ask for anything that is not simulated.

    Raises:
        PagesimError: block reuse, fewer tokens per iteration than requests, or stop tokens known a step late.
    """
    if options.enable_block_reuse:
        raise PagesimError(
            "enable_block_reuse is true; under scheduler trtllm it must be false: which of the blocks "
            "that can be found TensorRT-LLM gives up first is not simulated"
        )
    if options.max_num_tokens < options.max_batch_size:
        raise PagesimError(
            f"max_num_tokens is {options.max_num_tokens}; it must be at least max_batch_size, "
            f"{options.max_batch_size}, so that every decoding request gets a token: lower max_batch_size"
        )
    if options.max_new_tokens is not None and not options.disable_overlap_scheduler:
        raise PagesimError(
            f"max_new_tokens is {options.max_new_tokens}; under scheduler trtllm it needs "
            "disable_overlap_scheduler: else an end by a stop token is known an iteration late, which is not "
            "simulated"
        )
