"""The blocks that a trace's prompts request, without a scheduler."""

from __future__ import annotations

import gc
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pagesim.errors import PagesimError
from pagesim.eviction import Future
from pagesim.models import ModelSpec
from pagesim.scheduling.content import Contents
from pagesim.sizing.planning import host_copies
from pagesim.workloads.trace import FloatColumn, Trace

PAGE = 4096
"""Bytes to a multiple of which vLLM rounds up a chunk of its tier."""


@dataclass(frozen=True)
class PromptBlocks:
    """The blocks of a trace's prompts, in order of arrival; equal prefixes have equal blocks.

    Attributes:
        requests: full blocks of each prompt, in token order.
        arrival_s: arrival time of each prompt. Later turns of a session arrive as if answers took no time: at
            the session's arrival plus its client's think time so far.
        prompt_tokens: tokens of each prompt.
        tokens: tokens per block.
        priority: priority of each request; None if the trace has none.
    """

    requests: list[list[Hashable]]
    arrival_s: list[float]
    prompt_tokens: list[int]
    tokens: int
    priority: list[int] | None = None

    @cached_property
    def future(self) -> Future:
        """The sequence of block requests."""
        with _without_collection():
            return Future(self.requests)

    @cached_property
    def depth(self) -> list[int]:
        """Number of blocks before each block in its prompt, by the block's number in `future`."""
        found = [0] * self.future.distinct
        for blocks in self.future.blocks:
            for place, block in enumerate(blocks):
                found[block] = place
        return found


def prompt_blocks(trace: Trace, tokens: int | None = None) -> PromptBlocks:
    """Divide a trace's prompts into blocks.

    A last block that a prompt does not fill can never hit, as in every real cache; it is left out.

    Args:
        trace: trace whose prompts share content as `Contents` says.
        tokens: tokens per block; if omitted, those of a block of ``hash_ids`` (``hash_block_size``).

    Raises:
        PagesimError: the trace is empty, or ``tokens`` is below 1.
    """
    if not len(trace):
        raise PagesimError("the trace has no requests; a hit rate needs at least one")
    if tokens is None:
        tokens = trace.hash_block_size
    if tokens < 1:
        raise PagesimError(f"block_size is {tokens}; it must be at least 1")
    arrival_s = _due(trace)
    order = np.argsort(arrival_s, kind="stable")
    prompts = trace.prompt_tokens[order].tolist()
    contents = Contents(trace, np.arange(len(trace)), tokens)
    requests: list[list[Hashable]] = []
    with _without_collection():
        for row, prompt in zip(order.tolist(), prompts, strict=True):
            blocks: list[Hashable] = []
            for name, first, end in contents.of(row).named(0, prompt):
                blocks += [(name, place) for place in range(first // tokens, end // tokens)]
            requests.append(blocks)
    priority = None if trace.priority is None else trace.priority[order].tolist()
    return PromptBlocks(requests, arrival_s[order].tolist(), prompts, tokens, priority)


@contextmanager
def _without_collection() -> Iterator[None]:
    """Disable garbage collection, as blocks have no cycles and each pass would visit all of them."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _due(trace: Trace) -> FloatColumn:
    """Return the earliest arrival of each request, in seconds: ``[requests]``."""
    if trace.session_id is None or trace.think_s is None:
        return trace.arrival_s
    due = trace.arrival_s.copy()
    thought: dict[int, float] = {}
    for row, session in enumerate(trace.session_id.tolist()):
        thought[session] = thought[session] + trace.think_s[row] if session in thought else 0.0
        due[row] += thought[session]
    return due


def block_bytes(model: ModelSpec, tokens: int, *, kv_dtype: str = "fp16", tp: int = 1) -> int:
    """Return the bytes of a tier's block of ``tokens`` tokens, over all GPUs that hold different data."""
    held = model.kv_bytes_per_token(kv_dtype, tp) * host_copies(model.cache_layers, tp) * tokens
    return -(-held // PAGE) * PAGE


def capacities_around(future: Future, block: int) -> list[int]:
    """Return capacities in blocks, each about twice the last, from far below the working set to all content.

    Args:
        future: block requests of the prompts.
        block: bytes per block; each capacity is the number of blocks that fit in a power of two of MiB.
    """
    least, most = max(1, future.working_set // 64), future.distinct
    found = [1 << power for power in range(20, 63) if least <= (1 << power) // block < 2 * most]
    return sorted({size // block for size in found})
