"""The roofline of layers that look back on some tokens only, or keep a state."""

from __future__ import annotations

from collections.abc import Sequence

from pagesim.costs.attended import Attended
from pagesim.costs.base import UNBOUNDED, AnyShape, AttentionSpan, DecodeRun, SpanAhead
from pagesim.sim.clock import to_ticks

STATE_FLOPS = 6
"""Operations for a token and an element of a state: it decays, takes up the token and is read, a
multiplication and an addition each. Kernels that go through a prompt in chunks do more of them."""


class MixedLayers:
    """Ticks of attention within each span, and of states.

    Decoding reads what is within the span or computes with it, whichever takes longer; in prompts
    attention is bound by operations. A sequence's states are read and written once an iteration, and each
    token of a prompt is computed with.

    Args:
        layers: by span.
        states: bytes and numbers of a sequence's.
        kv: bytes a second, of the cache.
        hbm: bytes a second, of states.
        flops: operations a second of a GPU, in decoding and with states.
        prompts: operations a second of a GPU, in prompts' attention.
        tp: GPUs.

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
        """Return the ticks of an iteration that computes anything, the sum of its `parts`."""
        ticks = 0
        for a_token, read in zip(self._tokens, self._read(shape), strict=True):
            ticks += a_token * read
        if shape.query_key_pairs:
            for pair_s, pairs in zip(self._pairs_s, self._pairs(shape), strict=True):
                ticks += to_ticks(pair_s * pairs)
        return ticks + self._of_states(shape) if self._keeps_states else ticks

    def parts(self, shape: AnyShape) -> dict[str, int]:
        """Return the ticks of an iteration that computes anything by what they are for."""
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
        """Return the run of these layers where everything is within the span."""
        a_token = sum(self._tokens)
        return self._state * sequences + a_token * context, a_token * sequences, UNBOUNDED

    def decode_reached(self, sequences: int, reached: Sequence[SpanAhead]) -> DecodeRun:
        """Return the run of these layers where so much is within the span."""
        first, increment, steps = self._state * sequences, 0, UNBOUNDED
        for ticks, (tokens, growth, holds) in zip(self._tokens, reached, strict=True):
            first += ticks * tokens
            increment += ticks * growth
            steps = min(steps, holds)
        return first, increment, steps

    def _read(self, shape: AnyShape) -> Sequence[int]:
        """Return by span the tokens that decoding sequences read."""
        return shape.reached or (shape.decode_context,) * len(self.spans)

    def _pairs(self, shape: AnyShape) -> Sequence[int]:
        """Return by span the pairs of prompts."""
        return shape.reached_pairs or (shape.query_key_pairs,) * len(self.spans)

    def _of_states(self, shape: AnyShape) -> int:
        prompt = shape.tokens - shape.decoding - shape.drafts
        return self._state * (shape.decoding + shape.computed_prompts) + to_ticks(self._state_s * prompt)
