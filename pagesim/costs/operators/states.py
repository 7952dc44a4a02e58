"""Gated delta nets: seconds of one layer's convolution and recurrence, the sum of their kernels."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pagesim.costs.operators.planes import Plane
from pagesim.costs.operators.tables import Chip, OperatorTable

FAMILY = "states"
DECODE, PROMPTS = "generation", "context"


class DeltaNet(NamedTuple):
    """Timings of one recurrent layer (gated delta rule).

    Attributes:
        decode: seconds over sequences; the length is 1.
        prompts: seconds over prompts and their length.
        table: source table.
        notes: what was substituted, one sentence each.
    """

    decode: Plane
    prompts: Plane
    table: OperatorTable
    notes: tuple[str, ...]


def delta_net(chip: Chip, hidden: int, k_heads: int, v_heads: int) -> DeltaNet | None:
    """Return the timings of a gated delta net; None if none was timed.

    For an untimed shape, the most similar one is used, times the ratio of value heads.

    Args:
        chip: the GPU and its measurements.
        hidden: width of the residual stream.
        k_heads: key heads on the GPU.
        v_heads: value heads on the GPU.
    """
    decoding, prompting = chip.tables.find(FAMILY, DECODE), chip.tables.find(FAMILY, PROMPTS)
    if not decoding or not prompting:
        return None
    wanted = np.array([hidden, k_heads, v_heads], np.float64)
    keys = decoding[0].keys.astype(np.float64)
    nearest = decoding[0].keys[np.abs(np.log(keys / wanted)).sum(1).argmin()].tolist()
    decode_row, prompt_row = decoding[0].row(*nearest), prompting[0].row(*nearest)
    if decode_row is None or prompt_row is None:
        return None
    decode = Plane.prompting(decoding[0].axes, decode_row)
    prompts = Plane.prompting(prompting[0].axes, prompt_row)
    ratio, notes = 1.0, []
    if nearest != [hidden, k_heads, v_heads]:
        ratio = v_heads / nearest[2]
        notes.append(
            f"gated delta nets of {k_heads} and {v_heads} heads were not timed: those of {nearest[1]} and "
            f"{nearest[2]} count, times the ratio of value heads"
        )
    return DeltaNet(decode.scaled(ratio), prompts.scaled(ratio), prompting[0], tuple(notes))
