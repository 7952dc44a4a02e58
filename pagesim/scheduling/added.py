"""Arrivals that become known to a scheduler one at a time: from a router or a closed loop."""

from __future__ import annotations

from array import array

from pagesim.scheduling.arrivals import Arrivals
from pagesim.scheduling.content import Content
from pagesim.scheduling.request import Family


class AddedArrivals(Arrivals):
    """The requests that one engine has been given so far; each appends a row.

    Args:
        whole: all requests of the trace.
    """

    def __init__(self, whole: Arrivals) -> None:
        self.whole = whole
        self._index = array("q")
        self._content: dict[int, Content] = {}  # by index, until the request is made
        self._place: dict[int, int] = {}  # indices by row of the trace
        self.row, self.ticks, self.prompt, self.output, self.samples = (
            column[:0] for column in (whole.row, whole.ticks, whole.prompt, whole.output, whole.samples)
        )
        self.widest = whole.widest
        self.has_beams = whole.has_beams
        self._contents = whole._contents

    def add(self, index: int, ticks: int) -> None:
        """Add a request that arrives at ``ticks``; requests must be added in order of arrival."""
        whole = self.whole
        row = whole.row[index]
        self._place[row] = len(self._index)
        self.row.append(row)
        self.ticks.append(ticks)
        self.prompt.append(whole.prompt[index])
        self.output.append(whole.output[index])
        self.samples.append(whole.samples[index])
        content = whole.content_of(index)
        if content is not None:
            self._content[len(self._index)] = content
        self._index.append(index)

    def index_of(self, row: int) -> int:
        return self._place[row]

    def priority_of(self, index: int) -> int:
        return self.whole.priority_of(self._index[index])

    def draw_seed(self, index: int) -> int:
        return self.whole.draw_seed(self._index[index])

    def family_of(self, index: int) -> Family:
        return self.whole.family_of(self._index[index])

    def content_of(self, index: int) -> Content | None:
        return self._content.pop(index, None)  # each request is made only once
