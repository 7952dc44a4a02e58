"""In which order requests wait, and what looking them up does to the tree.

Source: SGLang 0.5.23, ``srt/managers/schedule_policy.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

from pagesim.kvcache.radix import Node, RadixKV, RadixTree
from pagesim.scheduling.sglang.options import CACHE_AWARE, SchedulePolicy
from pagesim.scheduling.sglang.queue import SglangQueue
from pagesim.scheduling.sglang.request import SglangRequest
from pagesim.setup.compiled import mypyc_attr

MOST_LOOKED_UP = 128
"""Waiting requests beyond which ``lpm`` and ``hrrn`` are ``fcfs``, and as many as are touched."""

TOUCHES = 32
"""Of so many passes in which a queue is not looked up one touches what waits."""

FOUND_LITTLE = 32
"""Tokens; a prompt of which no more are cached is compared with those that wait ahead of it."""

ALIKE = 32
"""Tokens that it has in common with one of them for which it waits until that one is cached."""

_LAST = float("inf")

_age: Callable[[SglangRequest], int] = attrgetter("entered")


@mypyc_attr(allow_interpreted_subclasses=True)
class QueueOrder:
    """Sorts the waiting queue, once in every pass of admission.

    Args:
        policy: see `SglangOptions`.
        memory: with the tree; None where no prefix is cached.
        queue: what is sorted.
        touches: whether what waits is touched now and then where nothing is looked up: under ``lru``.
    """

    __slots__ = ("_memory", "_passes", "_queue", "_touches", "policy")

    def __init__(
        self, policy: SchedulePolicy, memory: RadixKV | None, queue: SglangQueue, *, touches: bool
    ) -> None:
        self.policy: SchedulePolicy = "fcfs" if memory is None and policy in CACHE_AWARE else policy
        self._memory = memory
        self._queue = queue
        self._touches = touches
        self._passes = 0

    def sort(self) -> None:
        """Sort what waits; look it up, or touch it, in the tree."""
        policy, queue = self.policy, self._queue
        crowded = queue.waiting > MOST_LOOKED_UP and policy in ("lpm", "hrrn")
        if policy not in CACHE_AWARE or crowded:
            if policy == "lof":
                queue.sort(sorted(queue.first(), key=lambda request: -request.max_new))
            self._touch()
            return
        requests = queue.first()
        late = self._look_up(requests)
        if policy == "dfs-weight":
            assert self._memory is not None
            queue.sort(_depth_first(self._memory.tree, requests))
        elif policy == "lpm":
            queue.sort(sorted(requests, key=lambda each: _LAST if each in late else -each.matched))
        elif policy == "hrrn":
            queue.sort(sorted(requests, key=lambda each: (self._response(each, late), str(each.row))))
        else:
            queue.sort(sorted(requests, key=lambda each: (each in late, uncached(each), _age(each))))

    def _touch(self) -> None:
        memory, queue = self._memory, self._queue
        if memory is None or not self._touches or not queue.waiting:
            return
        if self._passes % TOUCHES == 0:
            for request in reversed(queue.first(MOST_LOOKED_UP)):
                assert request.content is not None
                memory.tree.match(request.content, request.length)
        self._passes += 1

    def _look_up(self, requests: list[SglangRequest]) -> set[SglangRequest]:
        """Look every prompt up, all of it; return those that wait for others that begin alike."""
        assert self._memory is not None
        tree = self._memory.tree
        waiting, late = RadixTree(1), set()
        for request in requests:
            content, length = request.content, request.length
            assert content is not None
            request.node = node = tree.match(content, length)
            request.matched = min(node.end, length - 1)
            if node.end <= FOUND_LITTLE:
                if waiting.match(content, length).end >= ALIKE:
                    late.add(request)
                else:
                    waiting.insert(content, length)
        return late

    def _response(self, request: SglangRequest, late: set[SglangRequest]) -> float:
        """Return by what ``hrrn`` sorts: how long a request has waited over what it still has to compute."""
        if request in late:
            return _LAST
        left = max(0, request.prompt - request.matched)
        if not left:
            return -_LAST
        return -max(0, self._queue.processed - request.processed) / left


def uncached(request: SglangRequest) -> int:
    """Return the tokens of a waiting request that no look-up found, at least one."""
    return max(1, request.length - request.matched)


def _depth_first(tree: RadixTree, requests: list[SglangRequest]) -> list[SglangRequest]:
    """Return requests in the order of the tree, depth first; where more wait below comes first."""
    at: dict[Node, list[SglangRequest]] = {}
    below: dict[Node, int] = {}
    for request in requests:
        node: Node | None = request.node
        assert node is not None
        at.setdefault(node, []).append(request)
        while node is not None:
            below[node] = below.get(node, 0) + 1
            node = node.parent
    found: list[SglangRequest] = []

    def walk(node: Node) -> None:
        waiting = [child for child in node.children.values() if child in below]
        for child in sorted(waiting, key=lambda child: -below[child]):
            walk(child)
        found.extend(at.get(node, ()))

    walk(tree.root)
    return found
