"""What a preemption costs, by either way of undoing it: so that a scheduler can take the cheaper one."""

from __future__ import annotations

from pagesim.costs.base import CostModel, step_shape


class PreemptionPrices:
    """Prices the two ways in which a sequence comes back and has its next token.

    A transfer delays all running requests, when it goes out and when it comes in; so does a prompt that is
    computed again. A price is the time by which iterations get longer, so that both are in one currency.

    Args:
        cost: of iterations.
    """

    def __init__(self, cost: CostModel) -> None:
        self._cost = cost

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

    def _ticks(self, sequences: int, context: int, **more: int) -> int:
        return self._cost.iteration(step_shape(sequences, context, **more))
