"""What SGLang's loop does otherwise where some layers attend to a window and have a pool of their own.

Source: SGLang 0.5.23, ``Scheduler._get_new_batch_prefill_raw``, ``ScheduleBatch.maybe_evict_swa``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pagesim.kvcache.radix import WindowedRadixKV
from pagesim.scheduling.sglang.budget import Budget, WindowBudget
from pagesim.scheduling.sglang.request import SglangRequest
from pagesim.setup.compiled import mypyc_attr

if TYPE_CHECKING:  # which has pools
    from pagesim.scheduling.sglang.decoding import DecodingSglang

SLIDE_AT = 128
"""Tokens that have left the window of a decoding request when it gives their window slots back."""


@mypyc_attr(allow_interpreted_subclasses=True)
class OnePool:
    """All layers attend to all tokens: what a request holds it holds to its end."""

    budget: type[Budget] = Budget

    retries = False
    """Whether every pass tries the queue, though the batch was full in the last one."""

    def before_prompts(self, prompts: Iterable[SglangRequest]) -> None:
        """Give back what prompts that run no longer need."""
        return

    def before_decodes(self, batch: Iterable[SglangRequest]) -> None:
        """Give back what requests that decode no longer need."""
        return

    def steps_alike(self, scheduler: DecodingSglang, steps: int) -> int:
        """Return for how many of some decodes each finds its pages, and nothing else is decided.

        Before each as many pages are made blank as requests decode; leaves that are evicted for it decide
        nothing.
        """
        decoding = len(scheduler.batch) + len(scheduler.joining)
        return scheduler.memory.steps_that_fit(steps, decoding)


@mypyc_attr(allow_interpreted_subclasses=True)
class TwoPools(OnePool):
    """Layers with a window have a pool of their own, of which a request gives back what left its window.

    Args:
        scheduler: see there.
        memory: its memory.
        chunk: tokens of prompts in an iteration at most; None for no chunks.
    """

    budget = WindowBudget
    retries = True

    def __init__(self, scheduler: DecodingSglang, memory: WindowedRadixKV, chunk: int | None) -> None:
        self._scheduler = scheduler
        self._memory = memory
        self._chunk = chunk or 0

    def before_prompts(self, prompts: Iterable[SglangRequest]) -> None:
        if self._scheduler.tree is not None:  # which takes them over, window and all
            return
        for request in prompts:
            if not request.holds_place:
                continue
            request.kv.parts += 1
            if not self._scheduler.overlaps:
                self._memory.slide(request, request.start)
            elif request.kv.parts > 2:
                self._memory.slide(request, request.start - self._chunk)

    def before_decodes(self, batch: Iterable[SglangRequest]) -> None:
        memory, generated = self._memory, self._scheduler.generated
        ahead = memory.windows.window + SLIDE_AT
        most = memory.steps - ahead
        for request in batch:
            if request.base + most < request.kv.gone:
                continue  # though all of its tokens were known
            known = request.prompt + generated(request)
            if known - 1 - ahead >= request.kv.gone and memory.length(request) > request.end:
                memory.slide(request, known - 1)

    def steps_alike(self, scheduler: DecodingSglang, steps: int) -> int:
        memory = self._memory
        # Where nothing is evicted: what one pool evicts, the other one may have needed.
        steps = memory.steps_that_fit(steps, memory.cached_blocks + len(scheduler.batch))
        if scheduler.queue.waiting or not steps:
            return 0
        ahead = memory.windows.window + SLIDE_AT + scheduler.overlaps - memory.steps
        steps = min(steps, min([request.kv.gone - request.base + ahead for request in scheduler.batch]))
        if steps <= 0:
            return 0
        # Before each step as many pages are blank as requests decode, in this pool as in the other.
        spare = memory.free_blocks - memory.blank_window_blocks + len(scheduler.batch)
        return memory.steps_that_fit(steps, spare)
