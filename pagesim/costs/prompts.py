"""Conversion of whole-prompt timings into attention over new tokens and the mean keys each attends to."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pagesim.costs.table import Floats, Table, line

Sizes = npt.NDArray[np.int64]


def whole_prompts(lengths: Sizes, batches: Sizes, seconds: Floats, launch_s: float = 0.0) -> Table:
    """Return a table over tokens and keys from timings of batches of whole prompts of equal length.

    Tokens that attend to more keys than in a whole prompt of their number are part of a longer prompt. They
    take their share of its time, but at least that of equally many tokens of whole prompts, or a launch.

    Args:
        lengths: tokens per prompt, rising, ``[L]``.
        batches: prompts per batch, rising, ``[B]``.
        seconds: measured seconds, ``[L, B]``.
        launch_s: minimum seconds of any point.
    """
    tokens = np.unique(np.concatenate([[1], lengths, np.multiply.outer(lengths, batches).ravel()]))
    found = np.empty((len(tokens), len(lengths)))
    for column, length in enumerate(lengths.tolist()):
        part = tokens / length
        found[:, column] = line(batches, seconds[column], part) * np.minimum(1, part / batches[0])
    for row, longest in enumerate(np.searchsorted(lengths, tokens, "right") - 1):
        longer = found[row, max(0, longest) :]
        np.maximum.accumulate(longer, out=longer)
    found = np.maximum(found, launch_s)
    axes = {"tokens": tokens.tolist(), "keys": ((lengths + 1) / 2).tolist()}
    return Table(axes=axes, seconds=found.tolist())
