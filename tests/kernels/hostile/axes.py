"""The axes of the hostile grid. A new axis, or a new value of one, is an entry here and nothing else.

Axes come in three kinds: what is asked (parameters of ``make_problem``), how the same problem lies in memory
(from a problem to one that is equal), and how the op is called (attributes of a problem).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf, nan
from operator import mul
from typing import Any

import torch
from torch import Tensor

from tests.kernels.hostile.covering import Case
from tests.kernels.hostile.problems import MARK, Problem, make_problem

Values = Mapping[str, Any]
"""An axis: its values by name."""


def three_times(table: Tensor, full: Tensor) -> None:
    """Let each sequence's first three full blocks be one."""
    for row, count in enumerate(full.tolist()):
        table[row, : min(3, count)] = table[row, :1].clone()


def by_all(table: Tensor, full: Tensor) -> None:
    """Let the first full block of all sequences that have one be the same."""
    rows = full > 0
    if rows.any():
        table[rows, 0] = table[rows][0, 0].clone()


ASKED: dict[str, Values] = {
    "block": {str(size): size for size in (1, 2, 8, 16, 64, 256)},
    "head_dim": {str(size): size for size in (72, 96, 128, 256, 512)},
    "heads": {f"{kv}x{group}": (kv, group) for kv, group in ((3, 1), (2, 4), (2, 7), (1, 8), (1, 130))},
    "layout": {name: name for name in ("NHD", "HND")},
    "dtype": {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32},
    "amplitude": {
        "1": (1.0, 1.0),
        "30": (30.0, 1.0),
        "200": (200.0, 1.0),
        "0.001": (1e-3, 1e-3),
        "values +-60000": (1.0, "60000"),
    },
    "contexts": {
        "0, 1": lambda block: [0, 1],
        "b-1, b, b+1": lambda block: [block - 1, block, block + 1],
        "3b+5, 0": lambda block: [3 * block + 5, 0],
        "300, 17": lambda block: [300, 17],
    },
    "poison": {"NaN": nan, "inf": inf},
    "unused_id": {"2**31-1": 2**31 - 1, "-7": -7},
    "repeated": {"no": lambda table, full: None, "three times": three_times, "by all": by_all},
}


def cut_out_of_qkv(problem: Problem) -> Problem:
    """Queries beside keys and values that are poisoned here."""
    beside = torch.full_like(problem.q[:, :1], nan).expand(-1, 4, -1)
    return replace(problem, q=torch.cat([problem.q, beside], dim=1)[:, : problem.q.shape[1]])


def from_an_odd_element(problem: Problem) -> Problem:
    wide = problem.q.new_full((*problem.q.shape[:2], problem.head_dim + 9), nan)
    wide[..., 7:-2] = problem.q
    return replace(problem, q=wide[..., 7:-2])


def interleaved(problem: Problem) -> Problem:
    """A block of keys before each block of values, in one tensor."""
    both = torch.stack([problem.keys.flatten(1), problem.values.flatten(1)], dim=1)
    keys = both[:, 0].unflatten(1, problem.keys.shape[1:])
    return replace(problem, keys=keys, values=both[:, 1].unflatten(1, problem.values.shape[1:]))


def at_odd_offsets(problem: Problem) -> Problem:
    def moved(cache: Tensor) -> Tensor:
        room = torch.zeros(cache.numel() + 3, dtype=cache.dtype).fill_(nan)
        return room[3:].copy_(cache.flatten()).view(cache.shape)

    return replace(problem, keys=moved(problem.keys), values=moved(problem.values))


def in_wide_rows(problem: Problem) -> Problem:
    """Each innermost row of a cache followed by as much poison."""

    def moved(cache: Tensor) -> Tensor:
        wide = torch.zeros(*cache.shape[:-1], 2 * cache.shape[-1], dtype=cache.dtype).fill_(nan)
        return wide[..., : cache.shape[-1]].copy_(cache)

    return replace(problem, keys=moved(problem.keys), values=moved(problem.values))


def axes_exchanged(problem: Problem) -> Problem:
    """The second and the third axis of both caches the other way round in memory."""

    def moved(cache: Tensor) -> Tensor:
        return cache.transpose(1, 2).contiguous().transpose(1, 2)

    return replace(problem, keys=moved(problem.keys), values=moved(problem.values))


def columns_of_a_wide_table(problem: Problem) -> Problem:
    wide = torch.full((len(problem.table), 31 + problem.table.shape[1]), -7, dtype=torch.int32)
    columns = slice(3, 3 + problem.table.shape[1])
    wide[:, columns] = problem.table
    return replace(problem, table=wide[:, columns])


def within_more_lengths(problem: Problem) -> Problem:
    more = torch.full((len(problem.lengths) + 8,), -1, dtype=torch.int32)
    more[5:-3] = problem.lengths
    return replace(problem, lengths=more[5:-3])


def out_within_more(problem: Problem) -> Problem:
    """A result whose rows are heads of a wider tensor, the others of which are to stay as they are."""
    wide = torch.full_like(problem.out[:, :1], MARK).expand(-1, problem.q.shape[1] + 3, -1).contiguous()
    out = wide[:, 2:-1].fill_(nan)
    return replace(problem, out=out)


def as_it_is(problem: Problem) -> Problem:
    return problem


LIES: dict[str, Values] = {
    "queries": {
        "alone": as_it_is,
        "cut out of qkv": cut_out_of_qkv,
        "from an odd element": from_an_odd_element,
    },
    "caches": {
        "alone": as_it_is,
        "interleaved": interleaved,
        "at odd offsets": at_odd_offsets,
        "in wide rows": in_wide_rows,
        "axes exchanged": axes_exchanged,
    },
    "table": {"alone": as_it_is, "columns of a wide one": columns_of_a_wide_table},
    "lengths": {"alone": as_it_is, "within more": within_more_lengths},
    "result": {"alone": as_it_is, "within more": out_within_more},
}

CALLED: dict[str, Values] = {
    "scale": {"1/sqrt(D)": None, "0.001": 0.001, "3": 3.0},
    "window": {"all": None, "1": 1, "37": 37, "64": 64},
    "softcap": {"none": None, "3": 3.0},
    "has_sinks": {"no sinks": False, "sinks": True},
    "cut": {
        "as chosen": None,
        "1 split": {"splits": 1},
        "3 splits, tiles of 16": {"splits": 3, "tile": 16},
        "7 splits, tiles of 32": {"splits": 7, "tile": 32},
        "5 splits of 48": {"splits": 5, "tile": 16, "least": 48},
        "2 splits, tiles of 128": {"splits": 2, "tile": 128},
        "64 rows": {"splits": 1, "rows": 64},
    },
}

AXES = {**ASKED, **LIES, **CALLED}
"""All axes of attention."""

MOST_STEPS = 60
"""Tiles that the programs of a case may go through: each takes the interpreter hundredths of a second."""


def allowed(case: Case, axes: Mapping[str, Values]) -> bool:
    """Return whether there is such a case, or of a part of one any, that takes the interpreter seconds."""

    def chosen(axis: str) -> Any:
        return axes[axis][case.get(axis, next(iter(axes[axis])))]

    kv_heads, group = chosen("heads")
    slow = case.get("dtype") == "fp32" or chosen("head_dim") >= 512
    cut = axes["cut"][case["cut"]] if "cut" in case else None
    rows, tile = 16 if slow or group < 16 else 64, 16 if slow else 64
    splits = 1
    if cut:
        rows, tile, splits = cut.get("rows", rows), cut.get("tile", tile), cut["splits"]
    new = chosen("new") if "new" in axes else lambda length: 1
    named = [case["contexts"]] if "contexts" in case else axes["contexts"]
    steps = []
    for name in named:
        batch = axes["contexts"][name](chosen("block"))
        programs = [-(-max(1, new(length)) * group // rows) for length in batch]
        tiles = [splits - 1 - -length // tile for length in batch]
        steps.append(sum(map(mul, programs, tiles)))
    return kv_heads * min(steps) <= MOST_STEPS


def problem_of(case: Case, axes: Mapping[str, Values], seed: int) -> Problem:
    """Return the problem that a case names."""
    chosen = {axis: axes[axis][value] for axis, value in case.items()}
    asked = {axis: value for axis, value in chosen.items() if axis not in LIES and axis not in CALLED}
    problem = make_problem(**asked, seed=seed)
    for axis in LIES:
        if axis in chosen:
            problem = chosen[axis](problem)
    return replace(problem, **{axis: chosen[axis] for axis in CALLED if axis in chosen})
