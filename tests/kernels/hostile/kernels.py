"""The kernels of the hostile grid: a new one is a function from a problem to its result, and a line here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
import triton
from torch import Tensor

from pagesim.kernels import (
    Cache,
    LatentCache,
    gather_sequences,
    mla_decode_attention,
    mla_write,
    paged_attention,
    reshape_and_cache,
)
from pagesim.kernels.attention import launches
from pagesim.kernels.launch import run_all
from pagesim.kernels.mla import launches as mla_launches
from tests.kernels.hostile.axes import AXES, CALLED, Values, allowed, problem_of
from tests.kernels.hostile.covering import Case, covering
from tests.kernels.hostile.problems import MARK, Problem


def config_of(cut: Mapping[str, int]) -> triton.Config:
    """Return the configuration of a cut; any gives the right answer."""
    blocks = {"BLOCK_M": cut.get("rows", 16), "BLOCK_N": cut.get("tile", 64)}
    return triton.Config(blocks, num_warps=4, num_stages=2)


def attend(problem: Problem, cache: Cache, table: Tensor) -> float:
    """Attend by the op, or by the kernels as the problem's cut has it."""
    starts = None if problem.new is None else problem.starts.to(problem.q.device)
    batch = (problem.q, cache, table, problem.lengths, starts)
    if problem.cut is None:
        options = {"scale": problem.scale, **problem.variant, "out": problem.out, "backend": "triton"}
        return problem.excess(paged_attention(*batch, **options))
    run = launches(
        *batch,
        problem.out,
        max_query_len=max(problem.new or [1]),
        scale=problem.head_dim**-0.5 if problem.scale is None else problem.scale,
        **problem.variant,
        num_splits=problem.cut["splits"],
        min_split=problem.cut.get("least", 0),
        config=config_of(problem.cut),
    )
    return problem.excess(run_all(run, problem.out))


def cache_of(problem: Problem) -> Cache:
    k_scale, v_scale = problem.factors
    return Cache(problem.keys, problem.values, layout=problem.layout, k_scale=k_scale, v_scale=v_scale)


def paged(problem: Problem) -> float:
    return attend(problem, cache_of(problem), problem.table)


def gathered(problem: Problem) -> float:
    return attend(problem, *gather_sequences(cache_of(problem), problem.table, problem.lengths))


def contiguous(problem: Problem) -> float:
    """Attend to whole sequences as blocks, as long as the longest and three tokens more."""
    first = problem.written[0][0]
    longest, batch = int(problem.lengths.max()) + 3, len(problem.lengths)
    room = first.new_full((2, batch, longest, *first.shape[1:]), torch.nan)
    for row, pair in enumerate(problem.written):
        room[:, row, : len(pair[0])] = torch.stack(pair)
    if problem.layout == "HND":
        room = room.transpose(2, 3).contiguous()
    cache = Cache(*room.to(problem.q.device), layout=problem.layout)
    table = torch.arange(batch, dtype=torch.int32, device=problem.q.device)[:, None]
    return attend(problem, cache, table)


def mla(problem: Problem) -> float:
    """Decode over the keys as latents: of each the first 256 or 512 numbers are the value."""
    width = 256 if problem.head_dim < 512 else 512
    latents = LatentCache(problem.keys.select(2, 0), latent_dim=width)
    out = problem.out.fill_(MARK)[..., :width].fill_(torch.nan)
    written = [(keys, keys[..., :width]) for keys, _ in problem.written]
    problem = replace(problem, out=out, written=written)
    scale = problem.head_dim**-0.5 if problem.scale is None else problem.scale
    batch = (problem.q, latents, problem.table, problem.lengths)
    if problem.cut is None:
        return problem.excess(mla_decode_attention(*batch, scale=scale, out=out, backend="triton"))
    cut = {"num_splits": problem.cut["splits"], "min_split": problem.cut.get("least", 0)}
    run = mla_launches(*batch, out, scale=scale, **cut, config=config_of(problem.cut))
    return problem.excess(run_all(run, out))


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


def write_latents(problem: Problem) -> float:
    """Write every token's key as a latent and its rotated part; return 1 if a number is off."""
    width = 256 if problem.head_dim < 512 else 512
    cache = problem.keys.select(2, 0)
    want = torch.where(cache.float().isfinite(), cache.float(), 5.0)
    cache.copy_(torch.full_like(want, 5.0))
    tokens = torch.cat([keys for keys, _ in problem.written])[:, 0]
    slots, order = slots_of(problem)
    new = torch.cat([tokens, torch.full_like(tokens[:1], torch.nan).expand(3, -1)])[order].to(problem.q)
    latents = LatentCache(cache, latent_dim=width)
    mla_write(new[:, :width], new[:, width:], latents, slots.to(problem.q.device), backend="triton")
    return 2.0 * (not torch.equal(cache.float(), want))


@dataclass(frozen=True)
class Kernel:
    """A kernel of the grid.

    Args:
        run: returns the largest error of a problem over what is allowed.
        every: axes whose combinations are all wanted.
        axes: values that differ from those of all kernels.
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
        """Yield its cases."""
        axes = self.all_axes
        return covering({axis: list(values) for axis, values in axes.items()}, self.every, self.allows)

    def allows(self, case: Case) -> bool:
        return allowed(case, {**AXES, **self.all_axes})

    def excess(self, case: Case, seed: int, device: torch.device) -> float:
        """Return the largest error over what is allowed of a case; more than 1 is too much."""
        return self.run(problem_of(case, self.all_axes, seed).to(device))


def by_head(low: float, high: float) -> Callable[[int], Tensor]:
    return lambda kv_heads: torch.linspace(low, high, kv_heads)


def head_sizes(*sizes: int) -> dict[str, Values]:
    return {"head_dim": {str(size): size for size in sizes}}


NEW: dict[str, Values] = {
    "new": {
        "the last": lambda length: min(length, 1),
        "5 at most": lambda length: min(length, 5),
        "40 at most": lambda length: min(length, 40),
        "all": lambda length: min(length, 90),
        "none of long ones": lambda length: length if length < 20 else 0,
    }
}
"""Tokens of a context that have queries."""

FP8: dict[str, Values] = {
    "stored": {"fp8": "fp8"},
    "amplitude": {"1": (1.0, 1.0), "30": (30.0, 30.0)},
    "factors": {
        "one": lambda kv_heads: (0.5, 1.75),
        "a head": lambda kv_heads: (by_head(0.3, 1.5)(kv_heads), by_head(2.0, 0.125)(kv_heads)),
        "a head for keys": lambda kv_heads: (by_head(0.3, 1.5)(kv_heads), 3.0),
    },
}
EXACT = {"one": lambda kv_heads: (0.5, 4.0), "a head": lambda kv_heads: (torch.full((kv_heads,), 0.25), 2.0)}
"""Factors by which numbers are divided without rounding."""

LATENT: dict[str, Values] = {
    "head_dim": {"256+32": 288, "512+64": 576},
    "heads": {f"1x{heads}": (1, heads) for heads in (5, 16, 17, 130)},
    "layout": {"NHD": "NHD"},
    "amplitude": {"1": (1.0, 1.0), "30": (30.0, 30.0), "0.001": (1e-3, 1e-3)},
}
NONE_REPEATED: dict[str, Values] = {"repeated": {"no": AXES["repeated"]["no"]}}
VARIANTS = ("window", "softcap", "has_sinks")
NOT_OF_WRITES = (*CALLED, "result", "queries")

KERNELS: dict[str, Kernel] = {
    "decode": Kernel(paged, ("block", "head_dim"), head_sizes(64, 72, 80, 96, 120, 128, 256, 512)),
    "decode fp8": Kernel(paged, axes=FP8),
    "contiguous": Kernel(contiguous, axes=NONE_REPEATED, without=("caches", "table")),
    "gathered": Kernel(gathered),
    "prefill": Kernel(paged, ("block", "new"), NEW),
    "prefill fp8": Kernel(paged, axes={**NEW, **FP8}),
    "mla": Kernel(mla, axes=LATENT, without=VARIANTS),
    "write": Kernel(write, axes=NONE_REPEATED, without=NOT_OF_WRITES),
    "write fp8": Kernel(write, axes={**FP8, "factors": EXACT, **NONE_REPEATED}, without=NOT_OF_WRITES),
    "write latents": Kernel(write_latents, axes={**LATENT, **NONE_REPEATED}, without=NOT_OF_WRITES),
}
"""All of them, by name."""
