"""What a cost model is asked: the ticks of one iteration, and of a run of decode iterations."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class IterationShape(NamedTuple):
    """What an iteration computes and moves.

    Attributes:
        batched_tokens: tokens as the scheduler's limit counts them.
        tokens: tokens that go through the linear layers.
        context_tokens: over the running sequences, tokens whose KV exists once the iteration has run.
        decode_context: the part of it that decoding sequences read.
        query_key_pairs: over the prompts, pairs of a query and a key that it attends to.
        blocks_swapped: blocks moved between device and host.
        blocks_copied: blocks copied on the device.
        launches: whether the model is run even if there is nothing to compute.
    """

    batched_tokens: int
    tokens: int
    context_tokens: int
    decode_context: int
    query_key_pairs: int
    blocks_swapped: int
    blocks_copied: int
    launches: bool = False


class DecodeRun(NamedTuple):
    """A stretch of decode iterations: step ``j < steps`` takes ``first + j·increment`` ticks."""

    first: int
    increment: int
    steps: int


UNBOUNDED = 1 << 40
"""More steps than any run takes: the model is linear as far as one can see."""


class CostModel(Protocol):
    """Times are whole ticks, so a run of decode iterations adds up exactly to its iterations one by one."""

    def iteration(self, shape: IterationShape) -> int:
        """Return the ticks of one iteration; one that only swaps takes the transfer's time alone."""

    def decode(self, sequences: int, context: int) -> DecodeRun:
        """Return the run that starts with ``sequences`` decoding over ``context`` tokens in all.

        Every step each sequence's context is one token longer. The first step's ticks must be what
        ``iteration`` gives for the same shape; the run ends where the model stops being linear.
        """
