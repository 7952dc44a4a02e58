"""Benchmark cases of a model: its layers, its LM head, whole iterations, and launching iterations."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch

from pagesim.device.calibration.points import ITERATION, LAUNCHES
from pagesim.device.calibration.rank import TensorParallelRank
from pagesim.device.live import run_live
from pagesim.device.live.batch import Staging, columns_alike, table_width
from pagesim.device.live.cached_attention import CachedAttention
from pagesim.device.live.graphs import DecodeGraphs
from pagesim.device.live.model import Model
from pagesim.device.live.pools import KvPools
from pagesim.kernels.bench.inputs import DTYPES
from pagesim.kernels.bench.rows import Point
from pagesim.kernels.bench.session import Case, Prepare, Session
from pagesim.kernels.timing import Timing
from pagesim.setup.system import System, checked
from pagesim.workloads.trace import Trace

PROMPT = 16
"""Tokens of each prompt before decoding: few, so that prompts are cheap and decoding begins at once."""

APART_S = 1e4
"""Seconds between the batches of a live run, whose clock skips idle time."""

WATERMARK = 0.98
"""Largest used fraction of the cache; above it, the scheduler would admit fewer sequences."""

SAMPLES = 15
"""Samples of the host's launch time."""


class ModelCases:
    """Prepares benchmark points of a model, whose weights are created on first use.

    As in a live run, everything runs in inference mode, in which small ops take a fifth less time.

    Args:
        rank: share of the model on one GPU.
        name: name of the model, or path of its config.
        device: ``cpu`` or ``cuda``.
        batches: numbers of sequences of the whole iterations.
        steps: decode steps of each of these batches; their median is used.
        seed: seed of weights and tokens.
    """

    def __init__(
        self,
        rank: TensorParallelRank,
        *,
        name: str,
        device: str,
        batches: Sequence[int],
        steps: int,
        seed: int,
    ) -> None:
        self.rank = rank
        self.device = torch.device(device)
        self._name, self._batches, self._steps, self._seed = name, batches, steps, seed
        self._live: dict[int, pd.DataFrame] = {}

    def prepares(self) -> dict[str, Prepare]:
        """Return the function that prepares each op."""
        launches: dict[str, Prepare] = dict.fromkeys(LAUNCHES, self._launch)
        return {"layers": self._layers, "head": self._head, ITERATION: self._iteration, **launches}

    @cached_property
    def model(self) -> Model:
        """The model, with its weights on the device."""
        spec, dtype = self.rank.spec, DTYPES[self.rank.dtype]
        return Model(spec, dtype=dtype, device=self.device, longest=spec.max_model_len, seed=self._seed)

    def _layers(self, point: Point, session: Session) -> Case:
        """Return the case of the model's layers without attention."""
        model, spec, tokens = self.model, self.rank.spec, point["tokens"]
        ids = torch.randint(spec.vocab, (tokens,), device=self.device)
        positions = torch.arange(tokens, device=self.device) % spec.max_model_len
        # Stands for attention's output.
        read = session.random(tokens, spec.heads, spec.head_dim, dtype=model.dtype)
        return Case(
            [lambda: model.hidden(ids, positions, lambda *_: read)],
            bytes_moved=model.parameters * model.dtype.itemsize,
        )

    def _head(self, point: Point, session: Session) -> Case:
        """Return the case of the final norm, the LM head and greedy sampling."""
        model, sequences = self.model, point["batch"]
        x = session.random(sequences, self.rank.spec.hidden, dtype=model.dtype)
        last = torch.arange(sequences, device=self.device)
        return Case(
            [lambda: model.logits(x, last).argmax(dim=-1)],
            bytes_moved=model.head.numel() * model.dtype.itemsize,
        )

    def _iteration(self, point: Point, session: Session) -> Case:
        """Return the case of whole decode iterations of a live run."""

        def measure(budget_s: float) -> tuple[Timing, dict[str, Any]]:
            steps = self._live_steps(point)
            whole = steps[(steps.decode_sequences == point["batch"]) & (steps.prompt_tokens == 0)]
            # Drop the first, which follows the prompts or a pause.
            chosen = whole[1:] if len(whole) > 1 else whole
            context = round(chosen.decode_context.median())
            return _timing(chosen.step_s), {"decode_context": context}

        return Case([], measure=measure)

    def _live_steps(self, point: Point) -> pd.DataFrame:
        """Return the steps of a live run that serves all batches, far apart from each other."""
        turn = point.parameters.get("number", 0)
        if turn not in self._live:
            self.__dict__.pop("model", None)  # a live run makes its own
            block_size, output = point["block_size"], self._steps + 2
            needed = max(self._batches) * -(-(PROMPT + output) // block_size) + 1
            system = {
                "model": self._name,
                "num_blocks": int(needed / WATERMARK) + 2,
                "cpu_blocks": 0,
                "block_size": block_size,
                "kv_cache_dtype": "bf16" if self.rank.dtype == "bf16" else "fp16",
                "seed": self._seed,
                "cost": "affine:0.01,0,0",  # never used
            }
            arrivals = np.repeat(APART_S * np.arange(len(self._batches)), self._batches)
            prompts, outputs = (np.full(len(arrivals), each) for each in (PROMPT, output))
            served = run_live(
                checked(System, system),
                Trace(arrivals, prompts, outputs),
                device=self.device.type,
                cuda_graphs=self.rank.cuda_graphs,
            )
            assert served.steps is not None
            self._live[turn] = served.steps
        return self._live[turn]

    def _launch(self, point: Point, session: Session) -> Case:
        """Return the case of launching an iteration that decodes, computes a prompt, or does both."""
        new = {"decode": [1], "prompt": [PROMPT], "mixed": [1, PROMPT]}[point.op.removeprefix("launch-")]

        def measure(budget_s: float) -> tuple[Timing, dict[str, Any]]:
            launch = self._launching(new, point["block_size"])
            launch()
            seconds = []
            for _ in range(SAMPLES):
                torch.cuda.synchronize()
                before = time.perf_counter()
                launch()
                seconds.append(time.perf_counter() - before)
            torch.cuda.synchronize()
            return _timing(seconds), {}

        return Case([], measure=measure)

    def _launching(self, new: Sequence[int], block_size: int) -> Callable[[], Any]:
        """Return a function that launches an iteration without waiting, given each sequence's new tokens."""
        model, spec = self.model, self.rank.spec
        pools = KvPools(
            spec,
            num_blocks=1,
            host_blocks=0,
            block_size=block_size,
            dtype=model.dtype,
            device=self.device,
        )
        tables = np.zeros((len(new), table_width(-(-PROMPT // block_size))), np.int32)
        batch = Staging(self.device).put(columns_alike(new, PROMPT, tables))
        if self.rank.cuda_graphs and not batch.longest_query:
            graphs = DecodeGraphs(model, pools, longest=spec.max_model_len, most=1)
            return lambda: graphs.replay(batch)
        attend = CachedAttention(pools, batch)
        return lambda: model.forward(batch.tokens, batch.positions, batch.last, attend)


def _timing(seconds: Sequence[float] | pd.Series[float]) -> Timing:
    """Return the timing of one round of samples by the host's clock."""
    p20, median, p80 = np.percentile(seconds, (20, 50, 80)).tolist()
    return Timing(median, p20, p80, 0.0, len(seconds), "wall")
