"""Accepted spellings of flags that ``--help`` does not show."""

from __future__ import annotations

from collections.abc import Sequence

_SPELLINGS = {
    "n": "num-samples",
    "frontend": "frontend-latency",
    "truth": "recorded",
    "within": "max-error",
    "plots": "plot",
    "placement": "allocator",
    "request-rate": "rate",
    "tp": "tensor-parallel-size",
    "tp-size": "tensor-parallel-size",
    "context-length": "max-model-len",
    "kv-dtype": "kv-cache-dtype",
    "num-gpu-blocks-override": "num-blocks",
    "prefix-caching": "enable-prefix-caching",
    "no-prefix-caching": "no-enable-prefix-caching",
    "chunked-prefill": "enable-chunked-prefill",
    "no-chunked-prefill": "no-enable-chunked-prefill",
    "reserve-full-isl": "scheduler-reserve-full-isl",
    "no-reserve-full-isl": "no-scheduler-reserve-full-isl",
}

SHOWN = {"n": "num-samples", "frontend": "frontend-latency"}
"""Fields of a scenario whose flags say more than the field's name does."""

_SHORT = {"-tp": "--tensor-parallel-size"}


def respelled(args: Sequence[str]) -> list[str]:
    """Return the words of a command line with each flag spelled as in ``--help``."""
    words = []
    given = iter(args)
    for word in given:
        flag, sign, value = word.partition("=")
        if flag == "--burstiness":
            words += ["--cv", _variation(value if sign else next(given, ""))]
            continue
        if word in _SHORT:
            word = _SHORT[word]
        elif flag.startswith("--") and flag[2:] in _SPELLINGS:
            word = f"--{_SPELLINGS[flag[2:]]}{sign}{value}"
        words.append(word)
    return words


def _variation(burstiness: str) -> str:
    """Return the coefficient of variation of gamma arrivals with vLLM bench's shape parameter."""
    try:
        shape = float(burstiness)
    except ValueError:
        return burstiness
    return repr(shape**-0.5) if shape > 0 else burstiness
