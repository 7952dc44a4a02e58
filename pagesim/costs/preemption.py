"""What it costs to have KV again, by either way: so that a scheduler can take the cheaper one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pagesim.costs.base import CostModel, step_shape

LoadTime = Callable[[Sequence[int]], int]
"""Ticks in which so many blocks are loaded from each tier, that next to the device first."""


class PreemptionPrices:
    """Prices the two ways in which a sequence comes back and has its next token.

    A transfer delays all running requests, when it goes out and when it comes in; so does a prompt that is
    computed again. A price is the time by which iterations get longer, so that both are in one currency.

    Args:
        cost: of iterations.
        load_time: of a load from tiers, beside the iterations; None without a tier.
    """

    def __init__(self, cost: CostModel, load_time: LoadTime | None = None) -> None:
        self._cost = cost
        self._load_time = load_time

    def __call__(self, tokens: int, blocks: int, sequences: int, context: int) -> tuple[int, int]:
        """Return the ticks that swapping and that recomputation take.

        Args:
            tokens: length of the sequence.
            blocks: that it holds.
            sequences: that run beside it.
            context: tokens that these hold.
        """
        alone = self._ticks(sequences, context)
        swap_out = self._ticks(sequences, context, blocks_out=blocks) - alone
        swap_in = self._ticks(sequences + 1, context + tokens, blocks_in=blocks) - alone
        return swap_out + swap_in, self._ticks(sequences, context, prompt=tokens) - alone

    def returning(
        self, tokens: int, history: int, blocks: Sequence[int], sequences: int, context: int
    ) -> tuple[int, int]:
        """Return the ticks after which a prefix is there again that is loaded, and that is computed again.

        A load waits for the end of an iteration, and delays no other request. A prefix that is computed makes
        iterations longer by as much as its own tokens take.

        Args:
            tokens: of the prefix that the device has not.
            history: tokens before them.
            blocks: that a load copies from each tier, that next to the device first.
            sequences: that run beside it.
            context: tokens that these hold.
        """
        assert self._load_time is not None
        alone = self._ticks(sequences, context)
        computing = step_shape(sequences, context, prompt=tokens, history=history)
        return self._load_time(blocks) + alone, self._cost.iteration(computing) - alone

    def _ticks(self, sequences: int, context: int, **more: int) -> int:
        return self._cost.iteration(step_shape(sequences, context, **more))
