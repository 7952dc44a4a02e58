"""What a cost model is asked: the ticks of one iteration, and of a run of decode iterations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable


class IterationShape(NamedTuple):
    """What an iteration computes and moves.

    Attributes:
        batched_tokens: tokens as the scheduler's limit counts them.
        tokens: tokens that go through the linear layers.
        context_tokens: over the running sequences, tokens whose KV exists once the iteration has run.
        decode_context: the part of it that decoding sequences read.
        query_key_pairs: over the prompts, pairs of a query and a key that it attends to.
        blocks_out: blocks moved from the device to the host.
        blocks_in: blocks moved from the host to the device.
        blocks_copied: blocks copied on the device.
        decoding: sequences that decode.
        sampled: tokens after which the next one is worked out: one of each sequence that gets a token,
            prompts that end in this iteration counted once, and drafts.
        launches: whether the model is run even if there is nothing to compute.
        drafts: tokens of decoding sequences that are drafts.
        computed_prompts: prompts, or chunks of one, that are computed; counted for a `ReadsSpans` cost model.
        reached: of ``decode_context`` what is within each of its spans; nothing where that is not known.
        reached_pairs: likewise of ``query_key_pairs``.
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
"""A shape, or what has its fields, too: the `Batch` of a scheduler."""


def step_shape(
    sequences: int,
    context: int,
    *,
    prompt: int = 0,
    history: int = 0,
    blocks_out: int = 0,
    blocks_in: int = 0,
) -> IterationShape:
    """Return a step in which sequences decode, a prompt is computed to its end, and blocks are swapped.

    Args:
        sequences: that decode.
        context: tokens that they hold together.
        prompt: tokens of the prompt that are computed, 0 for none.
        history: tokens of the prompt before these.
        blocks_out: moved from the device to the host.
        blocks_in: moved from the host to the device.
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
"""A stretch of decode iterations: (first, increment, steps). Step ``j < steps`` takes ``first + j·increment``
ticks. A plain tuple, since one is made at every decision, and one with names takes three times as long."""


UNBOUNDED = 1 << 40
"""More steps than any run takes: the model is linear as far as one can see."""


NOWHERE: Mapping[str, int] = MappingProxyType({})
"""For `CostModel.beyond`."""


class CostModel(Protocol):
    """Times are whole ticks, so a run of decode iterations adds up exactly to its iterations one by one."""

    @property
    def beyond(self) -> Mapping[str, int]:
        """By ``OPERATOR: axis``, the largest size asked for beyond what was measured; empty if none was."""

    def iteration(self, shape: IterationShape) -> int:
        """Return the ticks of one iteration; one that only swaps takes the transfer's time alone."""

    def decode(self, sequences: int, context: int) -> DecodeRun:
        """Return the run that starts with ``sequences`` decoding over ``context`` tokens in all.

        Every step each sequence's context is one token longer. The first step's ticks must be what
        ``iteration`` gives for the same shape; the run ends where the model stops being linear.
        """


class AttentionSpan(NamedTuple):
    """How far back layers look that do not look back on all tokens.

    Attributes:
        kind: ``window``, the last tokens; ``sparse``, as many, wherever they are; ``chunk``, those since the
            last multiple of so many.
        size: tokens.
    """

    kind: str
    size: int


SpanAhead = tuple[int, int, int]
"""What is within a span in decode iterations, as in `DecodeRun`: (tokens in the first, increment, steps)."""


@runtime_checkable
class ReadsSpans(CostModel, Protocol):
    """A cost model of layers that do not look back on all tokens.

    Everything is within the span in ``decode``, and of a shape that does not say what is.
    """

    @property
    def spans(self) -> tuple[AttentionSpan, ...] | None:
        """Of what spans a shape should tell; None where it need not say anything more."""

    def decode_reached(self, sequences: int, context: int, reached: Sequence[SpanAhead]) -> DecodeRun:
        """Return the run that `decode` returns, of sequences of which by span the tokens are known."""


@runtime_checkable
class Assuming(Protocol):
    """A cost model that rests on assumptions about the model."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What was assumed, or is not known, a sentence each."""


@runtime_checkable
class Itemised(Protocol):
    """A cost model that can say what an iteration's time consists of."""

    def parts(self, shape: IterationShape) -> dict[str, int]:
        """Return ticks by what they are for; but for rounding they sum to what ``iteration`` gives."""
