"""Prices of restoring KV by swapping or by recomputation, so that a scheduler can choose the cheaper one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pagesim.costs.base import CostModel, step_shape

LoadTime = Callable[[Sequence[int]], int]
"""Returns the ticks to load blocks, given their number in each tier, the one closest to the device first."""


class PreemptionPrices:
    """Prices of the two ways to resume a preempted sequence up to its next token.

    A transfer delays all running requests on its way out and in, as does recomputing a prompt. A price is
    the time by which iterations get longer, which makes both comparable.

    Args:
        cost: cost model of iterations.
        load_time: time to load from tiers, in parallel to iterations; None without tiers.
    """

    def __init__(self, cost: CostModel, load_time: LoadTime | None = None) -> None:
        self._cost = cost
        self._load_time = load_time

    def __call__(self, tokens: int, blocks: int, sequences: int, context: int) -> tuple[int, int]:
        """Return the prices of swapping and of recomputation, in ticks.

        Args:
            tokens: length of the sequence.
            blocks: blocks that the sequence holds.
            sequences: other running sequences.
            context: total context of these other sequences, in tokens.
        """
        alone = self._ticks(sequences, context)
        swap_out = self._ticks(sequences, context, blocks_out=blocks) - alone
        swap_in = self._ticks(sequences + 1, context + tokens, blocks_in=blocks) - alone
        return swap_out + swap_in, self._ticks(sequences, context, prompt=tokens) - alone

    def returning(
        self, tokens: int, history: int, blocks: Sequence[int], sequences: int, context: int
    ) -> tuple[int, int]:
        """Return the ticks to restore a prefix by loading it, and by recomputing it.

        A load waits for the end of an iteration and delays no other request. Recomputing a prefix makes
        iterations longer by the time of its tokens.

        Args:
            tokens: tokens of the prefix that are missing on the device.
            history: tokens before them.
            blocks: blocks to load from each tier, starting with the one closest to the device.
            sequences: other running sequences.
            context: total context of these other sequences, in tokens.
        """
        assert self._load_time is not None
        alone = self._ticks(sequences, context)
        computing = step_shape(sequences, context, prompt=tokens, history=history)
        return self._load_time(blocks) + alone, self._cost.iteration(computing) - alone

    def _ticks(self, sequences: int, context: int, **more: int) -> int:
        return self._cost.iteration(step_shape(sequences, context, **more))
