"""Random problems of attention over a paged cache, made without the project's layouts and references.

What must not be read is poisoned, and what must not be written is marked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tests.kernels.hostile import dense

STORED = {"fp8": torch.float8_e4m3fn}
"""Types of a cache that are not that of the queries."""

MARK = 77.0
"""What stands around a result."""


@dataclass(frozen=True)
class Problem:
    """One problem and what must come of it.

    Attributes:
        q: ``[tokens, q_heads, D]``; one token a sequence unless ``new`` says otherwise.
        keys: the key cache in ``layout``.
        values: the value cache in ``layout``.
        table: int32 ``[batch, max_blocks]``.
        lengths: int32 ``[batch]``.
        out: where the result goes, NaN so far.
        layout: its name.
        block: tokens a block.
        written: a sequence's keys and values as they lie in the cache, ``[L, kv_heads, D]`` each.
        factors: what stored keys and values stand for: they times these, a number or float32 ``[kv_heads]``.
        new: the last tokens of each sequence that have queries; None for one a sequence, also of no token.
        scale: of the dot products, or None.
        window: tokens that a query sees, or None.
        softcap: of scores, or None.
        has_sinks: whether each query head has a score without a value, the last one minus infinity.
        cut: how the kernel is cut up; None as the op chooses.
    """

    q: Tensor
    keys: Tensor
    values: Tensor
    table: Tensor
    lengths: Tensor
    out: Tensor
    layout: str
    block: int
    written: Sequence[tuple[Tensor, Tensor]]
    factors: tuple[float | Tensor, float | Tensor] = (1.0, 1.0)
    new: Sequence[int] | None = None
    scale: float | None = None
    window: int | None = None
    softcap: float | None = None
    has_sinks: bool = False
    cut: Mapping[str, int] | None = None

    @property
    def head_dim(self) -> int:
        return self.q.shape[-1]

    @property
    def sinks(self) -> Tensor | None:
        """A score for each query head, float32 ``[q_heads]``."""
        if not self.has_sinks:
            return None
        sinks = torch.linspace(-3, 3, self.q.shape[1], device=self.q.device)
        sinks[-1] = -torch.inf
        return sinks

    @property
    def variant(self) -> dict[str, Any]:
        """What attention is beside a softmax over all tokens."""
        return {"window": self.window, "softcap": self.softcap, "sinks": self.sinks}

    @property
    def starts(self) -> Tensor:
        """The row of q at which each sequence begins, int32 ``[batch + 1]``."""
        return torch.tensor([0, *(self.new or ())]).cumsum(0).int()

    def to(self, device: torch.device) -> Problem:
        """Return the same problem on a device, every tensor a view of as much memory as it was."""

        def there(tensor: Tensor) -> Tensor:
            whole = tensor if tensor._base is None else tensor._base
            return whole.to(device).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

        names = ("q", "keys", "values", "table", "lengths", "out")
        factors = tuple(there(x) if isinstance(x, Tensor) else x for x in self.factors)
        return replace(self, factors=factors, **{name: there(getattr(self, name)) for name in names})

    def contexts(self) -> list[tuple[Tensor, Tensor]]:
        """Return what the stored keys and values of each sequence stand for, in float64."""

        def meant(stored: Tensor, factor: float | Tensor) -> Tensor:
            if not isinstance(factor, Tensor):
                return stored.double() * factor
            return stored.double() * factor.cpu().double()[:, None]

        return [tuple(meant(*each) for each in zip(pair, self.factors, strict=True)) for pair in self.written]

    def excess(self, got: Tensor) -> float:
        """Return the largest error of a result over what is allowed; more than 1 is too much.

        It is infinite where the result is not in its place or anything beside it was written.
        """
        if got is not self.out or not self.is_marked():
            return torch.inf
        scale = self.head_dim**-0.5 if self.scale is None else self.scale
        new = [1] * len(self.written) if self.new is None else self.new
        rows = zip(self.q.cpu().split(list(new)), self.contexts(), strict=True)
        want, slack = [], []
        for q, (keys, values) in rows:
            want.append(dense.attention(q, keys, values, scale, **self.variant))
            slack.append(dense.rounding(q, keys, scale))
        floor = 0.0
        if self.has_sinks:  # beside which all weights may be tiny: errors are measured by the values
            largest = max((float(v.abs().max()) for _, v in self.contexts() if v.numel()), default=0.0)
            floor = largest * dense.least_weight(got.dtype)
        return dense.excess(got.cpu(), torch.cat(want), torch.cat(slack), floor)

    def is_marked(self) -> bool:
        """Return whether all that stands around the result is still what it was."""
        if self.out._base is None:
            return True
        whole = self.out._base.clone()
        whole.as_strided(self.out.shape, self.out.stride(), self.out.storage_offset()).fill_(MARK)
        return bool((whole == MARK).all())


def lay_out(plain: Tensor, layout: str) -> Tensor:
    """Return ``[blocks, block, heads, D]`` in a layout, contiguous."""
    return (plain.transpose(1, 2) if layout == "HND" else plain).contiguous()


def make_problem(
    *,
    block: int,
    head_dim: int,
    heads: tuple[int, int],
    layout: str,
    dtype: torch.dtype,
    contexts: Callable[[int], Sequence[int]],
    amplitude: tuple[float | str, float | str],
    poison: float,
    unused_id: int,
    repeated: Callable[[Tensor, Tensor], None],
    seed: int,
    stored: str = "as queries",
    factors: Callable[[int], tuple[float | Tensor, float | Tensor]] | None = None,
    new: Callable[[int], int] | None = None,
) -> Problem:
    """Return a problem.

    Args:
        block: tokens a block.
        head_dim: D.
        heads: KV heads, and query heads of each.
        layout: of the caches.
        dtype: of the queries.
        contexts: the sequences' lengths, from the tokens of a block.
        amplitude: of queries and keys, and of values; text for numbers that are that large and no smaller.
        poison: what slots without a token hold.
        unused_id: what table entries hold that no context reaches.
        repeated: lets some entries of the table, whose full blocks are counted, name the same block.
        seed: of the random numbers.
        stored: the cache's type, one of ``STORED``, if it is not that of the queries.
        factors: of the stored numbers, from the KV heads.
        new: how many tokens have queries, of as many.
    """
    random = torch.Generator().manual_seed(seed)
    kv_heads, group = heads
    lengths = torch.tensor(contexts(block), dtype=torch.int32)
    needed = -(-lengths // block)
    blocks = int(needed.sum()) + 3
    table = torch.full((len(lengths), int(needed.max()) + 2), unused_id, dtype=torch.int32)
    order = iter(torch.randperm(blocks, generator=random).tolist())
    for row, count in enumerate(needed.tolist()):
        table[row, :count] = torch.tensor([next(order) for _ in range(count)], dtype=torch.int32)
    repeated(table, lengths // block)

    kv_dtype = STORED.get(stored, dtype)
    used = torch.zeros(blocks, block, dtype=torch.bool)
    for row, length in enumerate(lengths.tolist()):
        for token in range(0, length, block):
            used[int(table[row, token // block]), : length - token] = True

    def drawn(shape: tuple[int, ...], size: float | str) -> Tensor:
        normal = torch.randn(shape, generator=random)
        return normal.sign() * float(size) if isinstance(size, str) else normal * size

    # e4m3 has no infinity: it would be 448.
    unused = torch.nan if kv_dtype == torch.float8_e4m3fn else poison
    plain = []
    for size in amplitude:
        numbers = drawn((blocks, block, kv_heads, head_dim), size)
        plain.append(numbers.masked_fill(~used[:, :, None, None], unused).to(kv_dtype))

    def context(numbers: Tensor, row: int) -> Tensor:
        ids = table[row, : needed[row]].long()
        return numbers[ids].flatten(0, 1)[: lengths[row]]

    whole = (1.0, 1.0) if factors is None else factors(kv_heads)
    fresh = None if new is None else [new(length) for length in lengths.tolist()]
    rows = len(lengths) if fresh is None else sum(fresh)
    q = drawn((rows, kv_heads * group, head_dim), amplitude[0]).to(dtype)
    keys, values = (lay_out(numbers, layout) for numbers in plain)
    return Problem(
        q,
        keys,
        values,
        table,
        lengths,
        torch.full_like(q, torch.nan),
        layout,
        block,
        [tuple(context(numbers, row) for numbers in plain) for row in range(len(lengths))],
        whole,
        fresh,
    )
