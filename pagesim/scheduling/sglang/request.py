"""A request under SGLang, and how long requests may be."""

from __future__ import annotations

from typing import Any

from pagesim.kvcache.radix import Node
from pagesim.scheduling.content import Content
from pagesim.scheduling.request import EngineRequest, Family
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
        extend_end: its tokens whose KV is there once its last prefill, or the last chunk, has run.
        last_node: with which the part ends that a look-up of the waiting queue found.
        matched_len: tokens that a look-up found, the last one of its prompt left out.
        entry: counts entries to the waiting queue.
        processed_at_entry: tokens that the engine had processed when it entered.
    """

    __slots__ = (
        "entry",
        "extend_end",
        "is_refused",
        "last_node",
        "matched_len",
        "max_new_tokens",
        "prefix_len",
        "processed_at_entry",
    )

    last_node: Node | None

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
        self.prefix_len = self.extend_end = self.matched_len = 0
        self.entry = self.processed_at_entry = 0
        self.last_node = None
        self.kv = None

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
        max_model_len: tokens of the model's context.
        capacity: tokens of the cache, whole pages.
        page: tokens of a page.
    """

    def __init__(self, max_model_len: int, capacity: int, page: int) -> None:
        self._max_req_len = min(max_model_len, capacity) - 1
        self._max_model_len = max_model_len
        self._capacity = capacity
        self._page = page

    def refuses(self, prompt: int) -> bool:
        """Say whether a prompt of so many tokens is too long."""
        return prompt >= self._max_req_len - 5

    def refusal(self, prompt: int) -> str:
        """Return which limit a prompt is too long for, with its option and value; empty for none."""
        if not self.refuses(prompt):
            return ""
        if self._max_model_len <= self._capacity:
            limit = f"max_model_len, {self._max_model_len} tokens"
        else:
            limit = f"the {self._capacity} tokens of the KV cache: see num_blocks"
        return f"the prompt leaves fewer than 7 tokens of {limit}"

    def room_behind(self, prompt: Any) -> tuple[Any, Any]:
        """Return how many tokens the model and the cache have room for behind a prompt; may be below 0.

        Args:
            prompt: tokens, a number or a column ``[N]``.
        """
        page = self._page
        whole_pages = -(-prompt // page) * page
        return self._max_req_len - prompt - 1, self._capacity - whole_pages - page - 1

    def clip(self, asked: int, prompt: int) -> int:
        """Return how many tokens a request may generate that asks for so many."""
        most: int = min(asked, *self.room_behind(prompt))
        return max(0, most)
