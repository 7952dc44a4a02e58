"""Whole iterations, carried out by `pagesim run --device`'s executor on batches that are planned for it."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from pagesim.device.live.batch import Staging, columns_alike, table_width
from pagesim.device.live.executor import MeasuredExecutor
from pagesim.device.live.graphs import DecodeGraphs
from pagesim.device.live.model import Model
from pagesim.device.live.pools import KvPools
from pagesim.device.live.run import carry_out
from pagesim.device.live.tokens import Tokens
from pagesim.device.live.warmup import warm_up
from pagesim.scheduling.core import Scheduler
from pagesim.setup.system import System, checked
from pagesim.sim.clock import TICKS_PER_SECOND
from pagesim.sizing import Capacity
from pagesim.workloads.trace import Trace

PROMPT = 16
"""Tokens of the prompts before decoding; enough that decoding begins at once, few enough to be cheap."""

MOST_IN_GRAPHS = 256
"""Sequences at most in a graph, the default of a live run."""

WATERMARK = 0.98
"""Of the cache as much may be used at most, or the scheduler would admit fewer sequences."""


class WholeIterations:
    """Runs batches of a model over a cache that has room for the largest.

    Args:
        model: with its weights on the device.
        name: of the model, or the path of its config.
        block_size: of the cache.
        most: sequences of the largest batch.
        cuda_graphs: whether iterations that only decode are CUDA graphs.
        steps: iterations that each batch decodes.
        seed: of the tokens.
    """

    def __init__(
        self,
        model: Model,
        *,
        name: str,
        block_size: int,
        most: int,
        cuda_graphs: bool,
        steps: int,
        seed: int,
    ) -> None:
        self.model = model
        self.steps = steps
        self._name = name
        self._seed = seed
        self._warm = False
        needed = most * -(-(PROMPT + steps + 2) // block_size) + 1
        self.pools = KvPools(
            model.spec,
            num_blocks=int(needed / WATERMARK) + 2,
            host_blocks=0,
            block_size=block_size,
            dtype=model.dtype,
            device=model.device,
        )
        for cache in self.pools.caches:  # zeros would be faster
            cache.key_cache.normal_()
            cache.value_cache.normal_()
        self._graphs: DecodeGraphs | None = None
        if cuda_graphs:
            longest = model.spec.max_model_len
            self._graphs = DecodeGraphs(model, self.pools, longest=longest, most=MOST_IN_GRAPHS)

    def decode(self, batch: int) -> tuple[list[float], int]:
        """Return what iterations take in which so many sequences decode: seconds each, tokens of context."""
        records = self._carried_out(batch).records
        whole = [each for each in records if each.decode_sequences == batch and not each.prompt_tokens]
        # The first comes with the last prompts, or after a pause.
        chosen = whole[1:] or whole
        context = round(median(each.decode_context for each in chosen))
        return [each.ticks / TICKS_PER_SECOND for each in chosen], context

    def launching(self, kind: str) -> Callable[[], Any]:
        """Return what launches an iteration's kernels and does not wait for them.

        Args:
            kind: ``decode``, ``prompt`` or ``mixed``.
        """
        executor = self._carried_out(1)
        new = {"decode": [1], "prompt": [PROMPT], "mixed": [1, PROMPT]}[kind]
        width = table_width(-(-PROMPT // self.pools.block_size))
        columns = columns_alike(new, PROMPT, np.zeros((len(new), width), np.int32))
        batch = Staging(self.model.device).put(columns)
        return lambda: executor.compute(batch)

    def _carried_out(self, batch: int) -> MeasuredExecutor:
        """Serve a batch of requests that arrive together; return the executor that did it."""
        pools = self.pools
        output = self.steps + 2
        trace = Trace(np.zeros(batch), np.full(batch, PROMPT), np.full(batch, output))
        system = checked(
            System,
            {
                "model": self._name,
                "num_blocks": pools.num_blocks,
                "cpu_blocks": 0,
                "block_size": pools.block_size,
                "cost": "affine:0.01,0,0",  # is never asked
            },
        )

        def equip(scheduler: Scheduler, sized: Capacity, served: Trace) -> MeasuredExecutor:
            tokens = Tokens(self.model.spec.vocab, self._seed)
            executor = MeasuredExecutor(
                scheduler, self.model, pools, tokens, longest=max(PROMPT + output, 2 * PROMPT)
            )
            executor.graphs = self._graphs
            if not self._warm:
                warm_up(executor, most_sequences=256, most_tokens=2560)
                self._warm = True
            return executor

        return carry_out(system, trace, equip, steps="none")[1]
