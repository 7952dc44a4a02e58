"""What SGLang keeps of a request beside what every engine does."""

from __future__ import annotations

from typing import Any, overload

from pagesim.kvcache.radix import Node
from pagesim.scheduling.content import Content
from pagesim.scheduling.request import EngineRequest, Family
from pagesim.setup.compiled import mypyc_attr
from pagesim.workloads.trace import IntColumn

REFUSED = -1
"""The name of the one token that a refused prompt becomes."""


@mypyc_attr(allow_interpreted_subclasses=True)
class SglangRequest(EngineRequest):
    """A request; ``output`` is what it generates, by length or up to its stop token.

    Attributes:
        max_new: tokens that it may generate at most: what it asked for, clipped.
        is_refused: whether its prompt was too long: it is one token then, and so is the answer.
        limit: while it decodes, ``KVCache.steps`` and one more when it has all tokens that it may generate.
        start: its tokens that were there before the iteration at hand: found, or computed in chunks.
        end: its tokens once its last prefill, or the last chunk, has run.
        node: with which that part ends that a look-up found.
        matched: tokens that were found while it waited, the last one of its prompt left out.
        entered: counts entries to the queue.
        processed: tokens that the engine had processed when it entered.
        was_retracted: whether it lost its place while a token of it is in flight.
        holds_place: whether it is among those that run, a prompt in chunks included.
        is_over: whether its last token is known.
    """

    __slots__ = (
        "end",
        "entered",
        "holds_place",
        "is_over",
        "is_refused",
        "limit",
        "matched",
        "max_new",
        "node",
        "processed",
        "start",
        "was_retracted",
    )

    node: Node | None

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
        self.max_new = output
        self.is_refused = self.was_retracted = self.holds_place = self.is_over = False
        self.start = self.end = self.matched = self.entered = self.processed = self.limit = 0
        self.node = None
        self.kv = None

    @property
    def ends_by_length(self) -> bool:
        """Whether it is known beforehand which token is its last one."""
        return self.output >= self.max_new

    def refuse(self) -> None:
        """Make its prompt the one token that a refused prompt is."""
        self.is_refused = True
        self.prompt = self.length = self.tokens = self.output = 1
        if self.content is not None:
            answer, size = self.content.answer, self.content.block_size
            self.content = Content([1, self.content.ends[-1]], [REFUSED, answer], frozenset(), size)


@mypyc_attr(allow_interpreted_subclasses=True)
class Limits:
    """How long requests may be. Source: 0.5.23, ``Scheduler.handle_generate_request``.

    Args:
        max_model_len: tokens of the model's context.
        capacity: tokens of the cache, whole pages.
        page: tokens of a page.
    """

    def __init__(self, max_model_len: int, capacity: int, page: int) -> None:
        self.longest = min(max_model_len - 1, capacity - 1)
        self._max_model_len = max_model_len
        self._capacity = capacity
        self._page = page

    def refuses(self, prompt: int) -> bool:
        """Say whether a prompt of so many tokens is too long."""
        return prompt >= self.longest - 5

    def refusal(self, prompt: int) -> str:
        """Return which limit a prompt is too long for, with its option and value; empty for none."""
        if not self.refuses(prompt):
            return ""
        if self._max_model_len <= self._capacity:
            limit = f"max_model_len, {self._max_model_len} tokens"
        else:
            limit = f"the {self._capacity} tokens of the KV cache: see num_blocks"
        return f"the prompt leaves fewer than 7 tokens of {limit}"

    def clip(self, asked: int, prompt: int) -> int:
        """Return how many tokens a request may generate that asks for so many."""
        model, cache = self.rooms(prompt)
        return max(0, min(asked, model, cache))

    @overload
    def rooms(self, prompt: int) -> tuple[int, int]: ...

    @overload
    def rooms(self, prompt: IntColumn) -> tuple[IntColumn, IntColumn]: ...

    def rooms(self, prompt: Any) -> tuple[Any, Any]:
        """Return how many tokens behind a prompt the model and the cache have room for; may be below 0."""
        page = self._page
        return self.longest - prompt - 1, self._capacity - -(-prompt // page) * page - page - 1
