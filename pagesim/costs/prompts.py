"""Whole prompts that were timed, as attention over new tokens and the keys that each of them attends to."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pagesim.costs.table import Floats, Table, line

Sizes = npt.NDArray[np.int64]


def whole_prompts(lengths: Sizes, batches: Sizes, seconds: Floats, launch_s: float = 0.0) -> Table:
    """Return the table over tokens and keys of prompts that were timed whole, several of one length at once.

    Tokens of which each attends to more keys than in whole prompts are a part of a longer prompt: they take
    its share, no less than as many tokens of whole prompts, and no less than a launch.

    Args:
        lengths: tokens of a prompt, rising, ``[L]``.
        batches: prompts at once, rising, ``[B]``.
        seconds: that they took, ``[L, B]``.
        launch_s: the least that any takes.
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
