"""Interface of cost models: the ticks of one iteration and of a run of decode iterations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable


class IterationShape(NamedTuple):
    """What an iteration computes and moves.

    Attributes:
        batched_tokens: tokens counted against the scheduler's limit.
        tokens: tokens that go through the linear layers.
        context_tokens: tokens of all running sequences whose KV exists once the iteration has run.
        decode_context: the part of ``context_tokens`` that decoding sequences read.
        query_key_pairs: query-key pairs in the prompts' attention, summed over the prompts.
        blocks_out: blocks moved from the device to the host.
        blocks_in: blocks moved from the host to the device.
        blocks_copied: blocks copied on the device.
        decoding: sequences that decode.
        sampled: positions at which the LM head runs: one per sequence that gets a token (a prompt that
            ends in this iteration counts once), plus draft tokens.
        launches: whether the model is run even if there is nothing to compute.
        drafts: draft tokens of the decoding sequences.
        computed_prompts: prompts or prompt chunks computed; counted only for a `ReadsSpans` cost model.
        reached: tokens of ``decode_context`` within each of the model's spans; empty if unknown.
        reached_pairs: pairs of ``query_key_pairs`` within each span; empty if unknown.
    """

    batched_tokens: int
    tokens: int
    context_tokens: int
    decode_context: int
    query_key_pairs: int
    blocks_out: int
    blocks_in: int
    blocks_copied: int
    decoding: int
    sampled: int
    launches: bool = False
    drafts: int = 0
    computed_prompts: int = 0
    reached: tuple[int, ...] = ()
    reached_pairs: tuple[int, ...] = ()


AnyShape = IterationShape | Any
"""A shape, or anything with the same fields, such as a scheduler's `Batch`."""


def step_shape(
    sequences: int,
    context: int,
    *,
    prompt: int = 0,
    history: int = 0,
    blocks_out: int = 0,
    blocks_in: int = 0,
) -> IterationShape:
    """Return a step that decodes sequences, computes a prompt to its end, and swaps blocks.

    Args:
        sequences: decoding sequences.
        context: total context of the decoding sequences, in tokens.
        prompt: prompt tokens computed in this step; 0 for no prompt.
        history: prompt tokens that precede these.
        blocks_out: blocks moved from the device to the host.
        blocks_in: blocks moved from the host to the device.
    """
    return IterationShape(
        batched_tokens=sequences + prompt,
        tokens=sequences + prompt,
        context_tokens=context + history + prompt,
        decode_context=context,
        query_key_pairs=prompt * history + prompt * (prompt + 1) // 2,
        blocks_out=blocks_out,
        blocks_in=blocks_in,
        blocks_copied=0,
        decoding=sequences,
        sampled=sequences + (prompt > 0),
    )


DecodeRun = tuple[int, int, int]
"""A run of decode iterations: (first, increment, steps). Step ``j < steps`` takes ``first + j·increment``
ticks. It is a plain tuple because one is made at every decision; a named tuple takes three times as long."""


UNBOUNDED = 1 << 40
"""More steps than any run has, for a cost model that never stops being linear."""


NOWHERE: Mapping[str, int] = MappingProxyType({})
"""The empty value of `CostModel.beyond`: nothing was extrapolated."""


class CostModel(Protocol):
    """Iteration times in whole ticks, so a run of decode iterations is exactly the sum of its iterations."""

    @property
    def beyond(self) -> Mapping[str, int]:
        """The largest size requested beyond the measured range, by ``OPERATOR: axis``; empty if none was."""

    def iteration(self, shape: IterationShape) -> int:
        """Return the ticks of one iteration; if it only swaps blocks, those of the transfer alone."""

    def decode(self, sequences: int, context: int) -> DecodeRun:
        """Return the run that starts with ``sequences`` decoding over ``context`` tokens in total.

        Each sequence's context grows by one token per step. The first step must take the ticks that
        ``iteration`` returns for the same shape. The run ends where the model stops being linear.
        """


class AttentionSpan(NamedTuple):
    """The tokens that a layer without full attention attends to.

    Attributes:
        kind: ``window``, the last ``size`` tokens; ``sparse``, ``size`` tokens anywhere in the context;
            ``chunk``, those since the last multiple of ``size``.
        size: number of tokens.
    """

    kind: str
    size: int


SpanAhead = tuple[int, int, int]
"""Tokens within a span over decode iterations, as in `DecodeRun`: (tokens in the first, increment, steps)."""


@runtime_checkable
class ReadsSpans(CostModel, Protocol):
    """A cost model of layers that do not attend to all tokens.

    ``decode``, and any shape without ``reached``, assume that all tokens are within the span.
    """

    @property
    def spans(self) -> tuple[AttentionSpan, ...] | None:
        """The spans for which a shape should give ``reached``; None where it need not give more."""

    def decode_reached(self, sequences: int, context: int, reached: Sequence[SpanAhead]) -> DecodeRun:
        """Return the run that `decode` returns, given the tokens within each span."""


@runtime_checkable
class Assuming(Protocol):
    """A cost model that rests on assumptions about the model."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What was assumed or is unknown, one sentence each."""


@runtime_checkable
class Itemised(Protocol):
    """A cost model that can break an iteration's time down into parts."""

    def parts(self, shape: IterationShape) -> dict[str, int]:
        """Return the ticks of each part by name; up to rounding, they sum to what ``iteration`` returns."""
