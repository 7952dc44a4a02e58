"""Iterations of a simulated run, with what their times depend on, and sums over time windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pagesim.api import run
from pagesim.costs import AttentionSpan, Profiled
from pagesim.costs.attended import attended
from pagesim.errors import PagesimError
from pagesim.experiments.recorded.recording import Floats, Ints, RecordedRun
from pagesim.models import ModelSpec
from pagesim.results.result import Result
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.observer import FastForward, Observer
from pagesim.setup.engine_config import EngineConfig
from pagesim.setup.system import System
from pagesim.sim.clock import to_tick_column

SIZES = tuple(2**power for power in range(16))
"""Tokens per iteration at which the curve over them may bend."""

AFFINE = ("iterations", "sequences", "context", "prompt_tokens", "prompts")
PAIRS = "pairs"
RISES = tuple(f"up to {size} tokens" for size in SIZES[1:])

REGRESSORS = (*AFFINE, PAIRS, *RISES)
"""What an iteration's time may depend on: the iteration itself; sequences that get a token; tokens of context
read by decoding sequences; prompt tokens computed, and whether there are any; query-key pairs of prompts; and
the share of each interval of ``SIZES`` that the iteration's tokens fill, whichever requests they are of."""


FEWEST = 20
"""Minimum number of requests in a load for a fit."""


class Reads(NamedTuple):
    """Share of attention over all layers that falls to the layers with the same attention span.

    Attributes:
        context: share of a token of context, by bytes read.
        pair: share of a query-key pair, by operations.
    """

    context: float
    pair: float


def reads_of(model: ModelSpec, kv_dtype: str, tp: int) -> dict[AttentionSpan | None, Reads]:
    """Return the share of the layers with each attention span; None stands for full attention.

    Logs cannot separate the layers. With these shares, one time per token of context covers all of them.
    """
    found = attended(model, kv_dtype, tp)
    bytes_, flops = (max(1, sum(each[at] for each in found.values())) for at in (0, 2))
    return {span: Reads(each.bytes / bytes_, each.prompt_flops / flops) for span, each in found.items()}


class IterationLog(Observer):
    """Records a run's iterations.

    Args:
        reads: share of each kind of layers; spans are in the same order as in an `IterationShape`.
    """

    def __init__(self, reads: Sequence[Reads]) -> None:
        self._reads = reads
        self._planned: list[tuple[float, ...]] = []
        self._forwards: list[tuple[int, ...]] = []

    def planned(self, batch: Batch, now: int, start: int, ticks: int) -> None:
        if not ticks:
            return
        prompt = batch.tokens - batch.decoding - batch.drafts
        of_all, *within = self._reads
        context = of_all.context * batch.decode_context
        pairs = of_all.pair * batch.query_key_pairs
        for span, each in enumerate(within):
            context += each.context * (batch.reached[span] if batch.reached else batch.decode_context)
            pairs += each.pair * (batch.reached_pairs[span] if batch.reached_pairs else batch.query_key_pairs)
        read = batch.sampled, context, prompt, prompt > 0, pairs
        self._planned.append((start + ticks, *read, batch.tokens))

    def fast_forwarded(self, run: FastForward) -> None:
        if not run.steps:
            return
        self._forwards.append((run.start, run.steps, run.first, run.increment, run.sequences, run.context))

    def windows(self) -> Windows:
        """Return everything recorded, ready to be summed over windows."""
        ends: list[Ints] = [np.array([each[0] for each in self._planned], np.int64)]
        rows = [np.array([each[1:] for each in self._planned], np.float64).reshape(-1, 6)]
        for start, steps, first, increment, sequences, context in self._forwards:
            step = np.arange(steps, dtype=np.int64)
            ends.append(start + np.cumsum(first + increment * step))
            alike = np.zeros((steps, 6))
            alike[:, 0] = alike[:, 5] = sequences
            alike[:, 1] = context + sequences * step
            rows.append(alike)
        end, row = np.concatenate(ends), np.concatenate(rows)
        order = np.argsort(end, kind="stable")
        features = np.column_stack([np.ones(len(end)), row[:, :-1], _rises(row[:, -1])])[order]
        return Windows(
            end[order],
            np.vstack([np.zeros(features.shape[1]), np.cumsum(features, axis=0)]),
        )


def _rises(tokens: Floats) -> Floats:
    """Return the filled share of each interval of ``SIZES``, ``[I, …]``; the last interval has no end."""
    low, high = np.array(SIZES[:-1]), np.array(SIZES[1:])
    share = (tokens[:, None] - low) / (high - low)
    share[:, :-1] = np.minimum(share[:, :-1], 1)
    filled: Floats = np.maximum(share, 0)
    return filled


class Windows(NamedTuple):
    """Sums over the iterations that end in a window.

    Attributes:
        ends: ends of the iterations in ticks, ascending, ``[I]``.
        sums: cumulative sums of ``REGRESSORS`` before each iteration, ``[I + 1, len(REGRESSORS)]``.
    """

    ends: Ints
    sums: Floats

    def ends_in(self) -> Ints:
        """Return how many iterations' tokens end in each interval of ``SIZES``, ``[len(RISES)]``."""
        first = REGRESSORS.index(RISES[0])
        filled = np.diff(self.sums[:, first : first + len(RISES)], axis=0) > 1e-9
        found: Ints = filled.sum(0) - np.append(filled[:, 1:].sum(0), 0)
        return found

    def between(self, after: Ints, until: Ints) -> Floats:
        """Return the sums over iterations that end after one instant and up to another, ``[W, …]``."""
        found: Floats = (
            self.sums[np.searchsorted(self.ends, until, "right")]
            - self.sums[np.searchsorted(self.ends, after, "right")]
        )
        return found


class Simulated(NamedTuple):
    """A load as simulated.

    Attributes:
        result: result of the simulation.
        windows: sums over its iterations.
    """

    result: Result
    windows: Windows

    def at(self, event: str) -> Ints:
        """Return each request's ``arrival``, ``first_scheduled``, ``first_token`` or ``finish`` in ticks.

        ``[N]``; -1 where it never happened.
        """
        seconds = self.result.request_columns[f"{event}_s"]
        return np.where(np.isfinite(seconds), to_tick_column(np.nan_to_num(seconds)), -1)


def served_as(load: RecordedRun, system: System) -> System:
    """Return the system with a load's options, without a front end and with an irrelevant cost model."""
    own = {**load.server, "cost": "affine:1e-3,0,0", "frontend": "0", "max_concurrency": load.max_concurrency}
    return system.model_copy(update=own)


def check(load: RecordedRun) -> None:
    """Reject a load that nothing can be fitted to.

    Raises:
        PagesimError: only means of the load are known, it has too few requests, or no request received its
            tokens one after another.
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


def replay(load: RecordedRun, system: System, cost: Profiled) -> Simulated:
    """Replay a load on a system with these costs.

    Args:
        load: requests, sent at their recorded times or, in a closed loop, when an earlier one finishes.
        system: the serving system, apart from the load's own options; its own cost model is ignored.
        cost: cost model of the iterations.

    Raises:
        PagesimError: the load and the system do not match.
    """
    config = EngineConfig(system)
    reads = reads_of(config.model, config.kv_dtype, system.tensor_parallel_size)
    seen, own = IterationLog(tuple(reads.values())), served_as(load, system)
    if len(reads) > 1:
        # What lies within a span is known for planned iterations only.
        own = own.model_copy(update={"fast_forward": False})
    result = run(own, load.trace(), steps="none", cost=cost, observers=[seen])
    return Simulated(result, seen.windows())
