"""In which order requests wait, and what looking them up does to the tree.

Source: SGLang 0.5.23, ``srt/managers/schedule_policy.py``, ``SchedulePolicy``.
"""

from __future__ import annotations

from pagesim.kvcache.radix import Node, RadixManager, RadixTree
from pagesim.scheduling.sglang.options import CACHE_AWARE, PolicyName, SglangOptions
from pagesim.scheduling.sglang.queue import SglangQueue
from pagesim.scheduling.sglang.request import SglangRequest
from pagesim.setup.compiled import mypyc_attr

MOST_LOOKED_UP = 128
"""Waiting requests beyond which ``lpm`` and ``hrrn`` are ``fcfs``, and as many as are touched."""

TOUCHES = 32
"""Of so many passes in which a queue is not looked up one touches what waits."""

IN_BATCH_CHECK = 32
"""Tokens; a prompt of which no more are cached is compared with those that wait ahead of it."""

IN_BATCH_DEPRIORITIZE = 32
"""Tokens that it has in common with one of them for which it waits until that one is cached."""

_LAST = float("inf")


@mypyc_attr(allow_interpreted_subclasses=True)
class SchedulePolicy:
    """Sorts the waiting queue, once in every pass of admission.

    Args:
        options: with the order that is asked for, and the eviction policy of the tree.
        memory: with the tree; None where no prefix is cached.
        queue: what is sorted.
    """

    def __init__(self, options: SglangOptions, memory: RadixManager | None, queue: SglangQueue) -> None:
        name = options.schedule_policy
        self.name: PolicyName = "fcfs" if memory is None and name in CACHE_AWARE else name
        self._memory = memory
        self._queue = queue
        self._by_priority = options.enable_priority_scheduling
        self._touches = options.radix_eviction_policy == "lru"  # what waits, where nothing is looked up
        self._passes = 0

    def calc_priority(self) -> None:
        """Sort what waits; look it up, or touch it, in the tree."""
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
        """Return the tokens that shorter prompts leave of a chunk; None for all of them.

        Args:
            request: whose prompt runs in chunks.
            chunk: tokens of prompts that may run.
            page: tokens of a page.
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
        """Return by what ``hrrn`` sorts: how long a request has waited over what it still has to compute."""
        if request in late:
            return _LAST
        left = max(0, request.prompt - request.matched_len)
        if not left:
            return -_LAST
        return -max(0, self._queue.processed - request.processed_at_entry) / left


def uncached(request: SglangRequest) -> int:
    """Return the tokens of a waiting request that no look-up found, at least one."""
    return max(1, request.length - request.matched_len)


def _compute_prefix_matches(tree: RadixTree, requests: list[SglangRequest]) -> set[SglangRequest]:
    """Look every prompt up, all of it; return those that wait for others that begin alike."""
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
    """Return requests in the order of the tree, depth first; where more wait below comes first."""
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
