"""A request under SGLang, and how long requests may be."""

from __future__ import annotations

from typing import Any

from pagesim.kvcache.radix import Node
from pagesim.scheduling.content import Content
from pagesim.scheduling.request import EngineRequest, Family
from pagesim.scheduling.sglang.options import SglangOptions
from pagesim.setup.compiled import mypyc_attr

REFUSED = -1
"""The name of the one token that a refused prompt becomes."""


@mypyc_attr(allow_interpreted_subclasses=True)
class SglangRequest(EngineRequest):
    """A request; ``output`` is what it generates, by length or up to its stop token.

    Attributes:
        max_new_tokens: tokens that it may generate at most: what it asked for, clipped.
        is_refused: whether its prompt was too long: it is one token then, and so is the answer.
        prefix_len: its tokens whose KV was there before its last prefill: found, or computed in chunks.
        fill_len: its tokens when it was last tried or its prompt ran; 0 if it never was.
        extend_end: its tokens whose KV is there once its last prefill, or the last chunk, has run.
        final_step: while it decodes, ``BlockManager.steps`` and one more when it has all it may generate.
        last_node: with which the part ends that a look-up of the waiting queue found.
        matched_len: tokens that a look-up found, the last one of its prompt left out.
        entry: counts entries to the waiting queue.
        processed_at_entry: tokens that the engine had processed when it entered.
        importance: the larger, the sooner it is served; 0 for all without priorities.
        branch: up to where more of it is in the tree than was found, whole chunks; 0 where no more is.
        tracked: tokens behind which its last prefill left a state that is not cached yet; 0 where it did not.
        untracked: tokens behind which a decode would have left one and did not.
        committed: its tokens whose KV counts, while it verifies drafts; it holds slots for more.
        generated: while it verifies drafts, what it has generated when nothing is in flight any more; 0 until
            its prompt has run whole. No decision looks at it.
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
        """Make its prompt the one token that a refused prompt is."""
        self.is_refused = True
        self.prompt = self.length = self.tokens = self.output = 1
        if self.content is not None:
            answer, size = self.content.answer, self.content.block_size
            self.content = Content([1, self.content.ends[-1]], [REFUSED, answer], frozenset(), size)


@mypyc_attr(allow_interpreted_subclasses=True)
class LengthLimits:
    """How long requests may be. Source: 0.5.23, ``Scheduler.handle_generate_request``.

    Args:
        options: of the scheduler.
        max_model_len: tokens of the model's context.
        capacity: tokens of the cache, whole pages.
        page: tokens of a page.
    """

    def __init__(self, options: SglangOptions, max_model_len: int, capacity: int, page: int) -> None:
        self._options = options
        self._max_model_len = max_model_len
        self._capacity = capacity
        self._page = page

    def refuses(self, prompt: int) -> bool:
        """Say whether a prompt of so many tokens is too long."""
        return prompt >= min(self._max_model_len, self._capacity) - 6

    def refusal(self, prompt: int) -> str:
        """Return which limit a prompt is too long for, with its option and value; empty for none."""
        if not self.refuses(prompt):
            return ""
        if self._max_model_len <= self._capacity:
            limit = f"max_model_len, {self._max_model_len} tokens"
        else:
            limit = f"the {self._capacity} tokens of the KV cache: see num_blocks"
        return f"the prompt leaves fewer than 7 tokens of {limit}"

    def never_fits(self, prompt: int) -> bool:
        """Say whether a prompt is accepted for which `PrefillAdder` has no room where no other one runs."""
        if self.refuses(prompt):
            return False
        page = self._page
        if self._options.ignore_eos and not self._options.caches:
            return -(-prompt // page) * page + page > self._capacity
        return prompt + page >= self._capacity

    def prepare(self, request: SglangRequest) -> None:
        """Clip what a request asks for, or refuse it, as the front end does."""
        least = 0 if self._options.ignore_eos else self._options.max_new_tokens or 0
        asked = max(request.output, least)
        rooms = room_behind(request.prompt, self._max_model_len, self._capacity, self._page)
        request.max_new_tokens = max(0, min(asked, *rooms))
        if self.refuses(request.prompt):
            request.refuse()


def room_behind(prompt: Any, max_model_len: int, capacity: int, page: int) -> tuple[Any, Any]:
    """Return how many tokens the model and the cache have room for behind a prompt; may be below 0.

    Args:
        prompt: tokens, a number or a column ``[N]``.
        max_model_len: tokens of the model's context.
        capacity: tokens of the cache, whole pages.
        page: tokens of a page.
    """
    whole_pages = -(-prompt // page) * page
    return min(max_model_len, capacity) - prompt - 2, capacity - whole_pages - page - 1
