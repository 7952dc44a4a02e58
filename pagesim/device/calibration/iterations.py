"""Whole iterations, carried out by `pagesim run --device`'s executor on batches that are planned for it."""

from __future__ import annotations

import time
from statistics import median

import numpy as np
import torch

from pagesim.device.calibration.harness import Harness, NoRoom
from pagesim.device.calibration.points import KINDS
from pagesim.device.live.executor import MeasuredExecutor
from pagesim.device.live.graphs import DecodeGraphs
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

LAUNCHES = 15
"""Samples of the host's launching."""


class WholeIterations:
    """Runs batches on a harness.

    Args:
        harness: whose model and cache are used.
        model: the model's name, or the path of its config.
        steps: iterations that each batch decodes; their median is taken.
        seed: of the tokens.
    """

    def __init__(self, harness: Harness, *, model: str, steps: int, seed: int) -> None:
        self.harness = harness
        self.steps = steps
        self._model = model
        self._seed = seed
        self._warm = False
        self._graphs: DecodeGraphs | None = None

    def decode(self, batch: int) -> tuple[float, int]:
        """Return what an iteration takes in which so many sequences decode: seconds, tokens of context.

        Raises:
            NoRoom: the cache has too few blocks.
        """
        records = self._carried_out(batch).records
        whole = [each for each in records if each.decode_sequences == batch and not each.prompt_tokens]
        # The first comes with the last prompts, or after a pause.
        chosen = whole[1:] or whole
        if not chosen:
            raise NoRoom(f"{batch} sequences never decoded together")
        seconds = median(each.ticks for each in chosen) / TICKS_PER_SECOND
        return seconds, round(median(each.decode_context for each in chosen))

    def launch(self, kind: int) -> float:
        """Return the seconds in which a host launches an iteration's kernels, without waiting for them.

        Args:
            kind: place in ``KINDS``.
        """
        executor = self._carried_out(1)
        new = {"decode": [1], "prompt": [PROMPT], "mixed": [1, PROMPT]}[KINDS[kind]]
        batch = self.harness.batch(new, PROMPT)
        samples = []
        for _ in range(LAUNCHES):
            torch.cuda.synchronize()
            before = time.perf_counter()
            executor.compute(batch)
            samples.append(time.perf_counter() - before)
        torch.cuda.synchronize()
        return median(samples)

    def _carried_out(self, batch: int) -> MeasuredExecutor:
        """Serve a batch of requests that arrive together; return the executor that did it."""
        pools = self.harness.pools
        output = self.steps + 2
        needed = batch * -(-(PROMPT + output) // pools.block_size) + 1
        if needed > 0.98 * pools.num_blocks:
            raise NoRoom(f"{needed} blocks are needed and the cache has {pools.num_blocks}")
        trace = Trace(np.zeros(batch), np.full(batch, PROMPT), np.full(batch, output))
        system = checked(
            System,
            {
                "model": self._model,
                "num_blocks": pools.num_blocks,
                "cpu_blocks": 0,
                "block_size": pools.block_size,
                "cost": "affine:0.01,0,0",  # is never asked
            },
        )

        def equip(scheduler: Scheduler, sized: Capacity, served: Trace) -> MeasuredExecutor:
            tokens = Tokens(self.harness.model.spec.vocab, self._seed)
            executor = MeasuredExecutor(
                scheduler, self.harness.model, pools, tokens, longest=max(PROMPT + output, 2 * PROMPT)
            )
            executor.graphs = self._graphs_of()
            if not self._warm:
                warm_up(executor, most_sequences=256, most_tokens=2560)
                self._warm = True
            return executor

        return carry_out(system, trace, equip, steps="none")[1]

    def _graphs_of(self) -> DecodeGraphs | None:
        """Return the graphs, captured when they are first needed; None where there are none."""
        harness = self.harness
        if harness.cuda_graphs and self._graphs is None:
            self._graphs = DecodeGraphs(
                harness.model, harness.pools, longest=harness.longest, most=MOST_IN_GRAPHS
            )
        return self._graphs
