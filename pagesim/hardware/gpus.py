"""GPUs by name: the rows of ``gpus.json``, converted to the units of `GpuSpec`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pagesim.errors import PagesimError, brief
from pagesim.hardware.gpu_spec import GIB, AllReduces, GpuSpec, Link
from pagesim.setup.plugins import Plugins

__all__ = ["GIB", "GPUS", "GpuSpec", "Link", "gpu", "gpus"]

_SHEETS = json.loads(Path(__file__).with_name("gpus.json").read_text(encoding="utf-8"))


def _all_reduces(name: str) -> AllReduces | None:
    """Return the all-reduces measured over a link, converted from KiB and microseconds."""
    row = next((row for row in _SHEETS["all_reduces"] if name in row["links"]), None)
    if row is None:
        return None
    seconds = {int(gpus): tuple(us / 1e6 for us in each) for gpus, each in row["us_by_gpus"].items()}
    return AllReduces(tuple(size * 1024 for size in row["kib"]), seconds, row["source"])


def _link(row: Mapping[str, Any]) -> Link:
    rate = round(row["gb_per_s"] * 1e9, 3)
    return Link(rate, row["latency_us"] / 1e6, row["note"], _all_reduces(row["name"]))


_LINKS = {row["name"]: _link(row) for row in _SHEETS["links"]}


def _spec(row: Mapping[str, Any]) -> GpuSpec:
    """Convert a row with memory in GiB and rates in TFLOP/s and GB/s to bytes and seconds."""
    rates = {f"fp{bits}_flops": row.get(f"fp{bits}_tflops") for bits in (16, 8, 4)}
    fields: dict[str, Any] = {key: rate and rate * 1e12 for key, rate in rates.items()}
    fields |= {key: row.get(key) for key in ("name", "nominal_bytes", "source", "listed_mib", "capability")}
    return GpuSpec(
        memory_bytes=int(row["memory_gib"] * GIB),
        hbm_bytes_per_s=row["hbm_gb_per_s"] * 1e9,
        host=_LINKS[row["host"]],
        peer=_LINKS[row["peer"]],
        half_rate=row.get("half_rate", False),
        **fields,
    )


_GPUS = {row["name"]: _spec(row) for row in _SHEETS["gpus"]}

GPUS: Plugins[GpuSpec] = Plugins("gpu", "pagesim.gpus", _GPUS)
"""GPUs by name, including those of plugins."""


def _letters(name: str) -> str:
    """Return a GPU's name without its vendor, spaces and punctuation: NVIDIA GeForce RTX 4090 is rtx4090."""
    return re.sub(r"nvidia|geforce|amd|instinct|radeon|[^a-z0-9]", "", name.lower())


_BY_LETTERS = {_letters(name): spec for name, spec in _GPUS.items()}


def gpu(name: str) -> GpuSpec:
    """Return the GPU of that name, however it is hyphenated.

    Raises:
        PagesimError: there is no such GPU; the message lists similar names.
    """
    if name.lower() not in _GPUS and name in GPUS:
        return GPUS.find(name)
    spec = _BY_LETTERS.get(_letters(name))
    if spec is None:
        begun = [each for each in _GPUS if _letters(each).startswith(_letters(name)) and _letters(name)]
        near = begun or get_close_matches(name.lower()[:100], _GPUS, n=5, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(_GPUS)}"
        raise PagesimError(f"no GPU is named {brief(name, 1000)}; {hint}")
    return spec


def gpus() -> tuple[GpuSpec, ...]:
    """Return all known GPUs."""
    return tuple(GPUS.find(name) for name in GPUS.names())
