"""Transfers: when copies over a link begin and end that wait for one another."""

from __future__ import annotations

from collections.abc import Sequence
from math import isinf

from pagesim.hardware import Link, TierSpec
from pagesim.sim.clock import TICKS_PER_SECOND, to_ticks

__all__ = ["ChainLinks", "LinkQueue", "path_to_device", "transfer_ticks"]


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
        return self.occupy(ready, transfer_ticks(self.link, size), size)

    def occupy(self, ready: int, taken: int, size: int) -> tuple[int, int]:
        """As ``send``, of a copy that takes so many ticks."""
        begin = max(ready, self.idle_at)
        self.idle_at = begin + taken
        self.busy += taken
        self.sent += size
        return begin, self.idle_at


class ChainLinks:
    """The links of a chain of tiers: each tier's own, a queue a direction.

    A tier in line is linked to the tier above it, the first and a direct one to the device.

    Args:
        tiers: that next to the device first.
    """

    __slots__ = ("loads", "stores")

    def __init__(self, tiers: Sequence[TierSpec]) -> None:
        self.loads = [LinkQueue(tier.load) for tier in tiers]
        self.stores = [LinkQueue(tier.store) for tier in tiers]

    def between(self, source: int, target: int) -> LinkQueue:
        """Return the queue from one tier to another, places in the chain; -1 is the device."""
        return self.stores[target] if source < target else self.loads[source]


def path_to_device(tiers: Sequence[TierSpec], place: int) -> list[int]:
    """Return the places whose links a load from a tier crosses, its own first."""
    path = [place]
    while path[-1] and not tiers[path[-1]].direct:
        path.append(path[-1] - 1)
    return path
