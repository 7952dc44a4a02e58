"""A batch of requests that run together, as SGLang's loop passes it from iteration to iteration."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pagesim.scheduling.sglang.new_token_ratio import RETRACT_STEPS
from pagesim.scheduling.sglang.pool import TokenPool
from pagesim.scheduling.sglang.request import SglangRequest
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class ScheduleBatch:
    """An ordered batch: requests that decode, or those whose prompts ran in the last iteration.

    Args:
        reqs: the requests.
        extend_num_tokens: tokens of the prefill iteration with which the batch began; they are counted again
            with each of its decode steps.
        is_prefill_only: whether none of the requests may generate more than the token of its prompt.

    Attributes:
        batch_is_full: whether no further request is tried until one leaves.
    """

    def __init__(
        self, reqs: Iterable[SglangRequest] = (), extend_num_tokens: int = 0, *, is_prefill_only: bool = False
    ) -> None:
        self.reqs = list(reqs)
        self.extend_num_tokens = extend_num_tokens
        self.is_prefill_only = is_prefill_only
        self.batch_is_full = False

    def merge_batch(self, other: ScheduleBatch) -> None:
        """Append the requests of another batch."""
        self.reqs += other.reqs
        self.is_prefill_only = self.is_prefill_only and other.is_prefill_only

    def retract_decode(
        self,
        pool: TokenPool,
        known_outputs: Callable[[SglangRequest], int],
        by_importance: bool,
        release: Callable[[SglangRequest], None],
    ) -> tuple[list[SglangRequest], list[SglangRequest]]:
        """Retract requests until the rest fit: fewest output tokens first, then the longest prompt.

        Source: SGLang 0.5.23, ``ScheduleBatch.retract_decode``.

        Args:
            pool: the token pool.
            known_outputs: returns the number of a request's generated tokens that are known.
            by_importance: whether the least important requests go first.
            release: frees a request's slot and memory.

        Returns:
            The retracted requests, and those to abort: the last one if it does not fit even alone.
        """

        def worth(req: SglangRequest) -> tuple[int, int, int]:
            return req.importance if by_importance else 0, known_outputs(req), -req.prompt

        keep = sorted(self.reqs, key=worth, reverse=True)
        retracted: list[SglangRequest] = []
        aborted: list[SglangRequest] = []
        while len(keep) > 1:
            retracted.append(keep.pop())
            release(retracted[-1])
            pool.evict(-(-len(keep) * RETRACT_STEPS // pool.page_size))
            if pool.check_decode_mem(keep):
                break
        if len(keep) == 1 and not pool.check_decode_mem(keep):
            aborted.append(keep.pop())
            release(aborted[-1])
        self.reqs = keep
        return retracted, aborted
