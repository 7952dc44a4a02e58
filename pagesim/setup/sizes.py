"""Sizes as people write them: 8k and 8K tokens, 40GiB of memory."""

from __future__ import annotations

import re

from pagesim.hardware.tier_spec import parse_capacity

GIB_OPTIONS = frozenset({"cpu_offload_gb", "kv_offloading_size"})
"""Options measured in GiB."""

BYTE_OPTIONS = frozenset({"kv_cache_memory_bytes"})
"""Options measured in bytes."""

_COUNT = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_SUFFIXES = "kmgt"


def readable(text: str) -> int:
    """Parse a whole number as vLLM reads it: 32k is 32,000 and 32K is 32,768.

    Raises:
        ValueError: it is not a whole number.
    """
    found = _COUNT.fullmatch(text.strip())
    if found is None:
        return int(text)
    number, suffix = found.groups()
    power = _SUFFIXES.index(suffix.lower()) + 1
    return int(number) * 1024**power if suffix.isupper() else int(float(number) * 1000**power)


def size_of(option: str, value: str) -> float | str:
    """Return the number of a size with a suffix or a unit; return any other text unchanged."""
    text = value.strip()
    if option in GIB_OPTIONS and text.endswith("B"):
        return parse_capacity(option, text) / 2**30
    if option in BYTE_OPTIONS and text.endswith("B"):
        return parse_capacity(option, text)
    return readable(text) if _COUNT.fullmatch(text) else value
