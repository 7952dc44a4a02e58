"""Pipeline parallelism: an engine's stages, each with some of the layers, and when batches pass them."""

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
    """Passes batches through pipeline stages, one after another.

    Each stage takes a share of the whole model's time in proportion to its layers, whatever else an iteration
    consists of. Handing a batch over to the next stage takes a transfer's time, during which both stages may
    compute other batches. Under asynchronous scheduling with S stages, the first stage waits for the tokens
    of the batch scheduled S batches earlier: they are its input.

    Source: vLLM 0.33.0, v1/worker/gpu/pp_utils.py and model_runner.py, 1207 to 1214.

    Args:
        layers: number of layers of each stage.
        waits_for_tokens: whether batches are scheduled asynchronously.
        link: the link between stages; None if the cost model does not price handing over.
        token_bytes: bytes that each GPU of a stage hands over per token.

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
        # When each of the last batches ends; 0 for one that sampled no token.
        self._ends: deque[int] = deque([0] * len(layers), len(layers))
        self._waits_for_tokens = waits_for_tokens
        self._link = link
        self._token_bytes = token_bytes

    def summary(self) -> list[dict[str, Any]]:
        """Return each stage's number of layers and the fraction of time in which it computed.

        The rest is pipeline bubbles. The time runs from the start of the first batch to the end of the last
        one; without any batch, the fractions are None.
        """
        span = self._free_at[-1] - self._begun_at
        return [
            {"layers": layers, "busy": busy / span if span > 0 and busy else None}
            for layers, busy in zip(self.layers, self._busy, strict=True)
        ]

    def run(self, batch: Batch, launched: int, ticks: int) -> tuple[int, int]:
        """Pass a batch through all stages; return when the first one starts and the last one ends.

        The time that it waits in between is stored in ``batch.waited``.

        Args:
            batch: the batch; an empty one skips all stages.
            launched: when it is handed to the first stage, in ticks.
            ticks: time that the whole model takes for it.
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
            share = (2 * ticks * before + whole) // (2 * whole) - computed  # the shares sum to ``ticks``
            computed += share
            arrived = end + hand_over if stage else end
            end = max(arrived, self._free_at[stage]) + share
            self._free_at[stage] = end
            self._busy[stage] += share
        self._ends.append(end if batch.sampled else 0)
        batch.waited = end - start - ticks
        return start, end
