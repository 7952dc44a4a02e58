"""Matrix products: seconds of an [m, k] by [k, n] product with weights of one type."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pagesim.costs.operators.bounds import product_bound
from pagesim.costs.operators.dtypes import BF16, STANDS_IN, in_words, weights_of
from pagesim.costs.operators.products import Product
from pagesim.costs.operators.tables import Chip, Floats, Ints, OperatorTable
from pagesim.costs.table import isotonic, line

FAMILY = "gemm"


class Products:
    """Seconds of matrix products on a GPU, of any weight type.

    Args:
        chip: the GPU and its measurements.

    Attributes:
        used: the tables that were looked up, by weight type.
        notes: what was substituted, one sentence each.
    """

    def __init__(self, chip: Chip) -> None:
        self._chip = chip
        self.used: dict[str, OperatorTable] = {}
        self.notes: list[str] = []

    def seconds(self, products: Sequence[Product], tokens: Ints) -> Floats | None:
        """Return the total seconds of all products, ``[T]``; None if a product has no usable table.

        Args:
            products: products, each with the number of its layers.
            tokens: rows of the other factor, ``[T]``.
        """
        total = np.zeros(len(tokens))
        for product in products:
            table = self._table(product.dtype)
            if table is None:
                return None
            n, k = product.n, product.k
            seconds = line(table.axes[2], shape_seconds(table, n, k), tokens)
            if (timed := table.name[1]) != product.dtype:
                ours, theirs = (
                    product_bound(self._chip.gpu, weights_of(dtype), n, k, tokens)
                    for dtype in (product.dtype, timed)
                )
                seconds = seconds * ours / theirs
            total += product.layers * seconds
        return total

    def _table(self, dtype: str) -> OperatorTable | None:
        for name in (dtype, *STANDS_IN.get(dtype, (BF16,))):
            if dtype in self.used:
                break
            if found := self._chip.tables.find(FAMILY, name):
                self.used[dtype] = found[0]
                if name != dtype:
                    self.notes.append(
                        f"products with {in_words(dtype)} weights were not timed on "
                        f"{self._chip.gpu.name}: those with {in_words(name)} count, times the ratio of "
                        "their bounds"
                    )
        return self.used.get(dtype)


def shape_seconds(table: OperatorTable, n: int, k: int) -> Floats:
    """Return the seconds of a shape at each measured m, ``[M]``; they never fall.

    They are linear in n and k between measured sizes, proportional beyond the largest, and constant below
    the smallest. Timings that fall with m are pooled at each measured size first: of FP8 on B200, one in 16
    took over 1.5 times as long as one of more rows, and on GB200, which has the same chip, one in 10,000.

    Args:
        table: table of one weight type, over n, k and m.
        n: columns of the weights.
        k: rows of the weights.
    """
    found = np.zeros(table.seconds.shape[-1])
    for at_n, share_n in _corners(table.axes[0], n):
        for at_k, share_k in _corners(table.axes[1], k):
            found += share_n * share_k * isotonic(table.seconds[0, at_n, at_k])
    return found


def _corners(axis: Ints, size: int) -> list[tuple[int, float]]:
    """Return the indices between which a size lies, and the weight of each."""
    last = len(axis) - 1
    if size >= axis[last]:
        return [(last, size / int(axis[last]))]
    if size <= axis[0]:
        return [(0, 1.0)]
    right = int(np.searchsorted(axis, size))
    share = (size - int(axis[right - 1])) / int(axis[right] - axis[right - 1])
    return [(right - 1, 1 - share), (right, share)]
