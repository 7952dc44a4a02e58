"""Cases of a model itself for the bench: its layers, its head, whole iterations, and launching these."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch

from pagesim.device.calibration.iterations import WholeIterations
from pagesim.device.calibration.points import ITERATION, LAUNCHES
from pagesim.device.calibration.rank import Rank
from pagesim.device.live.model import Model
from pagesim.kernels.bench.inputs import DTYPES
from pagesim.kernels.bench.rows import Point
from pagesim.kernels.bench.session import Case, Prepare, Session
from pagesim.kernels.timing import Timing

SAMPLES = 15
"""Samples of the host's launching."""


class ModelCases:
    """Makes points of a model ready; its weights and its cache are made when they are first needed.

    The model and what it calls run in inference mode, as in a live run, in which small ops take a fifth less.

    Args:
        rank: whose layers.
        name: of the model, or the path of its config.
        device: ``cpu`` or ``cuda``.
        steps: iterations that are carried out for each whole-iteration point.
        most: sequences of the largest of these.
        seed: of weights and tokens.
    """

    def __init__(
        self, rank: Rank, *, name: str, device: torch.device, steps: int, most: int, seed: int
    ) -> None:
        self.rank = rank
        self.device = device
        self._name, self._steps, self._most, self._seed = name, steps, most, seed
        self._iterations: WholeIterations | None = None

    def prepares(self) -> dict[str, Prepare]:
        """Return what makes each op ready."""
        launches: dict[str, Prepare] = dict.fromkeys(LAUNCHES, self._launch)
        return {"layers": self._layers, "head": self._head, ITERATION: self._iteration, **launches}

    @cached_property
    def model(self) -> Model:
        """The model, with its weights on the device."""
        spec, dtype = self.rank.spec, DTYPES[self.rank.dtype]
        return Model(spec, dtype=dtype, device=self.device, longest=spec.max_model_len, seed=self._seed)

    def _layers(self, point: Point, session: Session) -> Case:
        """Return the model's layers with nothing in attention's place."""
        model, spec, tokens = self.model, self.rank.spec, point["tokens"]
        ids = torch.randint(spec.vocab, (tokens,), device=self.device)
        positions = torch.arange(tokens, device=self.device) % spec.max_model_len
        # What attention would have read.
        read = session.random(tokens, spec.heads, spec.head_dim, dtype=model.dtype)
        return Case(
            [lambda: model.hidden(ids, positions, lambda *_: read)],
            bytes_moved=model.parameters * model.dtype.itemsize,
        )

    def _head(self, point: Point, session: Session) -> Case:
        """Return the last norm, the LM head and the choice of the likeliest token."""
        model, sequences = self.model, point["batch"]
        x = session.random(sequences, self.rank.spec.hidden, dtype=model.dtype)
        last = torch.arange(sequences, device=self.device)
        return Case(
            [lambda: model.logits(x, last).argmax(dim=-1)],
            bytes_moved=model.head.numel() * model.dtype.itemsize,
        )

    def _iteration(self, point: Point, session: Session) -> Case:
        """Return whole iterations that decode."""

        def measure(budget_s: float) -> tuple[Timing, dict[str, Any]]:
            seconds, context = self._whole(point).decode(point["batch"])
            return _timing(seconds), {"decode_context": context}

        return Case([], measure=measure)

    def _launch(self, point: Point, session: Session) -> Case:
        """Return an iteration's launching."""
        kind = point.op.removeprefix("launch-")

        def measure(budget_s: float) -> tuple[Timing, dict[str, Any]]:
            launch = self._whole(point).launching(kind)
            seconds = []
            for _ in range(SAMPLES):
                torch.cuda.synchronize()
                before = time.perf_counter()
                launch()
                seconds.append(time.perf_counter() - before)
            torch.cuda.synchronize()
            return _timing(seconds), {}

        return Case([], measure=measure)

    def _whole(self, point: Point) -> WholeIterations:
        if self._iterations is None:
            self._iterations = WholeIterations(
                self.model,
                name=self._name,
                block_size=point["block_size"],
                most=self._most,
                cuda_graphs=self.rank.cuda_graphs,
                steps=self._steps,
                seed=self._seed,
            )
        return self._iterations


def _timing(seconds: Sequence[float]) -> Timing:
    """Return a timing of samples by the host's clock, of one round."""
    p20, median, p80 = np.percentile(seconds, (20, 50, 80)).tolist()
    return Timing(median, p20, p80, 0.0, len(seconds), "wall")
