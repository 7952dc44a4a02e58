"""IterationLog of a simulated run, each with what its time depends on, and their sums over windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pagesim.api import run
from pagesim.costs import AttentionSpan, CostModel, Profiled
from pagesim.costs.attended import attended
from pagesim.errors import PagesimError
from pagesim.experiments.recorded.recording import Floats, Ints, RecordedRun
from pagesim.models import ModelSpec
from pagesim.results.result import Result
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.observer import FastForward, Observer
from pagesim.setup.engine_config import EngineConfig
from pagesim.setup.system import System
from pagesim.sim.clock import TICKS_PER_SECOND, to_tick_column
from pagesim.sim.executor import shape_of

SIZES = tuple(2**power for power in range(16))
"""Tokens in an iteration at which a curve over them may bend."""

AFFINE = ("iterations", "sequences", "context", "prompt_tokens", "prompts")
PAIRS = "pairs"
RISES = tuple(f"up to {size} tokens" for size in SIZES[1:])

REGRESSORS = (*AFFINE, PAIRS, *RISES)
"""What an iteration's time may depend on: itself, sequences that get a token, tokens of context that decoding
sequences read, tokens of prompts that are computed, and whether there are any; pairs of a query and a key
in prompts; and of each interval of ``SIZES`` the share that its tokens fill, of whichever requests."""


FEWEST = 20
"""Requests below which nothing is fitted to a load."""


class Reads(NamedTuple):
    """Share of a token of context, and of a query and a key, that layers which look back so far take.

    Attributes:
        context: by the bytes that they read.
        pair: by the operations.
    """

    context: float
    pair: float


def reads_of(model: ModelSpec, kv_dtype: str, tp: int) -> dict[AttentionSpan | None, Reads]:
    """Return what layers read by how far back they look; None stands for those that look back on all.

    Logs do not tell layers apart: by these shares one time a token of context is that of each kind of layers.
    """
    found = attended(model, kv_dtype, tp)
    bytes_, flops = (max(1, sum(each[at] for each in found.values())) for at in (0, 2))
    return {span: Reads(each.bytes / bytes_, each.prompt_flops / flops) for span, each in found.items()}


class IterationLog(Observer):
    """Observes a run's iterations.

    Args:
        kernels: gives the seconds of each that are known beforehand; None if nothing is.
        reads: what layers read; those of spans are in the order in which a shape has them.
    """

    def __init__(self, kernels: CostModel | None, reads: Sequence[Reads]) -> None:
        self._kernels = kernels
        self._reads = reads
        self._planned: list[tuple[float, ...]] = []
        self._forwards: list[tuple[int, ...]] = []

    def planned(self, batch: Batch, now: int, start: int, ticks: int) -> None:
        if not ticks:
            return
        known = 0 if self._kernels is None else self._kernels.iteration(shape_of(batch))
        prompt = batch.tokens - batch.decoding - batch.drafts
        of_all, *within = self._reads
        context = of_all.context * batch.decode_context
        pairs = of_all.pair * batch.query_key_pairs
        for span, each in enumerate(within):
            context += each.context * (batch.reached[span] if batch.reached else batch.decode_context)
            pairs += each.pair * (batch.reached_pairs[span] if batch.reached_pairs else batch.query_key_pairs)
        read = batch.sampled, context, prompt, prompt > 0, pairs
        self._planned.append((start + ticks, *read, batch.tokens, known))

    def fast_forwarded(self, run: FastForward) -> None:
        if not run.steps:
            return
        known = (0, 0)
        if self._kernels is not None:
            known = self._kernels.decode(run.sequences, run.context)[:2]
        self._forwards.append(
            (run.start, run.steps, run.first, run.increment, run.sequences, run.context, *known)
        )

    def windows(self) -> Windows:
        """Return everything that was observed, ready for sums."""
        planned = np.array(self._planned, np.float64).reshape(-1, 8)
        ends: list[Ints] = [np.array([each[0] for each in self._planned], np.int64)]
        rows, known = [planned[:, 1:7]], [planned[:, 7]]
        for start, steps, first, increment, sequences, context, first_known, more in self._forwards:
            step = np.arange(steps, dtype=np.int64)
            ends.append(start + np.cumsum(first + increment * step))
            alike = np.zeros((steps, 6))
            alike[:, 0] = alike[:, 5] = sequences
            alike[:, 1] = context + sequences * step
            rows.append(alike)
            known.append((first_known + more * step).astype(np.float64))
        end, row = np.concatenate(ends), np.concatenate(rows)
        order = np.argsort(end, kind="stable")
        features = np.column_stack(
            [np.ones(len(end)), row[:, :-1], _rises(row[:, -1]), np.concatenate(known) / TICKS_PER_SECOND]
        )[order]
        return Windows(
            end[order],
            np.vstack([np.zeros(features.shape[1]), np.cumsum(features, axis=0)]),
        )


def _rises(tokens: Floats) -> Floats:
    """Return which share of each interval of ``SIZES`` is filled, ``[I, …]``; the last has no end."""
    low, high = np.array(SIZES[:-1]), np.array(SIZES[1:])
    share = (tokens[:, None] - low) / (high - low)
    share[:, :-1] = np.minimum(share[:, :-1], 1)
    filled: Floats = np.maximum(share, 0)
    return filled


class Windows(NamedTuple):
    """Sums over the iterations that end in a window.

    Attributes:
        ends: of iterations, rising, in ticks, ``[I]``.
        sums: of ``REGRESSORS``, and of the seconds that are known beforehand, before each,
            ``[I + 1, len(REGRESSORS) + 1]``.
    """

    ends: Ints
    sums: Floats

    def ends_in(self) -> Ints:
        """Return of how many iterations the tokens are in each interval of ``SIZES``, ``[len(RISES)]``."""
        first = REGRESSORS.index(RISES[0])
        filled = np.diff(self.sums[:, first : first + len(RISES)], axis=0) > 1e-9
        found: Ints = filled.sum(0) - np.append(filled[:, 1:].sum(0), 0)
        return found

    def between(self, after: Ints, until: Ints) -> Floats:
        """Return the sums over iterations that end after an instant and until another one, ``[W, …]``."""
        found: Floats = (
            self.sums[np.searchsorted(self.ends, until, "right")]
            - self.sums[np.searchsorted(self.ends, after, "right")]
        )
        return found


class Simulated(NamedTuple):
    """A load as the simulator answers it.

    Attributes:
        result: of the simulation.
        windows: sums over its iterations.
    """

    result: Result
    windows: Windows

    def at(self, event: str) -> Ints:
        """Return the ticks of each request's ``arrival``, ``first_scheduled``, ``first_token`` or ``finish``.

        ``[N]``; -1 where it never happened.
        """
        seconds = self.result.request_columns[f"{event}_s"]
        return np.where(np.isfinite(seconds), to_tick_column(np.nan_to_num(seconds)), -1)


def served_as(load: RecordedRun, system: System) -> System:
    """Return a system with a load's options, a cost that does not matter, and without a front end."""
    own = {**load.server, "cost": "affine:1e-3,0,0", "frontend": "0", "max_concurrency": load.max_concurrency}
    return system.model_copy(update=own)


def check(load: RecordedRun) -> None:
    """Refuse a load to which nothing can be fitted.

    Raises:
        PagesimError: it is known by means alone, has too few requests, or none whose tokens came one after
            the other.
    """
    if load.known:
        raise PagesimError(f"{load.name}: is known by its means; a fit needs the times of single requests")
    if len(load) < FEWEST:
        raise PagesimError(
            f"{load.name}: has {len(load)} requests that were answered; at least {FEWEST} are needed, send "
            "more"
        )
    if not (load.e2e_s > load.ttft_s)[load.output_tokens > 1].any():
        raise PagesimError(
            f"{load.name}: every request has its first and its last token at the same instant; a log of "
            "streamed tokens is needed (a client that streams, with the times of single tokens kept)"
        )


def replay(load: RecordedRun, system: System, cost: Profiled, kernels: CostModel | None = None) -> Simulated:
    """Replay a load on a system, at these costs.

    Args:
        load: the requests, sent when they were, or in a closed loop when one before them is over.
        system: what serves, but for the load's own options; its own cost does not count.
        cost: what iterations take.
        kernels: what is known of that beforehand.

    Raises:
        PagesimError: the load and the system do not go together.
    """
    config = EngineConfig(system)
    reads = reads_of(config.model, config.kv_dtype, system.tensor_parallel_size)
    seen, own = IterationLog(kernels, tuple(reads.values())), served_as(load, system)
    if len(reads) > 1:
        # What is within a span is known of planned iterations alone.
        own = own.model_copy(update={"fast_forward": False})
    result = run(own, load.trace(), steps="none", cost=cost, observers=[seen])
    return Simulated(result, seen.windows())
