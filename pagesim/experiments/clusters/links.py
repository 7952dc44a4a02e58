"""Links: how long it takes to pull blocks from one replica to another."""

from __future__ import annotations

from pagesim.errors import PagesimError, brief
from pagesim.hardware import GpuSpec, Link
from pagesim.hardware.gpu_spec import parse_link
from pagesim.sim.clock import to_ticks

INFINITE = "infinite"


def pull_link(text: str | None, gpu: GpuSpec) -> Link:
    """Return each GPU's link to those of other replicas.

    Args:
        text: ``BANDWIDTH[:LATENCY]``, or ``infinite`` for transfers that take no time; None for the
            datasheet's link to another GPU in the same server.
        gpu: the GPUs.

    Raises:
        PagesimError: the text has neither form.
    """
    if text is None:
        peer, note = gpu.peer, f"link between replicas: {gpu.name} to {gpu.name}, {gpu.peer.note}"
        return Link(peer.bytes_per_s, peer.latency_s, note)
    if text == INFINITE:
        return Link(float("inf"), 0.0, "link infinite: pulls take no time")
    try:
        link = parse_link(text)
    except ValueError as error:
        raise PagesimError(f"link is {brief(text, 200)}: {error}, or {INFINITE}") from None
    return Link(link.bytes_per_s, link.latency_s, f"link {text}: as given, for each GPU")


class Ports:
    """The network ports of all replicas, each of which carries one pull at a time.

    A pull starts once the ports of both its prefiller and its decoder are free, in the order of submission.
    It occupies both for its latency and until its last byte has arrived.

    Args:
        link: link of each port.
        block_bytes: size of a block on each GPU; every GPU of a replica has its own link.
    """

    def __init__(self, link: Link, block_bytes: int) -> None:
        self.link = link
        self.block_bytes = block_bytes
        self._free_at: dict[tuple[str, int], int] = {}

    def pull(self, prefiller: int, decoder: int, blocks: int, now: int) -> int:
        """Start pulling blocks; return when they arrive, in ticks."""
        ends = [("prefill", prefiller), ("decode", decoder)]
        start = max(now, *[self._free_at.get(port, 0) for port in ends])
        took = self.link.latency_s + blocks * self.block_bytes / self.link.bytes_per_s
        over = start + to_ticks(took)
        self._free_at.update(dict.fromkeys(ends, over))
        return over
