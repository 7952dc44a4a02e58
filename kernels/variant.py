"""What attention of some models has beside the scaled softmax: a sliding window, a soft cap, sinks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from operator import index
from typing import Any

import torch
from torch import Tensor

from pagesim.errors import PagesimError
from pagesim.kernels.cache import LOG2_E
from pagesim.kernels.checks import bounds_are_checked, check_tensor


@dataclass(frozen=True, eq=False)
class Variant:
    """How a layer's attention differs from softmax over all tokens so far; checked once, when it is made.

    Args:
        window: how many tokens a query sees, its own included (Mistral, Gemma, gpt-oss); None for all so far.
            What lies before it is not read: its blocks may be freed.
        softcap: c in ``c · tanh(score / c)``, which scores become (Gemma 2); None for none.
        sinks: a learned score for each query head, float32 ``[q_heads]``, that takes part in the softmax
            and has no value (gpt-oss); neither scaled nor capped; minus infinity for a head without one. None
            for none.

    Raises:
        PagesimError: one of them is out of range.
    """

    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None

    def __post_init__(self) -> None:
        if self.window is not None:
            try:
                index(self.window)
            except TypeError:
                raise PagesimError(f"window is {self.window!r}; a whole number is needed") from None
            if not 1 <= self.window < 2**31:
                raise PagesimError(f"window is {self.window}; 1 to {2**31 - 1} tokens are allowed")
        if self.softcap is not None and not (isfinite(self.softcap) and self.softcap > 0):
            raise PagesimError(f"softcap is {self.softcap}; a positive number is needed, None for no cap")
        if self.sinks is not None:
            check_tensor("sinks", self.sinks, ("q_heads",), (torch.float32,), contiguous=True)
            if bounds_are_checked(self.sinks) and (wrong := ~(self.sinks < float("inf"))).any():
                head = int(wrong.nonzero()[0])
                raise PagesimError(
                    f"sinks[{head}] is {float(self.sinks[head])}; a number is needed, -inf for no sink"
                )

    def check(self, q: Tensor) -> None:
        """Check the sinks against queries ``[…, q_heads, D]``.

        Raises:
            PagesimError: they are of other heads, or on another device.
        """
        if self.sinks is not None:
            check_tensor("sinks", self.sinks, (q.shape[-2],), (torch.float32,), q.device)

    @cached_property
    def as_given(self) -> dict[str, Any]:
        """All three, as the references take them."""
        return {"window": self.window, "softcap": self.softcap, "sinks": self.sinks}

    def arguments(self, scale: float, unread: Tensor) -> dict[str, Any]:
        """Return what the kernels take, the scale of scores among it.

        Under a cap products of queries and keys become ``tanh(inner · product / (2 log₂ e))`` and these have
        the cap for a scale.

        Args:
            scale: of the products, log₂ e included.
            unread: a tensor in the place of sinks where there are none.
        """
        capped = self.softcap is not None
        return {
            "window": self.window or 0,
            "inner": 2 * scale / self.softcap if self.softcap else 0.0,
            "scale": self.softcap * LOG2_E if self.softcap else scale,
            "sinks": unread if self.sinks is None else self.sinks,
            "WINDOWED": self.window is not None,
            "CAPPED": capped,
            "SINKS": self.sinks is not None,
        }


PLAIN = Variant()
"""Softmax over all tokens so far."""
