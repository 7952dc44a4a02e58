"""SGLang's waiting queue: requests in order of entry, or as a policy sorts them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice

from pagesim.scheduling.queue import WaitingQueue
from pagesim.scheduling.request import EngineRequest
from pagesim.scheduling.sglang.options import SglangOptions
from pagesim.scheduling.sglang.request import SglangRequest
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class SglangQueue(WaitingQueue):
    """A waiting queue that a policy sorts; a preempted or retracted request goes to the end.

    A full queue turns requests away, even preempted or retracted ones. With priorities it turns away the
    least important request of all, and among these the newest.

    Args:
        prepare: called once with each request before it is used in any other way.
        options: resolved options.

    Attributes:
        processed: tokens that the engine has processed.
        messages: requests that have arrived but that the loop has not received; they do not wait yet.
        turned_away: requests that a full queue has rejected and not yet reported by an iteration.
    """

    __slots__ = (
        "_by_priority",
        "_entries",
        "_looks_always",
        "_most",
        "_prepare",
        "_requests",
        "_smallest_first",
        "messages",
        "processed",
        "turned_away",
    )

    def __init__(self, prepare: Callable[[SglangRequest], None], options: SglangOptions) -> None:
        super().__init__()
        self._requests: deque[SglangRequest] = deque()
        self._prepare = prepare
        self._most = options.max_queued_requests
        self._by_priority = options.enable_priority_scheduling
        self._smallest_first = options.schedule_low_priority_values_first
        self._looks_always = options.scheduler_recv_interval == 1
        self._entries = 0
        self.processed = 0
        self.messages: list[SglangRequest] = []
        self.turned_away: list[SglangRequest] = []

    def arrive(self, now: int) -> None:
        before = self.arrived
        super().arrive(now)
        for index in range(before, self.arrived):
            request = self.arrivals.request(index, SglangRequest)
            self._prepare(request)
            if self._by_priority:
                priority = self.arrivals.priority_of(index)
                request.importance = -priority if self._smallest_first else priority
            self.waiting -= 1
            self.messages.append(request)
        if self._looks_always and self.messages:
            self.receive()

    def receive(self) -> None:
        """Move the requests that have arrived into the queue."""
        messages, self.messages = self.messages, []
        for request in messages:
            self.requeue(request)

    def first(self, most: int) -> list[SglangRequest]:
        """Return the first requests of the queue in order, at most ``most``."""
        return list(islice(self._requests, most))

    def head(self) -> SglangRequest | None:
        return self._requests[0] if self._requests else None

    def sort(self, requests: Iterable[SglangRequest]) -> None:
        """Replace the queue's order with the order of ``requests``, which are all that wait."""
        self._requests = deque(requests)

    def pop(self, request: EngineRequest) -> None:
        self.waiting -= 1
        self._requests.popleft()

    def requeue(self, request: EngineRequest) -> None:
        assert isinstance(request, SglangRequest)
        if self._most is not None and self.waiting >= self._most:
            worst = max(self._requests, key=lambda each: (-each.importance, each.entry))
            if request.importance <= worst.importance:
                self.turned_away.append(request)
                return
            self.turned_away.append(worst)
            self._requests.remove(worst)
            self.waiting -= 1
        self.waiting += 1
        self._entries += 1
        request.entry = self._entries
        request.processed_at_entry = self.processed
        self._requests.append(request)

    def abort(self, row: int) -> EngineRequest | None:
        for apart in (self.messages, self.turned_away):
            for place, request in enumerate(apart):
                if request.row == row:
                    return apart.pop(place)
        self.waiting -= 1
        found = next(each for each in self._requests if each.row == row)
        self._requests.remove(found)
        return found
