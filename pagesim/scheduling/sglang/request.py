"""SGLang's requests and the limits on their length."""

from __future__ import annotations

from typing import Any

from pagesim.kvcache.radix import Node
from pagesim.scheduling.content import Content
from pagesim.scheduling.request import EngineRequest, Family
from pagesim.scheduling.sglang.options import SglangOptions
from pagesim.setup.compiled import mypyc_attr

REFUSED = -1
"""The content name of the single token that a refused prompt becomes."""


@mypyc_attr(allow_interpreted_subclasses=True)
class SglangRequest(EngineRequest):
    """A request; ``output`` is the number of tokens that it generates, by length or up to its stop token.

    Attributes:
        max_new_tokens: most tokens that it may generate: the number asked for, clipped.
        is_refused: whether its prompt was too long; the prompt and its answer are then one token each.
        prefix_len: tokens whose KV existed before its last prefill, matched or computed in earlier chunks.
        fill_len: its tokens when it was last tried or prefilled; 0 if it never was.
        extend_end: tokens whose KV exists once its last prefill, or last chunk, has run.
        final_step: while it decodes, ``BlockManager.steps`` plus one once it has generated all it may.
        last_node: node at which the prefix ends that the queue's last look-up matched on the device.
        matched_len: tokens that the last look-up matched, never including the last one.
        entry: number of its last entry into the waiting queue, counted over all requests.
        processed_at_entry: tokens that the engine had processed at that entry.
        importance: the larger, the sooner it is served; 0 for all requests without priorities.
        branch: tokens shared with the tree, in whole chunks, if more than were matched; 0 otherwise.
        tracked: tokens after which its last prefill left a state that is not cached yet; 0 for none.
        untracked: token counts after which a decode should have left a state but did not.
        committed: with drafts, tokens whose KV counts; it holds slots for more.
        generated: with drafts, tokens that it will have generated once nothing is in flight any more; 0 until
            its whole prompt has run. No decision depends on it.
    """

    __slots__ = (
        "branch",
        "committed",
        "entry",
        "extend_end",
        "fill_len",
        "final_step",
        "generated",
        "importance",
        "is_refused",
        "last_node",
        "matched_len",
        "max_new_tokens",
        "prefix_len",
        "processed_at_entry",
        "tracked",
        "untracked",
    )

    last_node: Node | None
    untracked: tuple[int, ...]

    def __init__(
        self,
        index: int,
        row: int,
        arrival: int,
        prompt: int,
        output: int,
        family: Family | None = None,
        content: Content | None = None,
    ) -> None:
        super().__init__(index, row, arrival, prompt, output, family, content)
        self.max_new_tokens = output
        self.is_refused = False
        self.prefix_len = self.fill_len = self.extend_end = self.matched_len = 0
        self.entry = self.processed_at_entry = self.final_step = self.importance = 0
        self.branch = self.tracked = 0
        self.untracked = ()
        self.committed = self.generated = 0
        self.last_node = None
        self.block_state = None

    def refuse(self) -> None:
        """Replace its prompt and output by one token each, as for a refused prompt."""
        self.is_refused = True
        self.prompt = self.length = self.tokens = self.output = 1
        if self.content is not None:
            answer, size = self.content.answer, self.content.block_size
            self.content = Content([1, self.content.ends[-1]], [REFUSED, answer], frozenset(), size)


@mypyc_attr(allow_interpreted_subclasses=True)
class LengthLimits:
    """Limits on the length of requests. Source: 0.5.23, ``Scheduler.handle_generate_request``.

    Args:
        options: the scheduler's options.
        max_model_len: tokens of the model's context.
        capacity: tokens that the cache holds, in whole pages.
        page: tokens per page.
    """

    def __init__(self, options: SglangOptions, max_model_len: int, capacity: int, page: int) -> None:
        self._options = options
        self._max_model_len = max_model_len
        self._capacity = capacity
        self._page = page

    def refuses(self, prompt: int) -> bool:
        """Return whether a prompt of ``prompt`` tokens is too long."""
        return prompt >= min(self._max_model_len, self._capacity) - 6

    def refusal(self, prompt: int) -> str:
        """Return the limit that a prompt exceeds, with its option and value; empty if it exceeds none."""
        if not self.refuses(prompt):
            return ""
        if self._max_model_len <= self._capacity:
            limit = f"max_model_len, {self._max_model_len} tokens"
        else:
            limit = f"the {self._capacity} tokens of the KV cache: see num_blocks"
        return f"the prompt leaves fewer than 7 tokens of {limit}"

    def never_fits(self, prompt: int) -> bool:
        """Return whether a prompt is accepted although `PrefillAdder` has no room for it even alone."""
        if self.refuses(prompt):
            return False
        page = self._page
        if self._options.ignore_eos and not self._options.caches:
            return -(-prompt // page) * page + page > self._capacity
        return prompt + page >= self._capacity

    def prepare(self, request: SglangRequest) -> None:
        """Clip a request's output limit, or refuse the request, as the front end does."""
        least = 0 if self._options.ignore_eos else self._options.max_new_tokens or 0
        asked = max(request.output, least)
        rooms = room_behind(request.prompt, self._max_model_len, self._capacity, self._page)
        request.max_new_tokens = max(0, min(asked, *rooms))
        if self.refuses(request.prompt):
            request.refuse()


def room_behind(prompt: Any, max_model_len: int, capacity: int, page: int) -> tuple[Any, Any]:
    """Return how many tokens fit after a prompt in the model's context and in the cache; may be negative.

    Args:
        prompt: tokens of the prompt, a number or a column ``[N]``.
        max_model_len: tokens of the model's context.
        capacity: tokens that the cache holds, in whole pages.
        page: tokens per page.
    """
    whole_pages = -(-prompt // page) * page
    return min(max_model_len, capacity) - prompt - 2, capacity - whole_pages - page - 1
