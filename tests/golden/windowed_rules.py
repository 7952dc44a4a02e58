"""The rules of SGLang's two pools, on top of a program that was written from its rules for one pool.

That program (`mini_sglang.py`) brings the loop, the queue, the budget of the first pool and requests; what
the second pool adds to each decision is here. The tree is pagesim's: `tests/kvcache/test_windowed_radix.py`
compares that with a slow one.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from pagesim.kvcache.radix import Node, WindowedTree

CLIP, SLIDE_AT = 4096, 128


class Words:
    """A request's tokens, as the tree asks for them."""

    def __init__(self, tokens: tuple[int, ...]) -> None:
        self.tokens = tokens

    def key_at(self, tokens: int) -> int:
        return hash(self.tokens[:tokens])

    def common_tokens(self, other: Words, most: int) -> int:
        if self.tokens[:most] == other.tokens[:most]:
            return most
        pairs = zip(self.tokens, other.tokens, strict=False)
        return next(place for place, (a, b) in enumerate(pairs) if a != b)


class TwoPoolTree(WindowedTree):
    """The tree under the names by which the program knows one."""

    __slots__ = ()

    def match(self, tokens: Any, most: int | None = None) -> Any:
        if most is not None:
            return super().match(tokens, most)
        node = super().match(Words(tokens), len(tokens))
        return node.end, node

    def hold(self, node: Node) -> tuple[Node, int]:
        return node, self.lock(node)

    def let(self, held: tuple[Node, int] | None) -> None:
        if held is not None:
            self.unlock(*held)


def two_pools(mini: ModuleType) -> type:
    """Return the program's loop with a second pool; see ``Mini``."""

    class TwoPools(mini.Mini):  # type: ignore[misc, name-defined]
        def __init__(self, asked: Any, window: int, window_tokens: int) -> None:
            self._free = 0
            self.window_free = 0
            super().__init__(asked)
            self.window, self.window_pool = window, window_tokens
            self.window_free = window_tokens
            self.tree = TwoPoolTree(self.ps, window, asked.radix_eviction_policy)
            self.prompts_due = False
            self.given_up = 0

        @property
        def free(self) -> int:
            return self._free

        @free.setter
        def free(self, tokens: int) -> None:
            """What is taken is taken of both pools; what is given back says itself of which."""
            if tokens < self._free:
                if self.prompts_due:
                    self.prompts_due = False
                    self.before_prompts()
                self.window_free -= self._free - tokens
                assert self.window_free >= 0
            self._free = tokens

        # The second pool

        def slide(self, q: Any, computed: int) -> None:
            if computed - self.window < q.gone + 1:
                return
            q.gone = max(q.gone, q.prot)
            kept = self.up(max(self.window, self.ps)) if self.radix else self.window
            gone = max(q.gone, computed - kept) // self.ps * self.ps
            self.window_free += gone - q.gone
            q.gone = gone

        def before_prompts(self) -> None:
            for q in () if self.radix else self.can:
                q.parts += 1
                if not self.overlap:
                    self.slide(q, q.prefix)
                elif q.parts > 2:
                    self.slide(q, q.prefix - (self.chunk or 0))

        def evict_to(self, tokens: int) -> None:
            if not self.radix:
                return
            for evict, short in (
                (self.tree.evict, lambda: tokens - self._free),
                (self.tree.evict_windows, lambda: tokens - self.window_free),
            ):
                if short() > 0:
                    live = self.tree.window_tokens
                    gone = evict(short())
                    self._free += gone
                    self.evicted += gone
                    self.window_free += live - self.tree.window_tokens

        def checkpoint(self, q: Any, to: int, over: bool = False) -> None:
            if not self.radix:
                return
            branches = q.branch is not None and q.prot < q.branch <= to
            end = q.branch if branches else to
            if not over:
                self.slide(q, end - 1)
            end -= end % self.ps
            if not end:
                return
            own, live = max(q.prot, q.gone), self.tree.window_tokens
            there, q.node = self.tree.add(Words(q.ids()[:end]), end, q.seen, own)
            self._free += there - q.prot
            self.window_free += max(end, own) - own - (self.tree.window_tokens - live)
            q.seen, q.prot = max(q.seen, end), end
            self.tree.let(q.lock)
            q.lock = self.tree.hold(q.node)
            if branches:
                q.branch = None
                if not over:
                    self.slide(q, q.end - 1)

        def release(self, q: Any, keep: bool) -> None:
            if keep:
                own = q.alloc if q.stop is None else min(q.alloc, len(q.prompt) + min(q.stop, q.out))
                if own > 0:
                    self.checkpoint(q, own, True)
            self._free += self.up(q.alloc) - q.prot
            self.window_free += self.up(q.alloc) - max(q.prot, q.gone)
            self.tree.let(q.lock)
            q.lock, q.row, q.alloc = None, False, 0
            q.gone = q.steps = q.parts = 0
            self.rows += 1
            q.branch = q.branch if keep else None

        def fits_decode(self, requests: list[Any]) -> bool:
            needed = self.need_decode(requests)
            self.evict_to(needed)
            return bool(min(self._free, self.window_free) >= needed)

        def decode_alloc(self, requests: list[Any]) -> None:
            for q in requests:
                if q.steps >= 1 and q.seq - 1 - self.window >= q.gone + SLIDE_AT:
                    self.slide(q, q.seq - 1)
            super().decode_alloc(requests)
            for q in requests:
                q.steps += 1

        # Its budget

        def enqueue(self, q: Any) -> None:
            if not hasattr(q, "gone"):
                q.gone = q.steps = q.parts = 0
                q.branch = None
            super().enqueue(q)

        def window_left(self) -> int:
            return int(self.window_free + self.tree.window_evictable - self.window_taken)

        def window_need(self, tokens: int, to_come: int) -> int:
            at_once = tokens if self.rem_ch is None else min(tokens, self.rem_ch)
            return int(max(at_once - self.window, 0) + min(tokens + to_come, self.window) + self.ps)

        def state(self) -> str:
            return str(super().state()) if self.window_left() > 0 else "NO_TOKEN"

        def reserve(self, tokens: int, to_come: int) -> None:
            self.window_taken += self.window_need(self.up(tokens), to_come)
            super().reserve(tokens, to_come)

        def prefill(self) -> Any:
            self.run.full, self.window_taken, self.prompts_due = False, 0, True
            batch = super().prefill()
            self.prompts_due = False
            return batch

        def add(self, q: Any) -> str:
            most = self.a.prefill_max_requests
            if most is not None and len(self.can) >= most:
                return "OTHER"
            tokens = q.seq - q.prefix
            to_come = min(max(q.max_new - q.out, 0), CLIP)
            if not self.radix and self.a.ignore_eos:
                return self.add_one_of_known_length(q, tokens, to_come)
            if self.radix:
                q.branch = self.tree.reached if self.tree.reached > q.prefix else None
            held = self.tree.hold(q.node)
            verdict = self.add_with_prefix_held(q, tokens, to_come)
            self.tree.let(held)
            return self.state() if verdict is None else verdict

        def add_with_prefix_held(self, q: Any, tokens: int, to_come: int) -> str | None:
            if not tokens + to_come + self.ps < self.left():
                return "NO_TOKEN"
            whole, most = self.up(tokens), self.rem_ch
            needed = self.window_need(whole, to_come)
            if needed >= self.window_left():
                room = self.window_left() - self.window_need(0, to_come)
                room = max(0, room) // self.ps * self.ps
                if most is None or needed < self.window_pool or not room:
                    return "NO_TOKEN"
                most = min(most, room)
            if self.rem_ch is None and self.can and whole >= self.rem_in:
                return "OTHER"
            is_cut = most is not None and whole > most
            if is_cut:
                if self.chunked is not None and self.a.schedule_policy == "shortest-prefill-first":
                    return "OTHER"
                tokens = (q.prefix + most // self.ps * self.ps) // self.ps * self.ps - q.prefix
                if tokens <= 0:
                    return "OTHER"
                self.new_chunked = q
            q.end, q.lock = q.prefix + tokens, self.tree.hold(q.node)
            self.can.append(q)
            self.reserve(tokens, 0 if is_cut else min(q.max_new, CLIP))
            return None

        def add_one_of_known_length(self, q: Any, tokens: int, to_come: int) -> str:
            fits = self.up(tokens) + self.ps <= min(self.left(True), self.left())
            if not fits or self.window_need(tokens, to_come) > self.window_left():
                return "NO_TOKEN"
            most = tokens if self.rem_ch is None else min(tokens, self.rem_ch)
            if most <= 0:
                return "OTHER"
            q.end = q.prefix + most
            self.can.append(q)
            if most < tokens:
                self.new_chunked = q
            self.reserve(most, min(q.max_new, CLIP) if most == tokens else 0)
            return self.state()

        def continue_chunk(self, q: Any, limit: int | None) -> Any:
            most = min(self.rem_ch, int(self.left()), self.window_left() - self.ps)
            if most <= 0:
                return q  # it waits
            most = most if limit is None else min(most, limit)
            left = q.seq - q.prefix
            q.end = q.prefix + min(left, most)
            self.can.append(q)
            self.reserve(min(left, most), min(q.max_new, CLIP) if left <= most else 0)
            return q if left > most else None

        def plan(self) -> Any:
            batch = super().plan()
            self.given_up += self.aborted
            return batch

        def launch(self, batch: Any) -> Any:
            result = super().launch(batch)
            self.log[-1].update(
                free_swa_tokens=self.window_free,
                evictable_swa_tokens=self.tree.window_evictable,
                protected_swa_tokens=self.tree.window_protected,
            )
            return result

    return TwoPools
