"""Disaggregated prefill: how a prefiller's blocks are held, and how a decoder pulls them.

Source: vLLM 0.33.0, distributed/kv_transfer/kv_connector/v1/nixl/pull_scheduler.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pagesim.kvcache import BlockManager
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.disaggregated.refusals import check_memory
from pagesim.scheduling.disaggregated.transfer_completions import TransferCompletions
from pagesim.scheduling.kv_connector import KVConnector
from pagesim.scheduling.request import EngineRequest

if TYPE_CHECKING:  # which asks connectors
    from pagesim.scheduling.vllm_v1.scheduler import VllmV1

Pull = Callable[[EngineRequest, int, int], int]
"""Begins to pull a request's prompt: so many blocks, at an instant; returns when that is over, in ticks."""


def _at_once(request: EngineRequest, blocks: int, now: int) -> int:
    return now


class IdleConnector(KVConnector):
    """The connector of an engine that could take prompts from others, and serves all requests by itself.

    It is a consumer of KV, so that blocks of requests in flight are fenced. Nothing is transferred where no
    router gives requests ``kv_transfer_params``.

    Args:
        memory: the device's, of one group; of several this connector's prefixes may differ by group
            (``supports_divergent_local_hybrid_hits``).
    """

    parks = ("landing", "fenced")

    def __init__(self, memory: BlockManager) -> None:
        if len(memory.groups) > 1:
            check_memory(memory)
        super().__init__(memory)


class PolledConnector(KVConnector):
    """A connector whose worker polls transfers with each batch, and reports them with its tokens.

    Args:
        memory: the device's, of layers that keep every token alike.
        in_flight: batches that are scheduled before the outcome of the first of them is known.

    Attributes:
        completions: of the transfers.
    """

    def __init__(self, memory: BlockManager, in_flight: int) -> None:
        check_memory(memory)
        super().__init__(memory)
        self.completions = TransferCompletions(in_flight)
        self._now = 0

    def begin_plan(self, now: int) -> None:
        super().begin_plan(now)
        self._now = now
        self.over(self.completions.known())

    def build_connector_meta(self, batch: Batch, scheduler: VllmV1) -> bool:
        self.completions.launch(self._now)
        return self.completions.unknown

    def idle(self, now: int) -> None:
        """Take back what transfers do not need any more, while the engine has nothing to do."""
        self.over(self.completions.drain(now))

    def over(self, rows: Sequence[int]) -> None:
        """Note that transfers of requests are over."""
        raise NotImplementedError


class PrefillConnector(PolledConnector):
    """The connector of an engine that only prefills, for requests of one output token each.

    A request that is over keeps its blocks. They are free when the worker has reported that they were pulled,
    or that their lease is over; a request that is aborted before it is over frees its blocks at once.

    Args:
        memory: the device's, of layers that keep every token alike.
        in_flight: batches that are scheduled before the outcome of the first of them is known.

    Attributes:
        holds: whether blocks stay held; if not, they are free when a request is over.
        held: the requests that are over and hold blocks, by row.
    """

    parks = ("held_for_transfer",)
    fills_blocks = False

    def __init__(self, memory: BlockManager, in_flight: int) -> None:
        super().__init__(memory, in_flight)
        self.holds = True
        self.held: dict[int, EngineRequest] = {}

    @property
    def awaits(self) -> bool:
        return bool(self.held)

    def held_without_running(self, holding: Sequence[EngineRequest]) -> Sequence[Sequence[EngineRequest]]:
        return (list(self.held.values()),)

    def idle(self, now: int) -> None:
        super().idle(now + 1)  # what happens now, no batch that is launched now reports

    def request_finished(self, request: EngineRequest, *, is_aborted: bool) -> bool:
        if is_aborted or not self.holds:
            return False
        self.held[request.row] = request
        return True

    def over(self, rows: Sequence[int]) -> None:
        for row in rows:
            self.memory.release(self.held.pop(row))


class PullConnector(PolledConnector):
    """The connector of an engine that only decodes: a prefiller has computed the prompts.

    A request takes the blocks of its whole prompt at once, and waits until the worker has reported that what
    this engine had not cached was pulled. Then it runs, and computes the last token of its prompt again, for
    what comes next. A request that is preempted afterwards computes all of its tokens here. The blocks of one
    that is aborted while it waits are free once the pull is over.

    Args:
        memory: the device's, of layers that keep every token alike.
        in_flight: batches that are scheduled before the outcome of the first of them is known.

    Attributes:
        pull: begins a transfer and returns when it is over: at once, unless another one is set.
    """

    parks = ("landing", "fenced")

    def __init__(self, memory: BlockManager, in_flight: int) -> None:
        super().__init__(memory, in_flight)
        self.pull: Pull = _at_once
        self._pulled: set[int] = set()  # rows of all whose prompts were pulled: no prompt is pulled twice

    def get_num_new_matched_tokens(
        self, request: EngineRequest, num_computed_tokens: int, scheduler: VllmV1
    ) -> int:
        return 0 if request.row in self._pulled else request.length - num_computed_tokens

    def update_state_after_alloc(
        self, request: EngineRequest, num_external_tokens: int, scheduler: VllmV1
    ) -> None:
        if not num_external_tokens:
            return
        self._pulled.add(request.row)
        cached = request.length - num_external_tokens
        request.cached = cached
        missing = self.memory.held_blocks(request) - cached // self.memory.block_size
        self.completions.expect(request.row, self.pull(request, missing, self._now))

    def over(self, rows: Sequence[int]) -> None:
        waiting = {each.row: each for each in (*self.loading, *self.leaving)}
        for row in rows:
            self.finished_recving(waiting[row])
