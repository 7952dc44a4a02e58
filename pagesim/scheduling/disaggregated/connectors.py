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

if TYPE_CHECKING:  # the scheduler imports connectors, too
    from pagesim.scheduling.vllm_v1.scheduler import VllmV1

Pull = Callable[[EngineRequest, int, int], int]
"""Starts to pull a request's prompt, given (request, blocks, time); returns the end time, in ticks."""


def _at_once(request: EngineRequest, blocks: int, now: int) -> int:
    return now


class IdleConnector(KVConnector):
    """The connector of an engine that could receive prompts from others but serves all requests by itself.

    As a consumer of KV, it fences the blocks of requests in flight. Nothing is transferred unless a router
    gives requests ``kv_transfer_params``.

    Args:
        memory: the device's block manager, with one group; with several, prefix hits may differ by group
            under this connector (``supports_divergent_local_hybrid_hits``).
    """

    parks = ("landing", "fenced")

    def __init__(self, memory: BlockManager) -> None:
        if len(memory.groups) > 1:
            check_memory(memory)
        super().__init__(memory)


class PolledConnector(KVConnector):
    """A connector whose worker polls transfers with each batch and reports them with its tokens.

    Args:
        memory: the device's block manager, for layers that all keep every token.
        in_flight: batches that are scheduled before the outcome of the first of them is known.

    Attributes:
        completions: tracks which transfers have finished.
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
        """Process finished transfers while the engine has nothing to do."""
        self.over(self.completions.drain(now))

    def over(self, rows: Sequence[int]) -> None:
        """Note that the transfers of requests have finished."""
        raise NotImplementedError


class PrefillConnector(PolledConnector):
    """The connector of an engine that only prefills, for requests with one output token each.

    A finished request keeps its blocks until the worker reports that they were pulled or that their lease
    expired. A request that is aborted before it finishes frees its blocks at once.

    Args:
        memory: the device's block manager, for layers that all keep every token.
        in_flight: batches that are scheduled before the outcome of the first of them is known.

    Attributes:
        holds: whether finished requests keep their blocks; if not, they are freed at once.
        held: finished requests that hold blocks, by row.
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
        super().idle(now + 1)  # a batch launched now does not report what happens now

    def request_finished(self, request: EngineRequest, *, is_aborted: bool) -> bool:
        if is_aborted or not self.holds:
            return False
        self.held[request.row] = request
        return True

    def over(self, rows: Sequence[int]) -> None:
        for row in rows:
            self.memory.release(self.held.pop(row))


class PullConnector(PolledConnector):
    """The connector of an engine that only decodes prompts computed by a prefiller.

    A request allocates the blocks of its whole prompt at once. It waits until the worker reports that the
    tokens not cached here were pulled. Then it runs and recomputes the last token of its prompt to get the
    next one. A request that is preempted afterwards recomputes all its tokens here. If a request is aborted
    while it waits, its blocks are freed once the pull has finished.

    Args:
        memory: the device's block manager, for layers that all keep every token.
        in_flight: batches that are scheduled before the outcome of the first of them is known.

    Attributes:
        pull: starts a transfer and returns its end time, which is immediate unless another one is set.
    """

    parks = ("landing", "fenced")

    def __init__(self, memory: BlockManager, in_flight: int) -> None:
        super().__init__(memory, in_flight)
        self.pull: Pull = _at_once
        self._pulled: set[int] = set()  # rows whose prompts were pulled, since none is pulled twice

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
