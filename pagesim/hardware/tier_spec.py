"""TierSpec: a memory tier behind the device, as described by ``--tier``: capacity, links and position."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pagesim.errors import PagesimError
from pagesim.eviction import EVICTION_POLICIES, OFFLINE
from pagesim.hardware.gpu_spec import Link

__all__ = ["NVME", "RDMA", "TierSpec", "parse_capacity", "parse_tiers"]

NVME = (
    Link(6.5e9, 80e-6, "NVMe PCIe 4.0 x4 (Samsung PM9A3 U.2 as announced): 6.5 GB/s read; typical latency"),
    Link(
        3.5e9, 20e-6, "NVMe PCIe 4.0 x4 (Samsung PM9A3 U.2 as announced): 3.5 GB/s written; typical latency"
    ),
)
"""Links out of a solid-state drive and into it."""

RDMA = Link(25e9, 10e-6, "one port of 200 Gb/s, 25 GB/s on the wire each way, peak; typical latency")
"""Link to or from a store on another machine, the same in both directions."""

BYTES = {
    **{f"{prefix}B": 10 ** (3 * power) for power, prefix in enumerate(("", "K", "M", "G", "T", "P"))},
    **{f"{prefix}iB": 1 << (10 * power) for power, prefix in enumerate("KMGTP", 1)},
}
SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}

PLACES = ("in-line", "direct")
COPIES = ("inclusive", "exclusive")
EVICTIONS = ("lru", "arc", "never", "lru-chunk", "arc-textbook")
"""vLLM's own policies, no eviction, and prefix-cache policies (``pagesim.eviction``) under distinct names."""

GRAMMAR = "NAME:CAPACITY[:BANDWIDTH[:BANDWIDTH INTO IT]][:LATENCY][:EVICTION][:exclusive][:direct]"
EXAMPLE = "host:64GiB:25GB/s or ssd:1TiB:6.5GB/s:3.5GB/s:80us"

_QUANTITY = re.compile(r"(\d+(?:\.\d*)?(?:e[+-]?\d+)?|inf)\s*([A-Za-zµ]+)(/s)?", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class TierSpec:
    """One tier of a chain behind the device.

    Attributes:
        name: name of the tier, unique in its chain.
        capacity_bytes: capacity for KV; None if unlimited.
        load: link out of the tier, towards the device.
        store: link into the tier.
        exclusive: whether it stores what the tier above evicts, and drops what is loaded; an inclusive tier
            gets a copy of everything written to the tier above.
        direct: whether its links connect to the device, in parallel to those of the tiers above; otherwise
            all transfers pass through the tier above.
        eviction: name of the eviction policy.
    """

    name: str
    capacity_bytes: int | None
    load: Link
    store: Link
    exclusive: bool = False
    direct: bool = False
    eviction: str = "lru"


def parse_tiers(texts: Sequence[str], host: tuple[Link, Link]) -> tuple[TierSpec, ...]:
    """Parse a chain of tiers, starting with the one closest to the device.

    By default, tiers called ``ssd`` and ``remote`` have the datasheet links `NVME` and `RDMA`; others have
    the host links.

    Args:
        texts: one text per tier, in the form of ``GRAMMAR``. The first bandwidth is out of the tier; alone,
            it holds for both directions.
        host: links from host memory to the device, and from the device to host memory.

    Raises:
        PagesimError: a text is not a tier, a name occurs twice, or a tier other than the first is exclusive
            and direct, so that nothing leads to it from the tier above.
    """
    tiers = tuple(_tier(text, host) for text in texts)
    for place, tier in enumerate(tiers):
        if tier.name in [other.name for other in tiers[:place]]:
            raise PagesimError(f"tier is {texts[place]!r}; there is a tier {tier.name} already: rename one")
        if place and tier.exclusive and tier.direct:
            raise PagesimError(
                f"tier is {texts[place]!r}; an exclusive tier takes what {tiers[place - 1].name} evicts, so "
                "it must be in line: leave out direct, or exclusive"
            )
    return tiers


def parse_capacity(option: str, text: str) -> int:
    """Parse an option's capacity, such as ``64GiB``, into bytes.

    Raises:
        PagesimError: the text is not a capacity, or is unlimited.
    """
    found = _QUANTITY.fullmatch(text.strip())
    if not found or found[2] not in BYTES or found[3] or found[1].lower() == "inf":
        raise PagesimError(f"{option} is {text!r}; it must be a number with a unit of bytes, such as 64GiB")
    return int(float(found[1]) * BYTES[found[2]])


def _tier(text: str, host: tuple[Link, Link]) -> TierSpec:
    name, *fields = [field.strip() for field in text.split(":")]
    if not _NAME.fullmatch(name) or name == "device":
        raise PagesimError(
            f"tier is {text!r}; it must be {GRAMMAR}, such as {EXAMPLE}, with a name that begins with a "
            "letter and is not device"
        )
    online = (name for name in EVICTION_POLICIES.names() if name not in OFFLINE)
    evictions = tuple(dict.fromkeys((*EVICTIONS, *online)))
    words = [field for field in fields if field in (*PLACES, *COPIES, *evictions)]
    sizes, rates, waits = _quantities(text, [field for field in fields if field not in words])
    if len(sizes) != 1 or len(rates) > 2 or len(waits) > 1:
        raise PagesimError(
            f"tier is {text!r}; it has {len(sizes)} capacities, {len(rates)} bandwidths and {len(waits)} "
            "latencies; it must have one capacity, at most two bandwidths and at most one latency"
        )
    for choice in (PLACES, COPIES, evictions):
        if sum(word in choice for word in words) > 1:
            raise PagesimError(f"tier is {text!r}; it can be one of {', '.join(choice)}, not several")
    load, store = {"ssd": NVME, "remote": (RDMA, RDMA)}.get(name, host)
    return TierSpec(
        name,
        None if sizes[0] == float("inf") else int(sizes[0]),
        _given(load, rates[:1], waits, text),
        _given(store, rates[-1:], waits, text),
        exclusive="exclusive" in words,
        direct="direct" in words,
        eviction=next((word for word in words if word in evictions), EVICTIONS[0]),
    )


def _quantities(text: str, fields: Sequence[str]) -> tuple[list[float], list[float], list[float]]:
    """Return capacities in bytes, bandwidths in bytes/s and latencies in seconds, in order of appearance."""
    sizes: list[float] = []
    rates: list[float] = []
    waits: list[float] = []
    for field in fields:
        found = _QUANTITY.fullmatch(field)
        number, unit, rate = found.groups() if found else ("", "", None)
        if found and unit in BYTES:
            value = float(number) * BYTES[unit]
            if rate and not value > 0:
                raise PagesimError(f"tier is {text!r}; its bandwidth {field} must be above 0")
            (rates if rate else sizes).append(value)
        elif found and unit in SECONDS and not rate and float(number) < 1e6:
            waits.append(float(number) * SECONDS[unit])
        else:
            raise PagesimError(
                f"tier is {text!r}; {field!r} is none of a capacity (64GiB), a bandwidth (25GB/s), a latency "
                f"(10us), {', '.join((*EVICTIONS, *COPIES, *PLACES))}; the whole must be {GRAMMAR}"
            )
    return sizes, rates, waits


def _given(link: Link, rates: Sequence[float], waits: Sequence[float], text: str) -> Link:
    """Return a link with its bandwidth and latency replaced by those given, if any."""
    if not rates and not waits:
        return link
    if not rates:
        return Link(link.bytes_per_s, waits[0], f"{link.note}; latency as given by --tier {text}")
    latency = "" if waits else "; latency not given: none"
    return Link(rates[0], waits[0] if waits else 0.0, f"given by --tier {text}{latency}")
