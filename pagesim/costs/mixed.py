"""The roofline of layers without full attention, or with a recurrent state."""

from __future__ import annotations

from collections.abc import Sequence

from pagesim.costs.attended import Attended
from pagesim.costs.base import UNBOUNDED, AnyShape, AttentionSpan, DecodeRun, SpanAhead
from pagesim.sim.clock import to_ticks

STATE_FLOPS = 6
"""Operations per token and state element: decay, update and read, each with a multiplication and an addition.
Kernels that process a prompt in chunks need more."""


class MixedLayers:
    """Ticks of attention within each span, and of states.

    Decoding takes the longer of reading the tokens within the span and of computing with them; prompt
    attention is compute-bound. A sequence's states are read and written once per iteration, and updated
    with each prompt token.

    Args:
        layers: attention per token by span.
        states: bytes and elements of a sequence's states on each GPU.
        kv: bandwidth for the KV cache in bytes/s.
        hbm: bandwidth for states in bytes/s.
        flops: rate of a GPU in decoding and for states, in FLOP/s.
        prompts: rate of a GPU in prompt attention, in FLOP/s.
        tp: GPUs over which the model is divided.

    Attributes:
        spans: see `ReadsSpans`.
    """

    def __init__(
        self,
        layers: dict[AttentionSpan, Attended],
        states: tuple[int, float],
        *,
        kv: float,
        hbm: float,
        flops: float,
        prompts: float,
        tp: int,
    ) -> None:
        self.spans = tuple(layers)
        # Whole ticks, so that a run of decode steps adds up exactly.
        self._tokens = [
            max(1, to_ticks(max(each.bytes / kv, each.flops / tp / flops))) for each in layers.values()
        ]
        self._pairs_s = [each.prompt_flops / tp / prompts for each in layers.values()]
        self._state = to_ticks(2 * states[0] / hbm)
        self._state_s = STATE_FLOPS * states[1] / flops
        self._keeps_states = states[0] > 0

    def iteration(self, shape: AnyShape) -> int:
        """Return the ticks of an iteration that computes something, the sum of its `parts`."""
        ticks = 0
        for a_token, read in zip(self._tokens, self._read(shape), strict=True):
            ticks += a_token * read
        if shape.query_key_pairs:
            for pair_s, pairs in zip(self._pairs_s, self._pairs(shape), strict=True):
                ticks += to_ticks(pair_s * pairs)
        return ticks + self._of_states(shape) if self._keeps_states else ticks

    def parts(self, shape: AnyShape) -> dict[str, int]:
        """Return the ticks of an iteration that computes something, by part."""
        read, pairs = self._read(shape), self._pairs(shape)
        found: dict[str, int] = {}
        for number, span in enumerate(self.spans):
            name = f"{span.kind} attention"
            ticks = self._tokens[number] * read[number] + to_ticks(self._pairs_s[number] * pairs[number])
            found[name] = found.get(name, 0) + ticks
        if self._keeps_states:
            found["states"] = self._of_states(shape)
        return found

    def decode(self, sequences: int, context: int) -> DecodeRun:
        """Return the decode run of these layers if all tokens are within every span."""
        a_token = sum(self._tokens)
        return self._state * sequences + a_token * context, a_token * sequences, UNBOUNDED

    def decode_reached(self, sequences: int, reached: Sequence[SpanAhead]) -> DecodeRun:
        """Return the decode run of these layers, given the tokens within each span."""
        first, increment, steps = self._state * sequences, 0, UNBOUNDED
        for ticks, (tokens, growth, holds) in zip(self._tokens, reached, strict=True):
            first += ticks * tokens
            increment += ticks * growth
            steps = min(steps, holds)
        return first, increment, steps

    def _read(self, shape: AnyShape) -> Sequence[int]:
        """Return the tokens that decoding sequences read, by span."""
        return shape.reached or (shape.decode_context,) * len(self.spans)

    def _pairs(self, shape: AnyShape) -> Sequence[int]:
        """Return the prompts' query-key pairs, by span."""
        return shape.reached_pairs or (shape.query_key_pairs,) * len(self.spans)

    def _of_states(self, shape: AnyShape) -> int:
        prompt = shape.tokens - shape.decoding - shape.drafts
        return self._state * (shape.decoding + shape.computed_prompts) + to_ticks(self._state_s * prompt)
