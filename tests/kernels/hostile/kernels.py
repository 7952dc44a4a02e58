"""The kernels of the hostile grid: a new one is a function from a problem to its result, and a line here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from pagesim.kernels import (
    LAYOUTS,
    Cache,
    DecodePlan,
    LatentCache,
    SharedPrefixes,
    cascade_decode_attention,
    cascade_plan,
    contiguous_decode_attention,
    decode_attention,
    gather_decode_attention,
    mla_decode_attention,
    mla_plan,
    prefill_attention,
    reshape_and_cache,
)
from tests.kernels.hostile.axes import AXES, LIES_OF_BYTES, Values, allowed, problem_of
from tests.kernels.hostile.covering import Case, covering
from tests.kernels.hostile.problems import MARK, STORED, Problem


def cache_of(problem: Problem) -> Cache:
    k_scale, v_scale = problem.factors
    return Cache(problem.keys, problem.values, layout=problem.layout, k_scale=k_scale, v_scale=v_scale)


def options(problem: Problem, cache: Cache) -> dict[str, object]:
    """Return what decode ops take by name."""
    plan = problem.plan and problem.plan(problem.q, cache, problem.lengths)
    return {"scale": problem.scale, "plan": plan, "out": problem.out, "backend": "triton"}


def decode(problem: Problem) -> float:
    cache = cache_of(problem)
    return problem.excess(
        decode_attention(problem.q, cache, problem.table, problem.lengths, **options(problem, cache))
    )


def gathered(problem: Problem) -> float:
    cache, longest = cache_of(problem), int(problem.lengths.max())
    room = torch.full((2, len(problem.lengths), longest, *cache.sizes[2:]), torch.nan, device=cache.device)
    padded = Cache(*room.to(cache.dtype), paged=False)
    batch = (problem.q, cache, problem.table, problem.lengths)
    return problem.excess(gather_decode_attention(*batch, workspace=padded, **options(problem, padded)))


def contiguous(problem: Problem) -> float:
    """Decode over the contexts side by side, as long as the longest and three tokens more."""
    longest = int(problem.lengths.max()) + 3
    room = problem.written[0][0].new_full(
        (2, len(problem.lengths), longest, *problem.written[0][0].shape[1:]), torch.nan
    )
    for row, pair in enumerate(problem.written):
        room[:, row, : len(pair[0])] = torch.stack(pair)
    if problem.layout == "HND":
        room = room.transpose(2, 3).contiguous()
    cache = Cache(*room.to(problem.q.device), layout=problem.layout, paged=False)
    return problem.excess(
        contiguous_decode_attention(problem.q, cache, problem.lengths, **options(problem, cache))
    )


def cascade(problem: Problem) -> float:
    """Decode with all sequences as one group that have as many blocks in common as the first of them."""
    cache = cache_of(problem)
    full = (problem.lengths // problem.block).tolist()
    rows = [row for row, count in enumerate(full) if count]
    first = problem.table[rows[0]]
    least = min(full[row] for row in rows)
    common = [all(int(problem.table[row, i]) == int(first[i]) for row in rows) for i in range(least)]
    prefixes = SharedPrefixes(cache, problem.table, problem.lengths, [(rows, [*common, False].index(False))])
    plans = problem.plan and problem.plan(problem.q, cache, prefixes)
    call = {"scale": problem.scale, "plans": plans, "out": problem.out, "backend": "triton"}
    return problem.excess(cascade_decode_attention(problem.q, cache, prefixes, **call))


def mla(problem: Problem) -> float:
    """Decode over the keys as latents: of each the first 256 or 512 numbers are the value."""
    width = 256 if problem.head_dim < 512 else 512
    latents = LatentCache(problem.keys.select(2, 0), latent_dim=width)
    out = problem.out.fill_(MARK)[..., :width].fill_(torch.nan)
    written = [(keys, keys[..., :width]) for keys, _ in problem.written]
    problem = replace(problem, out=out, written=written)
    plan = problem.plan and problem.plan(problem.q, latents, problem.lengths)
    scale = problem.head_dim**-0.5 if problem.scale is None else problem.scale
    batch = (problem.q, latents, problem.table, problem.lengths)
    return problem.excess(mla_decode_attention(*batch, scale=scale, plan=plan, out=out, backend="triton"))


def prefill(problem: Problem) -> float:
    starts = problem.starts.to(problem.q.device)
    batch = (problem.q, cache_of(problem), problem.table, problem.lengths, starts)
    return problem.excess(prefill_attention(*batch, scale=problem.scale, out=problem.out, backend="triton"))


def slots_of(problem: Problem) -> tuple[Tensor, Tensor]:
    """Return the slots of all tokens and of three that are passed over, in any order, and that order."""
    token = torch.cat([torch.arange(length) for length in problem.lengths.tolist()])
    row = torch.arange(len(problem.lengths)).repeat_interleave(problem.lengths.cpu())
    slots = problem.table.cpu()[row, token // problem.block].long() * problem.block + token % problem.block
    order = torch.randperm(len(slots) + 3, generator=torch.Generator().manual_seed(0))
    return torch.cat([slots, torch.full((3,), -1)])[order], order


def write(problem: Problem) -> float:
    """Write every token, in any order and among some that are passed over; return 1 if a number is off."""
    news, wants = [], []
    for stored, factor in zip(zip(*problem.written, strict=True), problem.factors, strict=True):
        tokens = torch.cat(stored).float()
        news.append(tokens * (factor.cpu()[:, None] if isinstance(factor, Tensor) else factor))
    for cache in (problem.keys, problem.values):
        want = cache.float()
        wants.append(torch.where(want.isfinite(), want, 5.0))
        cache.copy_(torch.full_like(want, 5.0))
    slots, order = slots_of(problem)
    key, value = (
        torch.cat([new, torch.full_like(new[:1], torch.nan).expand(3, -1, -1)])[order].to(problem.q)
        for new in news
    )
    reshape_and_cache(key, value, cache_of(problem), slots.to(problem.q.device), backend="triton")
    return 2.0 * (not all(map(torch.equal, (problem.keys.float(), problem.values.float()), wants)))


def write_scaled(problem: Problem) -> float:
    """Write every token as int8 with a scale a head, and return the largest error over half a unit.

    It is infinite where the largest number of a vector is not stored as 127, or a slot that no token has was
    written.
    """
    slots, order = slots_of(problem)
    pairs = zip(*problem.contexts(), strict=True)
    none = torch.zeros(3, *problem.written[0][0].shape[1:])
    key, value = (torch.cat([*each, none])[order].to(problem.q) for each in pairs)
    for cache in (problem.keys, problem.values):
        cache.fill_(-128)
    for scales in problem.factors:
        scales.fill_(-1.0)
    reshape_and_cache(key, value, cache_of(problem), slots.to(problem.q.device), backend="triton")
    written = slots >= 0
    kept = torch.ones(len(problem.keys) * problem.block, dtype=torch.bool)
    kept[slots[written]] = False
    worst = 0.0
    for new, cache, storage, scales in (
        (key, problem.keys, LAYOUTS[problem.layout].key, problem.factors[0]),
        (value, problem.values, LAYOUTS[problem.layout].value, problem.factors[1]),
    ):
        numbers = storage.to_plain(cache).flatten(0, 1).cpu()  # [slots, kv_heads, D]
        of_slots = scales.transpose(1, 2).flatten(0, 1).cpu().double()  # [slots, kv_heads]
        if (numbers[kept] != -128).any() or (of_slots[kept] != -1).any():
            return torch.inf
        mine, unit = numbers[slots[written]].double(), of_slots[slots[written]]
        wanted = new.cpu()[written].double()
        if (mine.abs().amax(-1) != 127).any():
            return torch.inf
        error = (mine * unit[..., None] - wanted).abs().amax(-1) / unit
        worst = max(worst, float(error.max()) if error.numel() else 0.0)
    return worst / 0.501


@dataclass(frozen=True)
class Kernel:
    """A kernel of the grid.

    Args:
        run: from a problem to its largest error over what is allowed.
        every: axes of which every combination is tried.
        axes: those of its own, or other values of one that all have.
        without: axes that mean nothing to it.
    """

    run: Callable[[Problem], float]
    every: Sequence[str] = ()
    axes: Mapping[str, Values] = field(default_factory=dict)
    without: Sequence[str] = ()

    @property
    def all_axes(self) -> dict[str, Values]:
        return {axis: values for axis, values in {**AXES, **self.axes}.items() if axis not in self.without}

    def cases(self) -> Iterator[Case]:
        axes = self.all_axes
        return covering(axes, self.every, lambda case: allowed(case, axes))

    def excess(self, case: Case, seed: int, device: torch.device) -> float:
        """Return the largest error over what is allowed of a case; more than 1 is too much."""
        return self.run(problem_of(case, self.all_axes, seed).to(device))


NEW: Values = {
    "the last": lambda length: min(length, 1),
    "5 at most": lambda length: min(length, 5),
    "40 at most": lambda length: min(length, 40),
}
"""Tokens of a context that have queries."""


def by_head(low: float, high: float) -> Callable[[int], Tensor]:
    return lambda kv_heads: torch.linspace(low, high, kv_heads)


BYTES: dict[str, Values] = {
    "stored": {name: name for name in STORED},
    **LIES_OF_BYTES,
    "amplitude": {"1": (1.0, 1.0), "30": (30.0, 30.0)},
    "factors": {
        "one": lambda kv_heads: (0.5, 1.75),
        "a head": lambda kv_heads: (by_head(0.3, 1.5)(kv_heads), by_head(2.0, 0.125)(kv_heads)),
        "a head for keys": lambda kv_heads: (by_head(0.3, 1.5)(kv_heads), 3.0),
    },
}
FP8: dict[str, Values] = {**BYTES, "stored": {"fp8": "fp8"}}
EXACT = {"one": lambda kv_heads: (0.5, 4.0), "a head": lambda kv_heads: (torch.full((kv_heads,), 0.25), 2.0)}
"""Factors by which numbers are divided without rounding."""

MLA: dict[str, Values] = {
    "head_dim": {"256+32": 288, "512+64": 576},
    "heads": {f"1x{heads}": (1, heads) for heads in (5, 16, 17, 130)},
    "layout": {"NHD": "NHD"},
    "amplitude": {"1": (1.0, 1.0), "30": (30.0, 30.0), "0.001": (1e-3, 1e-3)},
    "plan": {
        "none": None,
        "1 splits": lambda *given: mla_plan(*given, num_splits=1),
        "3 splits": lambda *given: mla_plan(*given, num_splits=3),
        "too short": lambda *_: DecodePlan(32, 32, 1, 8, 3),
        "too many splits": lambda *_: DecodePlan(16, 16, 20, 8, 1),
    },
}


def all_full_blocks(table: Tensor, full: Tensor) -> None:
    """Let all sequences that have a full block begin with as many as the shortest of them has."""
    rows = full > 0
    blocks = int(full[rows].min())
    table[rows, :blocks] = table[rows][0, :blocks].clone()


CASCADE: dict[str, Values] = {
    # In float32 the interpreter runs a program for every head of every member (``test_cascade.py`` has one).
    "dtype": {name: AXES["dtype"][name] for name in ("fp16", "bf16")},
    "heads": {f"{kv}x{group}": (kv, group) for kv, group in ((3, 1), (2, 4), (2, 7), (1, 24))},
    "contexts": {
        "b-1, b, b+1": lambda block: [block - 1, block, block + 1],
        "3b+5, 0, 4b": lambda block: [3 * block + 5, 0, 4 * block],
        "300, 17 and b": lambda block: [300 + block, 17 + block],
    },
    "repeated": {"by all": AXES["repeated"]["by all"], "all full blocks": all_full_blocks},
    "plan": {
        "none": None,
        "1 and 3 splits": lambda *given: cascade_plan(*given, num_splits=(1, 3)),
        "3 and 1 splits": lambda *given: cascade_plan(*given, num_splits=(3, 1)),
        "too many splits": lambda *_: (DecodePlan(16, 16, 20, 4, 1), DecodePlan(64, 64, 9, 4, 3)),
    },
}
NONE_REPEATED: dict[str, Values] = {"repeated": {"no": AXES["repeated"]["no"]}}
BY_TOKEN: dict[str, Values] = {
    **BYTES,
    **NONE_REPEATED,
    "stored": {"int8, by token": "int8, by token"},
    "factors": {"one": lambda kv_heads: (0.5, 4.0)},
}


def head_sizes(*sizes: int) -> dict[str, Values]:
    return {"head_dim": {str(size): size for size in sizes}}


FEW_PLANS = {"plan": {plan: AXES["plan"][plan] for plan in ("none", "3 splits", "too short")}}
NOT_OF_WRITES = ("plan", "scale", "result", "queries")

KERNELS: dict[str, Kernel] = {
    "decode": Kernel(decode, every=("block", "head_dim", "layout"), axes=head_sizes(64, 80, 96, 128, 256)),
    "decode of other heads": Kernel(decode, axes={**head_sizes(72, 120, 512), **FEW_PLANS}),
    "decode bytes": Kernel(decode, axes={**BYTES, **FEW_PLANS}),
    "contiguous": Kernel(
        contiguous,
        axes={"layout": {"NHD": "NHD", "HND": "HND"}, **NONE_REPEATED, **FEW_PLANS},
        without=("caches", "table"),
    ),
    "gathered": Kernel(gathered, axes=FEW_PLANS),
    "cascade": Kernel(cascade, axes=CASCADE),
    "cascade bytes": Kernel(cascade, axes={**CASCADE, **BYTES}),
    "mla": Kernel(mla, axes=MLA),
    "prefill": Kernel(prefill, axes={"new": NEW}, without=("plan",)),
    "prefill bytes": Kernel(prefill, axes={"new": NEW, **BYTES}, without=("plan",)),
    "write": Kernel(write, axes=NONE_REPEATED, without=NOT_OF_WRITES),
    "write fp8": Kernel(
        write, axes={**FP8, "factors": EXACT, **NONE_REPEATED}, without=(*NOT_OF_WRITES, "scales")
    ),
    "write by token": Kernel(write_scaled, axes=BY_TOKEN, without=NOT_OF_WRITES),
}
"""All of them, by name."""
