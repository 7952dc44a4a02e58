"""The order of the waiting queue, and what looking requests up does to the radix tree.

Source: SGLang 0.5.23, ``srt/managers/schedule_policy.py``, ``SchedulePolicy``.
"""

from __future__ import annotations

from pagesim.kvcache.radix import Node, RadixManager, RadixTree
from pagesim.scheduling.sglang.options import CACHE_AWARE, PolicyName, SglangOptions
from pagesim.scheduling.sglang.queue import SglangQueue
from pagesim.scheduling.sglang.request import SglangRequest
from pagesim.setup.compiled import mypyc_attr

MOST_LOOKED_UP = 128
"""Waiting requests beyond which ``lpm`` and ``hrrn`` become ``fcfs``; also the number of those touched."""

TOUCHES = 32
"""Every this many passes without look-ups, one touches the waiting requests' prefixes in the tree."""

IN_BATCH_CHECK = 32
"""A prompt with no more than this many tokens cached is compared with those waiting ahead of it."""

IN_BATCH_DEPRIORITIZE = 32
"""If it shares at least this many tokens with one of them, it waits until that one is cached."""

_LAST = float("inf")


@mypyc_attr(allow_interpreted_subclasses=True)
class SchedulePolicy:
    """Sorts the waiting queue once per admission pass.

    Args:
        options: the options, which name the order and the eviction policy of the tree.
        memory: the memory with its radix tree; None without prefix caching.
        queue: the queue to sort.
    """

    def __init__(self, options: SglangOptions, memory: RadixManager | None, queue: SglangQueue) -> None:
        name = options.schedule_policy
        self.name: PolicyName = "fcfs" if memory is None and name in CACHE_AWARE else name
        self._memory = memory
        self._queue = queue
        self._by_priority = options.enable_priority_scheduling
        self._touches = options.radix_eviction_policy == "lru"  # waiting requests, if none is looked up
        self._passes = 0

    def calc_priority(self) -> None:
        """Sort the waiting requests, and look them up in the tree or touch their prefixes there."""
        name, queue = self.name, self._queue
        crowded = queue.waiting > MOST_LOOKED_UP and name in ("lpm", "hrrn")
        if name not in CACHE_AWARE or crowded:
            if name == "lof":
                waiting = queue.first(queue.waiting)
                queue.sort(sorted(waiting, key=lambda each: (-each.importance, -each.max_new_tokens)))
            elif self._by_priority:
                waiting = queue.first(queue.waiting)
                queue.sort(sorted(waiting, key=lambda each: (-each.importance, each.entry)))
            self._touch()
            return
        assert self._memory is not None
        tree, requests = self._memory.tree, queue.first(queue.waiting)
        late = _compute_prefix_matches(tree, requests)
        if name == "dfs-weight":
            queue.sort(_depth_first(tree, requests))
        elif name == "lpm":
            queue.sort(sorted(requests, key=lambda each: _LAST if each in late else -each.matched_len))
        elif name == "hrrn":
            queue.sort(sorted(requests, key=lambda each: (self._response_ratio(each, late), str(each.row))))
        else:
            queue.sort(sorted(requests, key=lambda each: (each in late, uncached(each), each.entry)))

    def chunk_limit(self, request: SglangRequest, chunk: int, page: int) -> int | None:
        """Return how many tokens of a chunk shorter waiting prompts leave; None if there is no limit.

        Args:
            request: the request with a chunked prefill.
            chunk: prompt tokens that may run.
            page: tokens per page.
        """
        if self.name != "shortest-prefill-first" or chunk < 2 * page:
            return None
        held = 0
        for waiting in self._queue.first(self._queue.waiting):
            tokens = uncached(waiting)
            pages = -(-tokens // page) * page
            if tokens >= request.length - request.prefix_len or held + pages > chunk - page:
                break
            held += pages
        return (chunk - held) // page * page if held else None

    def _touch(self) -> None:
        memory, queue = self._memory, self._queue
        if memory is None or not self._touches or not queue.waiting:
            return
        if self._passes % TOUCHES == 0:
            for request in reversed(queue.first(MOST_LOOKED_UP)):
                assert request.content is not None
                memory.tree.match(request.content, request.length)
        self._passes += 1

    def _response_ratio(self, request: SglangRequest, late: set[SglangRequest]) -> float:
        """Return the sort key of ``hrrn``: minus the tokens processed since its entry per uncached token."""
        if request in late:
            return _LAST
        left = max(0, request.prompt - request.matched_len)
        if not left:
            return -_LAST
        return -max(0, self._queue.processed - request.processed_at_entry) / left


def uncached(request: SglangRequest) -> int:
    """Return how many tokens of a waiting request are not cached as of its last look-up, at least one."""
    return max(1, request.length - request.matched_len)


def _compute_prefix_matches(tree: RadixTree, requests: list[SglangRequest]) -> set[SglangRequest]:
    """Look up every whole prompt; return the requests that wait for others with the same beginning."""
    waiting, late = RadixTree(1), set()
    for request in requests:
        content, length = request.content, request.length
        assert content is not None
        node = tree.match(content, length)
        request.last_node = held = tree.device_part(node)
        request.matched_len = min(node.end, length - 1)
        if held.end <= IN_BATCH_CHECK:
            if waiting.match(content, length).end >= IN_BATCH_DEPRIORITIZE:
                late.add(request)
            else:
                waiting.insert(content, length)
    return late


def _depth_first(tree: RadixTree, requests: list[SglangRequest]) -> list[SglangRequest]:
    """Return requests in depth-first post-order of the tree, children with more waiting requests first."""
    at: dict[Node, list[SglangRequest]] = {}
    below: dict[Node, int] = {}
    for request in requests:
        node = request.last_node
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
