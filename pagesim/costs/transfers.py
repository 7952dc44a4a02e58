"""Transfers: start and end times of copies that queue for a link."""

from __future__ import annotations

from collections.abc import Sequence
from math import isinf

from pagesim.hardware import Link, TierSpec
from pagesim.sim.clock import TICKS_PER_SECOND, to_ticks

__all__ = ["ChainLinks", "LinkQueue", "path_to_device", "transfer_ticks"]


def transfer_ticks(link: Link, size: int) -> int:
    """Return the ticks to copy ``size`` bytes over an idle link; 0 if there is nothing to copy."""
    if not size:
        return 0
    latency = to_ticks(link.latency_s)
    if isinf(link.bytes_per_s):
        return latency
    return latency + round(size * TICKS_PER_SECOND / link.bytes_per_s)


class LinkQueue:
    """One direction of a link, which carries out its copies one by one in FIFO order.

    Args:
        link: link that determines how long a copy takes.

    Attributes:
        idle_at: end of the last copy sent, in ticks.
        busy: total ticks of its copies.
        sent: total bytes sent.
    """

    __slots__ = ("busy", "idle_at", "link", "sent")

    def __init__(self, link: Link) -> None:
        self.link = link
        self.idle_at = 0
        self.busy = 0
        self.sent = 0

    def send(self, ready: int, size: int) -> tuple[int, int]:
        """Enqueue a copy and return when it begins and ends, in ticks.

        Args:
            ready: earliest tick at which the copy itself could begin.
            size: bytes to copy.
        """
        return self.occupy(ready, transfer_ticks(self.link, size), size)

    def occupy(self, ready: int, taken: int, size: int) -> tuple[int, int]:
        """Enqueue a copy like ``send``, but with a given duration in ticks."""
        begin = max(ready, self.idle_at)
        self.idle_at = begin + taken
        self.busy += taken
        self.sent += size
        return begin, self.idle_at


class ChainLinks:
    """The links of a chain of tiers, with one queue per tier and direction.

    An in-line tier is linked to the tier above it; the first tier and direct tiers to the device.

    Args:
        tiers: tiers of the chain, starting with the one closest to the device.
    """

    __slots__ = ("loads", "stores")

    def __init__(self, tiers: Sequence[TierSpec]) -> None:
        self.loads = [LinkQueue(tier.load) for tier in tiers]
        self.stores = [LinkQueue(tier.store) for tier in tiers]

    def between(self, source: int, target: int) -> LinkQueue:
        """Return the queue from one tier to another, given their positions in the chain; -1 is the device."""
        return self.stores[target] if source < target else self.loads[source]


def path_to_device(tiers: Sequence[TierSpec], place: int) -> list[int]:
    """Return the positions of the tiers whose links a load crosses, starting with its own."""
    path = [place]
    while path[-1] and not tiers[path[-1]].direct:
        path.append(path[-1] - 1)
    return path
