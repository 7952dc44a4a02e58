"""The measured executor: runs iterations on a device, over the memory's block tables, and times them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pagesim.allocators import Copy
from pagesim.costs import DecodeRun
from pagesim.device.live.batch import (
    Columns,
    DeviceBatch,
    Staging,
    table_width,
)
from pagesim.device.live.block_tables import AddressedManager, BlockTables
from pagesim.device.live.cached_attention import CachedAttention
from pagesim.device.live.clock import PartClock
from pagesim.device.live.model import Model
from pagesim.device.live.pools import KvPools
from pagesim.device.live.tokens import TokenIds
from pagesim.kvcache import PagedManager
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.observer import Observer
from pagesim.scheduling.request import EngineRequest
from pagesim.sim.clock import TICKS_PER_SECOND
from pagesim.sim.spans import ComputedTokens, Sample, Span, numbers_of

if TYPE_CHECKING:
    from pagesim.device.live.check import Checker
    from pagesim.device.live.graphs import DecodeGraphs

_TICKS_PER_NS = TICKS_PER_SECOND // 10**9


class Record(NamedTuple):
    """Times and contents of one iteration.

    Attributes:
        ticks: total ticks.
        prepare_s: seconds of the host's work between moving blocks and starting the model.
        move_s: seconds of swaps and copies.
        compute_s: seconds of the model, up to the sampled tokens.
        prompt_tokens: tokens computed for sequences with several new tokens.
        decode_sequences: sequences with one new token.
        decode_context: tokens that these sequences attend to.
    """

    ticks: int
    prepare_s: float
    move_s: float
    compute_s: float
    prompt_tokens: int
    decode_sequences: int
    decode_context: int


class Moves(NamedTuple):
    """The blocks that one iteration moves, as (from, to): to the host, back, and within the device."""

    out: Sequence[Copy]
    back: Sequence[Copy]
    copies: Sequence[Copy]


NOTHING = Record(0, 0.0, 0.0, 0.0, 0, 0, 0)


class MeasuredExecutor(Observer):
    """Runs what a scheduler plans on a device; see `Executor` for the contract. It observes beam forks.

    An iteration swaps blocks out and in, copies blocks on write, and computes all tokens of the running
    sequences that have slots but are not computed: whole prompts, chunks or single tokens. Of a batch it
    needs only the admitted and resumed requests. It reads everything else from memory, including the moved
    blocks, and checks their number against the batch.

    The clock runs from the plan to the sampled tokens on the host, including tables and launches.

    Args:
        scheduler: scheduler that has not planned yet, with memory whose blocks have numbers.
        model: model to run.
        pools: pools with as many blocks as the memory.
        tokens: token ids of the sequences.
        longest: tokens of the longest sequence.

    Attributes:
        records: one record per call of ``execute``.
        graphs: CUDA graphs of decode-only iterations; None if not captured.
        checker: checks iterations after they have run; None for no check.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        model: Model,
        pools: KvPools,
        tokens: TokenIds,
        *,
        longest: int,
    ) -> None:
        assert scheduler.memory.names_blocks, "blocks without numbers hold no tokens"
        self.scheduler = scheduler
        self.memory = cast(AddressedManager, scheduler.memory)
        self.model = model
        self.pools = pools
        self.tokens = tokens
        if isinstance(self.memory, PagedManager) and self.memory.tables is not None:
            self.memory.tables.notes_moves = True
        self.tables = BlockTables(self.memory, longest)
        self.longest = longest
        self.staging = Staging(pools.device)
        self.records: list[Record] = []
        self.graphs: DecodeGraphs | None = None
        self.checker: Checker | None = None
        self._clock = PartClock(pools.device)
        self._computed = ComputedTokens(scheduler)
        self._answers: dict[Sample, int] = {}  # names of generated answers
        # Without block sharing, the copies that beam forks will need.
        self._fork_copies: list[tuple[EngineRequest, list[Copy]]] = []

    def execute(self, batch: Batch) -> int:
        moves = self._take_moves(batch)
        if not (batch.tokens or any(moves)):
            self.records.append(NOTHING)
            return 0
        started = time.perf_counter_ns()
        begun = self._clock.mark()
        self._move(moves)
        moved = self._clock.mark()
        before = time.perf_counter()
        spans = self._spans(batch, moves)
        logits = inputs = None
        if spans:
            inputs = self.staging.put(self._columns(spans))
        prepared = time.perf_counter() - before
        computing = self._clock.mark()
        if inputs is not None:
            logits = self.compute(inputs)
            logits.argmax(dim=-1).cpu()  # an engine waits for the sampled tokens
        computed = self._clock.mark()
        if self.pools.device.type == "cuda":
            torch.cuda.synchronize(self.pools.device)
        ticks = max(1, time.perf_counter_ns() - started) * _TICKS_PER_NS
        decodes = inputs.decodes if inputs is not None else 0
        self.records.append(
            Record(
                ticks,
                prepared,
                self._clock.between(begun, moved),
                self._clock.between(computing, computed),
                batch.tokens - decodes,
                decodes,
                sum(inputs.contexts) if inputs is not None else 0,
            )
        )
        if self.checker is not None and logits is not None:
            self.checker.look(batch, spans, moves.copies, logits)
        return ticks

    def decode_run(self, sequences: int, context: int) -> DecodeRun | None:
        return None  # every iteration is carried out

    def compute(self, batch: DeviceBatch) -> Tensor:
        """Run the model over a batch; return the logits of each sequence, ``[S, vocab]``."""
        if self.graphs is not None and not batch.longest_query:
            logits = self.graphs.replay(batch)
            if logits is not None:
                return logits
        attend = CachedAttention(self.pools, batch)
        return self.model.forward(batch.tokens, batch.positions, batch.last, attend)

    def forked(self, request: EngineRequest, dropped: int, survivor: int) -> None:
        # All beams end together, so a beam's number is also its index.
        self.tokens.take_over(request, dropped, survivor, self.memory.length(request))
        self.tables.exchanged((request.row, dropped))
        if not self.memory.shares:
            blocks = (self.memory.blocks_of(request, place) for place in (survivor, dropped))
            self._fork_copies.append((request, list(zip(*blocks, strict=True))))

    def _take_moves(self, batch: Batch) -> Moves:
        """Return and clear the blocks that memory has moved and copied for a batch."""
        memory = self.memory
        moves = Moves((), (), ())
        if isinstance(memory, PagedManager) and memory.tables is not None:
            tables = memory.tables
            moves = Moves(tables.swaps_out, tables.swaps_in, tables.copies)
            tables.swaps_out, tables.swaps_in, tables.copies = [], [], []
        if not memory.shares:
            # A request that no longer decodes, such as a preempted one, copies nothing.
            copies = [copy for each, own in self._fork_copies if each.last_step >= 0 for copy in own]
            moves = moves._replace(copies=copies)
            self._fork_copies.clear()
        counts = (batch.blocks_out, batch.blocks_in, batch.blocks_copied)
        if tuple(map(len, moves)) != counts:
            raise RuntimeError(f"the batch moves {counts} blocks; memory has moved {tuple(map(len, moves))}")
        return moves

    def _move(self, moves: Moves) -> None:
        """Move blocks in the order of their allocation: swap-outs make room for swap-ins."""
        if moves.out:
            self.pools.swap_out(moves.out)
        if moves.back:
            self.pools.swap_in(moves.back)
        if moves.copies:
            self.pools.copy(moves.copies)

    def _spans(self, batch: Batch, moves: Moves) -> list[Span]:
        """Return the spans to compute, sequences with one new token first, and update the tables."""
        tables = self.tables
        if moves.copies:
            tables.all_exchanged()
        for request in batch.resumed:
            for number in numbers_of(request):
                tables.exchanged((request.row, number))
        for request in batch.prompts:
            for number in numbers_of(request):
                tables.exchanged((request.row, number))
                self._answers[request.row, number] = self.tokens.answer(request, number)
        spans = self._computed.spans(batch)
        tables.keep(self._computed.running)
        return spans

    def _columns(self, spans: list[Span]) -> Columns:
        """Return the tokens, slots and tables of these spans."""
        tables, size = self.tables, self.pools.block_size
        lengths = np.array([span.stop for span in spans], np.int64)
        new = lengths - np.array([span.start for span in spans], np.int64)
        rows = np.array([tables.row(*span[:3], span.stop) for span in spans], np.int64)
        decodes = int(np.searchsorted(new > 1, True))
        names = [np.array([self._answers[span.sample] for span in spans[:decodes]], np.int64)]
        if any(span.start < span.request.prompt for span in spans[:decodes]):
            # The last token of a chunked prefill, or a prompt of one token.
            names = [self._names(span) for span in spans[:decodes]]
        names += [self._names(span) for span in spans[decodes:]]
        positions = np.concatenate(
            [lengths[:decodes] - 1, *(np.arange(span.start, span.stop) for span in spans[decodes:])]
        )
        of = np.repeat(rows, new)
        blocks = tables.array[of, positions // size].astype(np.int64)
        width = table_width(-(-int(lengths.max()) // size))
        wide = np.zeros((len(rows), width), np.int32)
        shown = min(width, tables.array.shape[1])
        wide[:, :shown] = tables.array[rows, :shown]
        return Columns(
            self.tokens.ids(np.concatenate(names), positions),
            positions,
            blocks * size + positions % size,
            wide,
            lengths,
            new,
            decodes,
        )

    def _names(self, span: Span) -> npt.NDArray[np.int64]:
        return self.tokens.names(span.request, span.number, span.start, span.stop)
