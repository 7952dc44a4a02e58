"""Pipeline: the stages of an engine, each with some of the layers, and when batches pass through them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from pagesim.costs.transfers import transfer_ticks
from pagesim.hardware import Link
from pagesim.scheduling.batch import Batch
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Pipeline:
    """Lets batches pass through stages, one after another.

    A stage takes its layers' share of the time that the whole model takes, whatever else an iteration
    consists of. What a batch hands over to the next stage takes a transfer's time, during which both stages
    may compute other batches. Under asynchronous scheduling the first stage waits for the tokens of the batch
    that was scheduled so many batches ago as there are stages: those tokens are its input.

    Source: vLLM 0.33.0, v1/worker/gpu/pp_utils.py and model_runner.py, 1207 to 1214.

    Args:
        layers: of each stage.
        waits_for_tokens: whether batches are scheduled asynchronously.
        link: over which batches are handed over; None where a cost model prices no such thing.
        token_bytes: that each GPU of a stage hands over a token.

    Attributes:
        layers: see above.
    """

    __slots__ = (
        "_begun_at",
        "_busy",
        "_ends",
        "_free_at",
        "_link",
        "_token_bytes",
        "_waits_for_tokens",
        "layers",
    )

    def __init__(
        self,
        layers: Sequence[int],
        *,
        waits_for_tokens: bool,
        link: Link | None = None,
        token_bytes: float = 0.0,
    ) -> None:
        self.layers = tuple(layers)
        self._begun_at = -1
        self._busy = [0] * len(layers)
        self._free_at = [0] * len(layers)
        # When each of the last batches is over, and 0 where it gave no token.
        self._ends: deque[int] = deque([0] * len(layers), len(layers))
        self._waits_for_tokens = waits_for_tokens
        self._link = link
        self._token_bytes = token_bytes

    def summary(self) -> list[dict[str, Any]]:
        """Return of each stage its layers, and the share of the time in which it computed.

        The rest are bubbles. The time is from when the first batch begins until the last one is over; without
        one shares are None.
        """
        span = self._free_at[-1] - self._begun_at
        return [
            {"layers": layers, "busy": busy / span if span > 0 and busy else None}
            for layers, busy in zip(self.layers, self._busy, strict=True)
        ]

    def run(self, batch: Batch, launched: int, ticks: int) -> tuple[int, int]:
        """Let a batch pass through all stages; return when the first begins, and when the last is over.

        What it waited in between is noted with it.

        Args:
            batch: an empty one passes through none.
            launched: when it is handed to the first stage, in ticks.
            ticks: that the whole model takes.
        """
        if not batch.tokens:
            self._ends.append(0)
            return launched, launched
        start = max(launched, self._free_at[0], self._ends[0] if self._waits_for_tokens else 0)
        if self._begun_at < 0:
            self._begun_at = start
        hand_over = 0
        if self._link is not None:
            hand_over = transfer_ticks(self._link, round(self._token_bytes * batch.tokens))
        end, whole = start, sum(self.layers)
        before = computed = 0
        for stage, layers in enumerate(self.layers):
            before += layers
            share = (2 * ticks * before + whole) // (2 * whole) - computed  # all of them sum to ``ticks``
            computed += share
            arrived = end + hand_over if stage else end
            end = max(arrived, self._free_at[stage]) + share
            self._free_at[stage] = end
            self._busy[stage] += share
        self._ends.append(end if batch.sampled else 0)
        batch.waited = end - start - ticks
        return start, end
