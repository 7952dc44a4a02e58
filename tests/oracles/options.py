"""Options: what a manifest of golden logs says of one, as the drivers take it.

The names are those of pagesim's options, with which the manifests are written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Options:
    """What every driver takes; vLLM's own default where a manifest says nothing."""

    vllm_version: str
    cost: str
    num_blocks: int
    max_model_len: int
    max_num_batched_tokens: int
    max_num_seqs: int = 256
    cpu_blocks: int = 0
    block_size: int = 16


@dataclass(frozen=True, kw_only=True)
class OptionsV0(Options):
    """Of the first engine, 0.1.7 to 0.2.7."""

    preemption: str | None = None
    """``recompute`` or ``swap`` for every victim; None as vLLM has it, by how many run."""


@dataclass(frozen=True, kw_only=True)
class OptionsV1(Options):
    """Of the engine V1, 0.11.2 to 0.33.0."""

    enable_prefix_caching: bool  # on or off by default, by release: a manifest says it
    async_scheduling: bool  # the same
    enable_chunked_prefill: bool = True
    watermark: float = 0.0
    long_prefill_token_threshold: int = 0
    scheduling_policy: str = "fcfs"
    speculative_method: str | None = None
    speculative_tokens: int = 0
    acceptance: float = 0.0


ENGINES: dict[str, type[Options]] = {"v0": OptionsV0, "v1": OptionsV1}
"""The drivers, and the options of each."""


def options_of(engine: str, given: dict[str, Any]) -> Any:
    """Return the options of a log.

    Raises:
        TypeError: the driver does not know one of them, or lacks one.
    """
    return ENGINES[engine](**given)
