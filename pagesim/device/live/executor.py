"""The measured executor: carries iterations out, over the allocator's own block tables, and times them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pagesim.costs import DecodeRun
from pagesim.device.live.attention import CachedAttention, Kind
from pagesim.device.live.batch import Batch, Columns, Piece, Staging, table_width
from pagesim.device.live.clock import PartClock
from pagesim.device.live.model import Model
from pagesim.device.live.pools import KvPools
from pagesim.device.live.tables import BlockTables
from pagesim.device.live.tokens import Tokens
from pagesim.scheduling import Group, Plan, Preemptive, Scheduler
from pagesim.sim.clock import TICKS_PER_SECOND

if TYPE_CHECKING:
    from pagesim.device.live.check import Checker
    from pagesim.device.live.graphs import DecodeGraphs

_TICKS_PER_NS = TICKS_PER_SECOND // 10**9


class Record(NamedTuple):
    """What one iteration took, and what it consisted of.

    Attributes:
        ticks: the whole of it.
        prepare_s: until the model was started, the host's work between moving and computing.
        move_s: swaps and copies.
        compute_s: the model, up to the sampled tokens.
        prompt_tokens: computed for sequences with several new tokens.
        decode_sequences: with one new token.
        decode_context: tokens that these attend to.
    """

    ticks: int
    prepare_s: float
    move_s: float
    compute_s: float
    prompt_tokens: int
    decode_sequences: int
    decode_context: int


NOTHING = Record(0, 0.0, 0.0, 0.0, 0, 0, 0)


class MeasuredExecutor:
    """Carries out what a scheduler plans; see `Executor` for the contract.

    An iteration moves swapped blocks out and in, copies blocks that are written, and computes whatever the
    sequences that run have room for beyond what was computed before: whole prompts, chunks of them, single
    tokens. So it needs no more of a plan than who was admitted and which blocks moved; the rest it reads
    from the allocator, and it makes sure that this is what the plan counts.

    The clock runs from the plan to the sampled tokens on the host: making tables, launching, computing.

    Args:
        scheduler: whose memory is read; it has not planned yet.
        model: what is computed.
        pools: of as many blocks as the memory.
        tokens: what sequences consist of.
        longest: tokens of the longest sequence.
        attention: how decoding sequences read the cache.

    Attributes:
        records: one for each call of ``execute``.
        graphs: for iterations that only decode, if they are captured.
        checker: looks at iterations between two of them, if anybody does.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        model: Model,
        pools: KvPools,
        tokens: Tokens,
        *,
        longest: int,
        attention: Kind = "paged",
    ) -> None:
        self.scheduler = scheduler
        self.model = model
        self.pools = pools
        self.tokens = tokens
        self.tables = BlockTables(scheduler.memory, longest)
        self.longest = longest
        self.attention: Kind = attention
        self.staging = Staging(pools.device)
        self.records: list[Record] = []
        self.graphs: DecodeGraphs | None = None
        self.checker: Checker | None = None
        self._clock = PartClock(pools.device)
        self._held: dict[int, int] = {}  # by sequence: tokens that were computed
        self._answers: dict[int, int] = {}  # by sequence: the name of what it generates
        self._groups: dict[int, Group] = {}  # by sequence: of those that ran last
        self._take_overs: list[tuple[int, int]] = []
        if isinstance(scheduler, Preemptive):  # which know beams
            scheduler.take_overs = self._take_overs

    def execute(self, plan: Plan) -> int:
        if not (plan.tokens or plan.swaps_out or plan.swaps_in or plan.copies):
            self.records.append(NOTHING)
            return 0
        started = time.perf_counter_ns()
        begun = self._clock.mark()
        self._move(plan)
        moved = self._clock.mark()
        before = time.perf_counter()
        pieces = self._pieces(plan)
        logits = batch = None
        if pieces:
            batch = self.staging.put(self._columns(pieces))
        prepared = time.perf_counter() - before
        computing = self._clock.mark()
        if batch is not None:
            logits = self.compute(batch)
            logits.argmax(dim=-1).cpu()  # what an engine waits for
        computed = self._clock.mark()
        if self.pools.device.type == "cuda":
            torch.cuda.synchronize(self.pools.device)
        ticks = max(1, time.perf_counter_ns() - started) * _TICKS_PER_NS
        decodes = batch.decodes if batch is not None else 0
        self.records.append(
            Record(
                ticks,
                prepared,
                self._clock.between(begun, moved),
                self._clock.between(computing, computed),
                plan.tokens - decodes,
                decodes,
                sum(batch.contexts) if batch is not None else 0,
            )
        )
        if self.checker is not None and batch is not None and logits is not None:
            self.checker.look(plan, pieces, batch, logits)
        return ticks

    def decode_run(self, sequences: int, context: int) -> DecodeRun | None:
        return None  # every iteration is carried out

    def compute(self, batch: Batch) -> Tensor:
        """Run the model over a batch; return the logits of each sequence, ``[S, vocab]``."""
        if self.graphs is not None and not batch.longest_query:
            logits = self.graphs.replay(batch)
            if logits is not None:
                return logits
        attend = CachedAttention(self.pools, batch, self.attention)
        return self.model.forward(batch.tokens, batch.positions, batch.last, attend)

    def _move(self, plan: Plan) -> None:
        """Move blocks in the order in which the plan took them: what leaves makes room for what comes."""
        if plan.swaps_out:
            self.pools.swap_out(plan.swaps_out)
        if plan.swaps_in:
            self.pools.swap_in(plan.swaps_in)
        if plan.copies:
            self.pools.copy(plan.copies)

    def _pieces(self, plan: Plan) -> list[Piece]:
        """Return what is to be computed, sequences with one new token first; keep tables up to date."""
        memory, held, tables = self.scheduler.memory, self._held, self.tables
        for sequence, survivor in self._take_overs:
            self._take_over(sequence, survivor)
        self._take_overs.clear()
        if plan.copies:
            tables.all_exchanged()
        for group in plan.resumed:
            tables.exchanged(group.sequences)
        for group in plan.prompts:
            tables.exchanged(group.sequences)
            for place, sequence in enumerate(group.sequences):
                # Where memory can share, the others are forks: what the first computes is theirs, too.
                forked = memory.shares and place > 0
                held[sequence] = memory.length(sequence) if forked else group.cached
                self._answers[sequence] = self.tokens.answer(group, sequence)
        decodes: list[Piece] = []
        prompts: list[Piece] = []
        self._groups = {}
        for group in self.scheduler.running():
            for sequence in group.sequences:
                self._groups[sequence] = group
                start, stop = held[sequence], memory.length(sequence)
                if stop > start:
                    held[sequence] = stop
                    (decodes if stop - start == 1 else prompts).append(Piece(group, sequence, start, stop))
        tables.keep(self._groups)
        pieces = decodes + prompts
        tokens = len(decodes) + sum(piece.stop - piece.start for piece in prompts)
        if tokens != plan.tokens:
            raise RuntimeError(
                f"the plan computes {plan.tokens} tokens; the sequences have room for {tokens}"
            )
        return pieces

    def _take_over(self, sequence: int, survivor: int) -> None:
        self.tokens.take_over(self._groups[sequence], sequence, survivor, self._held[survivor])
        self.tables.exchanged([sequence])

    def _columns(self, pieces: list[Piece]) -> Columns:
        """Return the tokens, slots and tables of these pieces."""
        tables, size = self.tables, self.pools.block_size
        lengths = np.array([piece.stop for piece in pieces], np.int64)
        new = lengths - np.array([piece.start for piece in pieces], np.int64)
        rows = np.array([tables.row(piece.sequence, piece.stop) for piece in pieces], np.int64)
        decodes = int(np.searchsorted(new > 1, True))
        names = [np.array([self._answers[piece.sequence] for piece in pieces[:decodes]], np.int64)]
        if any(piece.start < piece.group.prompt for piece in pieces[:decodes]):
            # The last token of a prompt in chunks, or a prompt of one token.
            names = [self.tokens.names(*piece) for piece in pieces[:decodes]]
        names += [self.tokens.names(*piece) for piece in pieces[decodes:]]
        positions = np.concatenate(
            [lengths[:decodes] - 1, *(np.arange(piece.start, piece.stop) for piece in pieces[decodes:])]
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
