"""Links to host memory: as measured by the swap benchmark, else from the GPU's datasheet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pagesim.hardware import GpuSpec, Link
from pagesim.models import ModelSpec

if TYPE_CHECKING:
    from pagesim.costs.profiles import Profile
    from pagesim.costs.table import Table

__all__ = ["host_links"]


def host_links(
    gpu: GpuSpec, profile: Profile | None = None, model: ModelSpec | None = None
) -> tuple[Link, Link]:
    """Return the links from host memory to the device, and from the device to host memory.

    Args:
        gpu: GPU whose datasheet is used for unmeasured links.
        profile: profile whose measured transfers are used.
        model: model of the profile; its KV bytes turn times into bandwidths.
    """
    if profile is None or model is None:
        return gpu.host, gpu.host
    token = model.kv_bytes_per_token(profile.kv_dtype, profile.tp)
    found = []
    for term in ("swap_in", "swap_out"):
        measured = profile.origins.get(term) == "measured"
        found.append(_measured(profile, term, token) if measured else gpu.host)
    return found[0], found[1]


def _measured(profile: Profile, term: str, token: int) -> Link:
    """Return the link that explains a term's measured transfers at the largest block size."""
    tables: dict[int, Table] = profile.terms.whole(term)
    size = max(tables)
    table, block = tables[size], token * max(size, 1)
    least, most = table.knots[0][0], table.knots[0][-1]
    moved, taken = (most - least) * block, table(most) - table(least)
    if moved and taken > 0:
        rate = moved / taken
        latency = max(0.0, table(least) - least * block / rate)
    else:  # one size was measured: all of its time counts as bandwidth
        rate, latency = most * block / table(most), 0.0
    return Link(rate, latency, f"measured: {term.replace('_', ' ')} of profile {profile.name}")
