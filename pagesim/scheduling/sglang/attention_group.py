"""Data-parallel attention: one scheduler per group of GPUs (rank), all taking their turns together.

Source: SGLang 0.5.23, ``srt/managers/scheduler_components/dp_attn.py`` (``prepare_mlp_sync_batch_raw``),
``srt/managers/prefill_delayer.py``, ``srt/arg_groups/parallel_hook.py``.
"""

from __future__ import annotations

from collections.abc import Callable

from pagesim.kvcache import BlockManager
from pagesim.kvcache.radix import StateRadixManager
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.options import Prices
from pagesim.scheduling.sglang.defaults import options_of_rank
from pagesim.scheduling.sglang.delays import DelayerRow
from pagesim.scheduling.sglang.hicache import CopyTime, at_once
from pagesim.scheduling.sglang.options import SglangOptions
from pagesim.scheduling.sglang.recv_skipper import PREFILL_WEIGHT
from pagesim.scheduling.sglang.scheduler import Sglang
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class SglangRank(Sglang):
    """The scheduler of one attention rank, with a queue, a radix tree and a token pool of its own.

    `AttentionGroup` makes it take its turns; `plan` then returns what was decided.

    Args:
        memory: this rank's memory, as for `Sglang`.
        options: options of all ranks together, as given to the server.
        max_model_len: tokens of the model's context.
        prices: has no effect on SGLang's decisions.
        copy_times: as for `Sglang`.

    Attributes:
        mode: the kind of the last turn: prefill, mixed, decode, ``turned`` (decodes that run as prompts of
            one token, because another rank has prompts), or ``idle`` (empty; another rank has a batch).
        all_tokens: batch tokens of every rank in the last turn, ``[R]``.
        agree: tells the others whether this rank has prompts, and returns whether any rank has; None where
            some ranks may decode while others run prompts.
    """

    __slots__ = ("_decided", "agree", "all_tokens", "graph_tokens", "mode")

    def __init__(
        self,
        memory: BlockManager,
        options: SglangOptions,
        *,
        max_model_len: int,
        prices: Prices | None = None,
        copy_times: tuple[CopyTime, CopyTime] = (at_once, at_once),
    ) -> None:
        own = options_of_rank(options)
        super().__init__(memory, own, max_model_len=max_model_len, prices=prices, copy_times=copy_times)
        # Tokens of the largest prefill with a CUDA graph that decodes may run as; it tracks no states.
        self.graph_tokens = 0 if isinstance(memory, StateRadixManager) else self.graphs_to(own)
        self.mode = "idle"
        self.agree: Callable[[bool], bool] | None = None
        self.all_tokens: list[int] = []
        self._decided: Batch | None = None

    def take_turn(self, now: int, *, was_idle: bool) -> Batch:
        """Decide this rank's batch for one turn.

        Args:
            now: the current time, in ticks.
            was_idle: whether nothing was launched or in flight in the previous turn; if so, new arrivals are
                received.
        """
        batch, skipper = Batch(), self.recv_skipper
        self.preempted = []
        if was_idle and skipper is not None:
            skipper.reset()
        if skipper is not None and (was_idle or skipper.handle()):
            self.waiting_queue.receive()
        self._get_next_batch_to_run(batch, now)
        self._close_turn(batch)
        self._decided = batch
        return batch

    def may_decode(self, *, prefills: bool) -> bool:
        """Return whether the running batch may decode; with drafts, only if no rank has prompts."""
        return not (prefills if self.agree is None else self.agree(prefills))

    def plan(self, now: int) -> Batch:
        """Return the batch that `take_turn` decided."""
        batch, self._decided = self._decided, None
        return Batch() if batch is None else batch

    @property
    def has_work(self) -> bool:
        return self._decided is not None or super().has_work


class AttentionGroup:
    """The ranks of data-parallel attention: in each turn all decide, then each learns what the others do.

    Args:
        ranks: their schedulers.
    """

    def __init__(self, ranks: list[SglangRank]) -> None:
        self._ranks = ranks
        self._rows: list[DelayerRow] = []
        self._has_prompts = False  # whether any rank that has looked for prompts has some
        self._batches: list[Batch] = []
        self._begun = self._now = 0
        self._was_idle = False
        for rank in ranks:
            if rank.delayer is not None:
                rank.delayer.exchange = self._exchange
            if rank.drafts is not None:
                rank.agree = self._agree

    def turn(self, now: int, *, was_idle: bool) -> list[Batch]:
        """Let every rank decide its batch; return the batches, ``[R]``, or an empty list if all are empty.

        A rank without a batch launches an empty one if another rank has one.

        Args:
            now: the current time, in ticks.
            was_idle: whether nothing was launched or in flight in the previous turn.
        """
        ranks = self._ranks
        self._now, self._begun, self._rows, self._was_idle = now, 0, [], was_idle
        self._has_prompts = False
        self._batches = [Batch()] * len(ranks)
        while self._begun < len(ranks):
            self._decide_next()
        batches = self._batches
        if not any(batch.tokens for batch in batches):
            return []
        tokens = [batch.tokens for batch in batches]
        extends = any(batch.chunks for batch in batches)
        turns = min(tokens) > 0 and all(
            batch.tokens <= rank.graph_tokens for batch, rank in zip(batches, ranks, strict=True)
        )
        for batch, rank in zip(batches, ranks, strict=True):
            self._learn(rank, batch, tokens, extends=extends, turns=turns)
        return batches

    @property
    def waits(self) -> bool:
        """Whether any request is waiting or has yet to be received."""
        return any(rank.queue.waiting or rank.waiting_queue.messages for rank in self._ranks)

    def _decide_next(self) -> None:
        number = self._begun
        self._begun += 1
        self._batches[number] = self._ranks[number].take_turn(self._now, was_idle=self._was_idle)

    def _exchange(self, row: DelayerRow) -> list[DelayerRow]:
        """Return all ranks' rows for the prefill delayer, after the remaining ranks have added theirs.

        Each rank asks once per turn and waits for the others there: the next rank's turn runs in this call.
        """
        self._rows.append(row)
        if self._begun < len(self._ranks):
            self._decide_next()
        return self._rows

    def _agree(self, prefills: bool) -> bool:
        """Return whether any rank has prompts in this turn; the remaining ranks look for some first."""
        self._has_prompts = self._has_prompts or prefills
        if self._begun < len(self._ranks):
            self._decide_next()
        return self._has_prompts

    def _learn(
        self, rank: SglangRank, batch: Batch, tokens: list[int], *, extends: bool, turns: bool
    ) -> None:
        """Tell a rank what all ranks do in this turn.

        Args:
            rank: the rank.
            batch: its own batch, possibly empty.
            tokens: batch tokens of every rank, ``[R]``.
            extends: whether any rank has prompts.
            turns: whether decodes run as prompts if any rank has prompts.
        """
        rank.all_tokens = tokens
        if batch.chunks:
            rank.mode = "mixed" if batch.decoding else "prefill"
        elif not batch.tokens:
            rank.mode = "idle"
            batch.launches = True
            if rank.drafts is not None:
                rank.drafts.launch_nothing()
        elif extends and turns:
            rank.mode = "turned"
            running = rank.running_batch
            rank.waiting_queue.processed += batch.tokens - running.extend_num_tokens
            running.extend_num_tokens = batch.tokens
        else:
            rank.mode = "decode"
        if rank.recv_skipper is not None:
            rank.recv_skipper.weight = PREFILL_WEIGHT if extends else 1
        if extends and rank.interval is not None:
            rank.interval.begin()
