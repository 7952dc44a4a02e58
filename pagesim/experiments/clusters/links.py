"""Links: what it takes to pull blocks from one replica to another."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pagesim.costs.specs import GpuSpec
from pagesim.errors import PagesimError, brief
from pagesim.sim.clock import LONGEST_S, to_ticks

INFINITE = "infinite"

_UNITS = {
    "B/s": 1.0,
    "kB/s": 1e3,
    "MB/s": 1e6,
    "GB/s": 1e9,
    "TB/s": 1e12,
    "MiB/s": 2.0**20,
    "GiB/s": 2.0**30,
    "Gb/s": 1e9 / 8,
    "Mb/s": 1e6 / 8,
}
_TIMES = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}  # in a second
_NUMBER = r"(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)"


@dataclass(frozen=True, slots=True)
class PullLink:
    """A link between replicas, as each GPU has one.

    Attributes:
        bytes_per_s: in one direction; infinite for no time at all.
        latency_s: from the request for blocks to their first byte.
        note: where these come from.
    """

    bytes_per_s: float
    latency_s: float
    note: str

    def ticks(self, bytes_: int) -> int:
        """Return the ticks until so many bytes are there, once they have the link for themselves."""
        return to_ticks(self.latency_s + bytes_ / self.bytes_per_s)


def parse_link(text: str) -> PullLink:
    """Return the link that ``RATE[:LATENCY]`` says, such as ``25GB/s`` or ``200Gb/s:20us``.

    ``infinite`` is a link that takes no time.

    Raises:
        PagesimError: it says nothing of the kind.
    """
    if text == INFINITE:
        return PullLink(float("inf"), 0.0, "link infinite: pulls take no time")
    rate, _, latency = text.partition(":")
    rated = re.fullmatch(f"{_NUMBER}({'|'.join(_UNITS)})", rate)
    timed = re.fullmatch(f"{_NUMBER}({'|'.join(_TIMES)})", latency) if latency else None
    if rated is not None and (timed is not None or not latency):
        bytes_per_s = float(rated[1]) * _UNITS[rated[2]]
        latency_s = 0.0 if timed is None else float(timed[1]) / _TIMES[timed[2]]
        if bytes_per_s >= 1 and latency_s <= LONGEST_S:
            return PullLink(bytes_per_s, latency_s, f"link {text}: as given, for each GPU")
    raise PagesimError(
        f"link is {brief(text, 200)}; it must be {INFINITE} or RATE[:LATENCY] of at least 1B/s, such as "
        f"25GB/s or 200Gb/s:20us, in {', '.join(_UNITS)} and {', '.join(_TIMES)}"
    )


def link_of(gpu: GpuSpec) -> PullLink:
    """Return the link of a GPU to another one of its server, from its datasheet."""
    peer = gpu.peer
    return PullLink(
        peer.bytes_per_s, peer.latency_s, f"link between replicas: {gpu.name} to {gpu.name}, {peer.note}"
    )


class Ports:
    """The ports of all replicas: what is pulled through one waits in line.

    A pull takes the port of the prefiller and that of the decoder from when both are free, in the order in
    which pulls begin, until its last byte; its latency counts before.

    Args:
        link: of each port.
        block_bytes: of a block on each GPU; the GPUs of a replica have a link each.
    """

    def __init__(self, link: PullLink, block_bytes: int) -> None:
        self.link = link
        self.block_bytes = block_bytes
        self._free_at: dict[tuple[str, int], int] = {}

    def pull(self, prefiller: int, decoder: int, blocks: int, now: int) -> int:
        """Begin to pull blocks; return when they are there, in ticks."""
        ends = [("prefill", prefiller), ("decode", decoder)]
        start = max(now, *[self._free_at.get(port, 0) for port in ends])
        over = start + self.link.ticks(blocks * self.block_bytes)
        self._free_at.update(dict.fromkeys(ends, over))
        return over
