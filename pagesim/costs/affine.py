"""The affine cost model: a constant plus costs per token, per context token and per swapped block."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pagesim.costs.base import NOWHERE, UNBOUNDED, AnyShape, DecodeRun
from pagesim.errors import PagesimError
from pagesim.setup.compiled import mypyc_attr
from pagesim.sim.clock import TICKS_PER_SECOND, to_ticks


@mypyc_attr(allow_interpreted_subclasses=True)
class Affine:
    """Seconds = ``step_s`` + ``token_s``·batched tokens + ``context_s``·context + ``block_s``·swapped blocks.

    Each coefficient is rounded to a whole picosecond.

    Raises:
        PagesimError: a coefficient is not from 0 to 1000, or an iteration would take no time.
    """

    def __init__(self, step_s: float, token_s: float, context_s: float, block_s: float = 0.0) -> None:
        for name, value in (("s", step_s), ("s/token", token_s), ("s/context token", context_s)):
            _check(name, value)
        _check("s/swapped block", block_s)
        if to_ticks(step_s) + to_ticks(token_s) <= 0:
            raise PagesimError(
                f"cost affine:{step_s:g},{token_s:g},…: an iteration must take at least "
                f"{1 / TICKS_PER_SECOND:g} s; raise the first or the second number"
            )
        self._step = to_ticks(step_s)
        self._token = to_ticks(token_s)
        self._context = to_ticks(context_s)
        self._block = to_ticks(block_s)

    @property
    def beyond(self) -> Mapping[str, int]:
        return NOWHERE

    def iteration(self, shape: AnyShape) -> int:
        swaps = self._block and self._block * (shape.blocks_out + shape.blocks_in)
        if not (shape.tokens or shape.launches):
            return swaps
        return self._step + self._token * shape.batched_tokens + self._context * shape.context_tokens + swaps

    def parts(self, shape: AnyShape) -> dict[str, int]:
        computes = bool(shape.tokens or shape.launches)
        return {
            "step": self._step * computes,
            "tokens": self._token * shape.batched_tokens * computes,
            "context": self._context * shape.context_tokens * computes,
            "swaps": self._block * (shape.blocks_out + shape.blocks_in),
        }

    def decode(self, sequences: int, context: int) -> DecodeRun:
        first = self._step + self._token * sequences + self._context * context
        return first, self._context * sequences, UNBOUNDED


def _check(name: str, value: float) -> None:
    if not (math.isfinite(value) and 0 <= value <= 1e3):
        raise PagesimError(f"cost affine: the coefficient in {name} is {value}; it must be from 0 to 1000")
