"""Links: a bandwidth, and a latency if there is one, as a text says them."""

from __future__ import annotations

import re

from pagesim.costs.specs.gpu_spec import Link

_RATES = {"kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12, "Gb/s": 1e9 / 8}
_TIMES = {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0}  # in a second
_NUMBER = r"(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)"
_LINK = re.compile(rf"{_NUMBER}({'|'.join(_RATES)})(?::{_NUMBER}({'|'.join(_TIMES)}))?")


def parse_link(text: str) -> Link:
    """Return a link from ``BANDWIDTH[:LATENCY]``, such as ``25GB/s`` or ``25GB/s:10us``.

    Raises:
        ValueError: the text is something else, or there is no bandwidth.
    """
    match = _LINK.fullmatch(text.strip())
    if match is None or not float(match[1]):
        raise ValueError("must be BANDWIDTH[:LATENCY], such as 25GB/s or 25GB/s:10us")
    latency = float(match[3]) / _TIMES[match[4]] if match[3] else 0.0
    return Link(float(match[1]) * _RATES[match[2]], latency, "as given")
