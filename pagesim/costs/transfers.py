"""Transfers: when copies over a link begin and end that wait for one another."""

from __future__ import annotations

from math import isinf

from pagesim.costs.specs import Link
from pagesim.sim.clock import TICKS_PER_SECOND, to_ticks

__all__ = ["LinkQueue", "transfer_ticks"]


def transfer_ticks(link: Link, size: int) -> int:
    """Return the ticks of a copy of so many bytes over an idle link; nothing takes no time."""
    if not size:
        return 0
    latency = to_ticks(link.latency_s)
    if isinf(link.bytes_per_s):
        return latency
    return latency + round(size * TICKS_PER_SECOND / link.bytes_per_s)


class LinkQueue:
    """One direction of a link: its copies are carried out one after another, as they were sent.

    Args:
        link: gives what a copy takes.

    Attributes:
        idle_at: when the last copy that was sent ends, in ticks.
        busy: ticks that its copies take, together.
        sent: bytes that were sent.
    """

    __slots__ = ("busy", "idle_at", "link", "sent")

    def __init__(self, link: Link) -> None:
        self.link = link
        self.idle_at = 0
        self.busy = 0
        self.sent = 0

    def send(self, ready: int, size: int) -> tuple[int, int]:
        """Send a copy, and return when it begins and ends, in ticks.

        Args:
            ready: when it can begin, as far as it is concerned.
            size: bytes.
        """
        begin = max(ready, self.idle_at)
        taken = transfer_ticks(self.link, size)
        self.idle_at = begin + taken
        self.busy += taken
        self.sent += size
        return begin, self.idle_at
