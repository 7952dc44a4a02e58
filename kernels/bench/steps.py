"""Rows of ``bench tune`` as steps of the planner's model, and which form of programs was fastest in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, exp, log
from typing import Any, NamedTuple

from pagesim.kernels.bench.rows import OK, Row
from pagesim.kernels.layouts import find_layout
from pagesim.kernels.plan_constants import PlanConstants
from pagesim.kernels.plan_time import Parts, StepModel
from pagesim.kernels.planner import Gpu, program_form

WORTH = 0.02
"""Share of time that a form of programs must save to replace the default one."""

Shape = tuple[int, int, int, int]
"""Batch, context, query heads, KV heads."""

_ITEM_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4}  # any other is a byte


class Form(NamedTuple):
    """What programs are like: tokens a tile, warps, tiles in flight."""

    tile: int
    warps: int
    stages: int

    @classmethod
    def of(cls, row: Row) -> Form:
        """Return the form that a row's plan was forced to have."""
        return cls(row["tile"], row["warps"], row["stages"])

    @classmethod
    def default(cls) -> Form:
        """Return the form for 32 query heads on 8 KV heads of 128 in two bytes, by the default constants."""
        chosen = program_form(q_heads=32, kv_heads=8, head_dim=128, block_size=16, constants=PlanConstants())
        return cls(chosen.model.tile, chosen.num_warps, chosen.num_stages)

    def constants(self) -> PlanConstants:
        """Return the default constants with those that make programs of this form."""
        key_bytes = self.tile * 128 * 2
        flying = (self.stages - 1) * 2 * key_bytes
        return PlanConstants(key_bytes=key_bytes, flying_bytes=flying, warps=self.warps)


@dataclass(frozen=True, slots=True)
class Step:
    """A decode step of equal lengths that was timed under a forced number of splits.

    Attributes:
        shape: of the batch.
        model: that estimates its time.
        tiles: as `StepModel.parts` takes them.
        splits: of a sequence.
        least: tiles of a split.
        seconds: what it took.
    """

    shape: Shape
    model: StepModel
    tiles: Mapping[int, int]
    splits: int
    least: int
    seconds: float

    @classmethod
    def of(cls, row: Row) -> Step:
        """Return a row as a step."""
        model = model_of(row)
        tiles = ceil(row["context"] / model.tile)
        least = ceil(tiles / row["splits"])
        shape = (row["batch"], row["context"], row["q_heads"], row["kv_heads"])
        return cls(shape, model, {tiles: row["batch"]}, ceil(tiles / least), least, row["median_s"])

    def parts(self, constants: PlanConstants) -> Parts:
        """Return what its time is made of, by other constants than its model's."""
        return replace(self.model, constants=constants).parts(self.tiles, self.splits, self.least)


def decodes(rows: Iterable[Row], *, skewed: bool) -> list[Row]:
    """Return the rows of paged decode that succeeded under a plan by lengths and for a form of programs."""
    return [
        row
        for row in rows
        if row["op"] == "paged-decode"
        and row["status"] == OK
        and row["tile"] is not None
        and row["capacity"] is None
        and (row["lengths"] is not None) is skewed
    ]


def steps_of(rows: Iterable[Row], form: Form) -> list[Step]:
    """Return the rows of a form of programs and a forced number of splits, as steps."""
    return [Step.of(row) for row in decodes(rows, skewed=False) if row["splits"] and Form.of(row) == form]


def by_shape(steps: Sequence[Step]) -> dict[Shape, list[Step]]:
    """Return the steps of each shape that was timed under several numbers of splits."""
    found: dict[Shape, list[Step]] = {}
    for step in steps:
        found.setdefault(step.shape, []).append(step)
    return {shape: mine for shape, mine in found.items() if len(mine) > 1}


def best_form(rows: Iterable[Row]) -> Form:
    """Return the form of programs that was fastest over all shapes that were timed in several.

    The default form stays unless another one saves ``WORTH`` of the time.
    """
    times: dict[Form, dict[tuple[object, ...], float]] = {}
    for row in decodes(rows, skewed=False):
        if row["splits"] is None:
            shape = tuple(row[name] for name in ("batch", "context", "q_heads", "kv_heads", "block_size"))
            times.setdefault(Form.of(row), {})[shape] = row["median_s"]
    default = Form.default()
    base = times.get(default, {})
    ratios = {
        form: geometric_mean(seconds / base[shape] for shape, seconds in found.items())
        for form, found in times.items()
        if found.keys() == base.keys()
    }
    best = min(ratios, key=lambda form: (ratios[form], form), default=default)
    return best if ratios.get(best, 1.0) <= 1 - WORTH else default


def model_of(row: Row) -> StepModel:
    """Return what estimates the time of a row's programs."""
    return program_form(**programs_of(row)).model


def programs_of(row: Row) -> dict[str, Any]:
    """Return the arguments of `program_form` and `plan_decode` that a row stands for."""
    machine = row["machine"]
    return {
        "q_heads": row["q_heads"],
        "kv_heads": row["kv_heads"],
        "head_dim": row["head_size"],
        "block_size": row["block_size"],
        "kv_bytes": _ITEM_BYTES.get(row["dtype"], 1),
        "layout": find_layout(row["layout"]),
        "gpu": Gpu(sms=machine["multiprocessors"], shared_bytes=machine["shared_bytes"]),
        "tile": row["tile"],
        "num_warps": row["warps"],
        "num_stages": row["stages"],
        "constants": Form.of(row).constants(),
    }


def geometric_mean(values: Iterable[float]) -> float:
    """Return the geometric mean, 1 of no values."""
    logs = [log(value) for value in values]
    return exp(sum(logs) / len(logs)) if logs else 1.0
