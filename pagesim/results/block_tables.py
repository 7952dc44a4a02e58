"""Block tables: a replay's batches at given instants, in the form that attention kernels receive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from pagesim.accounting.request_log import RequestLog
from pagesim.api import as_trace
from pagesim.errors import PagesimError
from pagesim.kvcache import ContiguousManager, NumberedPrefixManager, PagedManager
from pagesim.results.replay import NotReplayed, replayed, server_of
from pagesim.results.result import Result
from pagesim.scheduling.arrivals import NEVER
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.observer import Observer
from pagesim.setup.prepare import PreparedSystem, prepare
from pagesim.setup.system import System, checked
from pagesim.sim.clock import TICKS_PER_SECOND, to_ticks
from pagesim.sim.spans import ComputedTokens, Span
from pagesim.workloads.trace import Trace

if TYPE_CHECKING:
    import pandas as pd


Ints = npt.NDArray[np.int32]
Slots = npt.NDArray[np.int64]

NO_BLOCK = -1
"""Padding of a block table beyond the blocks of a sequence."""

SingleTabled = PagedManager | NumberedPrefixManager | ContiguousManager


@dataclass(frozen=True, slots=True)
class KernelBatch:
    """The batch of one iteration: ``S`` sequences with ``T`` new tokens, those with a single one first.

    Attributes:
        iteration: number of the iteration.
        clock_s: when it was scheduled, in seconds.
        block_size: tokens per block.
        num_blocks: blocks of the KV cache.
        block_tables: int32 ``[S, W]``, physical blocks in token order, then ``NO_BLOCK``.
        seq_lens: int32 ``[S]``, tokens of each sequence, including the new ones.
        query_lens: int32 ``[S]``, new tokens of each sequence.
        slot_mapping: int64 ``[T]``, slots of the new tokens' KV: block × block size + offset in the block.
        shared_prefix_lens: int32 ``[S]``, leading tokens in blocks shared with another sequence.
    """

    iteration: int
    clock_s: float
    block_size: int
    num_blocks: int
    block_tables: Ints
    seq_lens: Ints
    query_lens: Ints
    slot_mapping: Slots
    shared_prefix_lens: Ints

    @property
    def decodes(self) -> int:
        """Number of sequences with one new token."""
        return int((self.query_lens == 1).sum())


def kernel_batches(
    trace: Trace | pd.DataFrame | str | PathLike[str],
    policy: str = "vllm-v1",
    *,
    at: Sequence[float],
    **options: Any,
) -> list[KernelBatch]:
    """Replay a trace and return the first batch with new tokens at or after each instant.

    Args:
        trace: trace as accepted by `pagesim.simulate`.
        policy: name of one of `POLICIES`.
        at: instants in seconds, ascending; a batch that represents several is returned once.
        **options: fields of `System`.

    Raises:
        PagesimError: an option or the trace is invalid, or the policy's blocks have no numbers.
    """
    setting = prepare(checked(System, {"policy": policy, **options}), as_trace(trace))
    try:
        return _replay(setting, setting.new_log(), [to_ticks(instant) for instant in at])
    except NotReplayed as why:
        raise PagesimError(str(why)) from None


def batches_of(result: Result, count: int) -> list[KernelBatch]:
    """Replay a stored run and return its batches at ``count`` instants, evenly spaced up to its last token.

    An instant's batch is the first one with new tokens at or after it. A batch that represents several
    instants is returned once.

    Args:
        result: result as returned by `pagesim.load`.
        count: number of instants, at least 1.

    Raises:
        NotReplayed: the run cannot be replayed, or has no single table of numbered blocks per sequence.
    """
    finished = result.request_columns["finish_s"]
    end = round(float(np.nanmax(finished, initial=0.0)) * TICKS_PER_SECOND)
    instants = [end * number // count for number in range(count)]
    return replayed(result, lambda setting, log: _replay(setting, log, instants))


def _replay(setting: PreparedSystem, log: RequestLog, instants: Sequence[int]) -> list[KernelBatch]:
    observer = _Batches(instants)
    server = server_of(setting, log, observer, tables=True)
    memory = server.scheduler.memory
    if not isinstance(memory, SingleTabled) or not memory.names_blocks:
        raise NotReplayed(
            f"policy {setting.config.system.policy} has no single table of numbered blocks for a sequence"
        )
    server.replay()
    return observer.taken


class _Batches(Observer):
    """Collects the first batch with new tokens at or after each instant, observing every iteration."""

    def __init__(self, instants: Sequence[int]) -> None:
        self.instants = list(instants)
        self.taken: list[KernelBatch] = []
        self._iterations = 0

    def begun(self, scheduler: Scheduler) -> None:
        self.memory = cast(SingleTabled, scheduler.memory)
        self.computed = ComputedTokens(scheduler)

    def next_look(self) -> int:
        return 0 if self.instants else NEVER

    def planned(self, batch: Batch, now: int, start: int, ticks: int) -> None:
        if not self.instants:
            return
        spans = self.computed.spans(batch)
        if spans and now >= self.instants[0]:
            self.instants = [each for each in self.instants if each > now]
            self.taken.append(self._batch(spans, now))
        self._iterations += 1

    def _batch(self, spans: Sequence[Span], now: int) -> KernelBatch:
        size = self.memory.block_size
        held = [-(-span.stop // size) for span in spans]
        tables = np.full((len(spans), max(held)), NO_BLOCK, np.int32)
        for row, (span, blocks) in enumerate(zip(spans, held, strict=True)):
            tables[row, :blocks] = self.memory.blocks_of(span.request, span.place)[:blocks]
        rows = np.repeat(np.arange(len(spans)), [span.stop - span.start for span in spans])
        positions = np.concatenate([np.arange(span.start, span.stop) for span in spans])
        slots = tables[rows, positions // size].astype(np.int64) * size + positions % size
        lengths = np.array([span.stop for span in spans], np.int32)
        return KernelBatch(
            self._iterations,
            now / TICKS_PER_SECOND,
            size,
            self.memory.num_blocks,
            tables,
            lengths,
            np.array([span.stop - span.start for span in spans], np.int32),
            slots,
            np.minimum(_shared_blocks(tables) * size, lengths).astype(np.int32),
        )


def _shared_blocks(tables: Ints) -> Ints:
    """Return the number of leading blocks of each table that also occur in another table, ``[S]``."""
    named = np.bincount(tables[tables != NO_BLOCK])
    alone = np.ones((len(tables), tables.shape[1] + 1), bool)  # a last column ends every run
    alone[:, :-1] = (tables == NO_BLOCK) | (named[tables] < 2)
    leading: Ints = alone.argmax(axis=1).astype(np.int32)
    return leading
