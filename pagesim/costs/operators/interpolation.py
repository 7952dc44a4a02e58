"""Arrays of seconds between, before and beyond the sizes that were measured."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pagesim.costs.operators.tables import Floats, Ints


def line(
    sizes: npt.ArrayLike, seconds: Floats, wanted: npt.ArrayLike, *, power: float = 1.0, log: bool = False
) -> Floats:
    """Return seconds at other sizes of the last axis, straight between those measured, ``[..., W]``.

    Below the first size they are its; beyond the last the line through the last two goes on, and never falls.

    Args:
        sizes: measured, rising, ``[S]``.
        seconds: of each, ``[..., S]``.
        wanted: any sizes, ``[W]``.
        power: of sizes, over which seconds are straight.
        log: whether they are straight in the logarithms of both instead.
    """
    if log:
        return np.exp(line(np.log(sizes), np.log(seconds), np.log(wanted)))
    at, asked = np.asarray(sizes, np.float64), np.asarray(wanted, np.float64)
    if len(at) == 1:
        return np.repeat(seconds, len(asked), -1)
    asked = np.maximum(asked, at[0])
    right = np.clip(np.searchsorted(at, asked), 1, len(at) - 1)
    beyond = asked > at[-1]
    at, asked = at**power, asked**power
    share = (asked - at[right - 1]) / (at[right] - at[right - 1])
    first, last = seconds[..., right - 1], seconds[..., right]
    rise = np.where(beyond, np.maximum(last - first, 0), last - first)
    start = np.where(beyond, last - rise, first)
    found: Floats = start + share * rise
    return found


def gapless(sizes: Ints, seconds: Floats, *, in_proportion: bool = False) -> Floats:
    """Return rows ``[R, S]`` with what is missing between or after what is known, along each row.

    Before the first that is known it is the first.

    Args:
        sizes: of the columns, rising, ``[S]``.
        seconds: NaN where nothing was measured; each row has something.
        in_proportion: whether beyond the last that is known seconds go with the size, or else along the line
            through the last two.
    """
    found = seconds.copy()
    for row in found:
        known = np.isfinite(row)
        if known.all():
            continue
        row[~known] = line(sizes[known], row[known], sizes[~known])
        if in_proportion:
            last = int(np.flatnonzero(known)[-1])
            row[last + 1 :] = row[last] * sizes[last + 1 :] / sizes[last]
    return found
