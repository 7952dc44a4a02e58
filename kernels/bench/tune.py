"""Tuning: decode under forced plans over a grid, the planner's constants fitted to it, and their file."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagesim.errors import PagesimError
from pagesim.kernels.bench.fit import Fit, fit_constants
from pagesim.kernels.bench.rows import Point, Row, parse_lengths
from pagesim.kernels.bench.run import Outcome, ProgressCallback, run_points
from pagesim.kernels.bench.steps import Form, best_form
from pagesim.kernels.plan_constants import VARIABLE, write_constants

CONSTANTS_FILE = "plan-constants.json"
"""Written into the folder of the rows."""

SECONDS = 0.06
"""Time for each point: there are many, and what counts is which is fastest."""

HEADS = ((32, 8), (40, 40))

FORMS = tuple(Form(tile, warps, stages) for tile in (32, 64, 128) for warps in (4, 8) for stages in (3, 4, 5))
"""Forms of programs that are compared where the GPU is full."""

SHAPES = (
    (1, 1024), (1, 4096), (1, 16384), (1, 131072), (4, 2048), (8, 4096), (16, 2048), (32, 2048), (64, 1024),
    (256, 1024), (64, 4096),
)  # fmt: skip
"""(batch, context) of forced splits: from a step of a few programs to several rounds of a full GPU."""

SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)

LEAST_TOKENS = 64
"""Of a split that is measured."""

SKEWED = ("131072+200x128", "8x30000+56x500", "16384+16x1024")
"""Batches whose programs are idle for the most part, unless they have a work list."""

CAPACITIES = (("2048", 131072), ("8x2048", 131072), ("256x512", 131072), ("2048", 32768))
"""(lengths, the most that they might be): what a plan for a CUDA graph costs beside one for the lengths."""


@dataclass(frozen=True)
class Tuned:
    """What tuning came to.

    Attributes:
        outcome: the rows, and how many are new or left.
        fit: the constants.
        file: where they are; None where nothing is stored.
    """

    outcome: Outcome
    fit: Fit
    file: Path | None


def form_points(quick: bool = False) -> list[Point]:
    """Return the points that tell which form of programs is fastest.

    Args:
        quick: in one block size and not in two.
    """
    return [
        _point((64, 4096), HEADS[0], form, block_size=size)
        for size in ((16,) if quick else (16, 128))
        for form in FORMS
    ]


def plan_points(form: Form, quick: bool = False) -> list[Point]:
    """Return the points that constants are fitted to, for programs of a form.

    Args:
        form: of the programs.
        quick: of one kind of heads and fewer splits.
    """
    points = []
    for heads in HEADS[:1] if quick else HEADS:
        for batch, context in SHAPES:
            splits = [each for each in SPLITS if each * LEAST_TOKENS <= context]
            for each in splits[::2] if quick else splits:
                points.append(_point((batch, context), heads, form, splits=each))
    for text in SKEWED:
        for schedule in ("grid", "list"):
            points.append(_point(_sizes(text), HEADS[0], form, lengths=text, schedule=schedule))
    for text, capacity in () if quick else CAPACITIES:
        points.append(_point(_sizes(text), HEADS[0], form, lengths=text, schedule="grid"))
        points.append(_point(_sizes(text), HEADS[0], form, lengths=text, capacity=capacity))
    return points


def tune(
    device: str,
    out: Path | None,
    *,
    quick: bool = False,
    seconds: float | None = None,
    time_limit_s: float | None = None,
    retry_failed: bool = False,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> Tuned:
    """Measure, fit, and write the constants into the folder of the rows.

    Args:
        device: ``cuda``.
        out: as of `run_points`, and so are the others.
        quick: fewer points.
        seconds: time for each point; ``SECONDS`` unless given.
        time_limit_s: begin no further point after so many seconds.
        retry_failed: measure those again that did not succeed before.
        seed: of the random inputs.
        progress: called before each point.

    Raises:
        PagesimError: it is no GPU, an argument is off, or the rows do not tell the constants.
    """
    if device != "cuda":
        raise PagesimError(
            f"device is {device}; tuning needs cuda, a CPU has no plans; --rows fits a GPU's rows"
        )
    options: dict[str, Any] = {
        "seconds": SECONDS if seconds is None else seconds,
        "retry_failed": retry_failed,
        "seed": seed,
        "progress": progress,
    }
    began = time.monotonic()
    first = run_points(form_points(quick), device, out, time_limit_s=time_limit_s, **options)
    rest = None if time_limit_s is None else max(1.0, time_limit_s - (time.monotonic() - began))
    second = run_points(plan_points(best_form(first.rows), quick), device, out, time_limit_s=rest, **options)
    both = Outcome([*first.rows, *second.rows], first.measured + second.measured, first.left + second.left)
    return Tuned(both, *fitted(both.rows, out))


def fitted(rows: Sequence[Row], out: Path | None) -> tuple[Fit, Path | None]:
    """Fit the constants to rows and write them into a folder; return both.

    Raises:
        PagesimError: the rows do not tell them, or the file cannot be written.
    """
    fit = fit_constants(rows)
    if out is None:
        return fit, None
    file = out / CONSTANTS_FILE
    machine = rows[0]["machine"]
    about = {
        name: machine[name]
        for name in ("device_name", "driver", "torch", "triton", "pagesim", "source", "date")
    }
    write_constants(file, fit.constants, {"fit": fit.as_json(), "machine": about, "read_by": VARIABLE})
    return fit, file


def how_to_use(file: Path) -> str:
    """Return a sentence that says how the planner comes to read a file of constants."""
    return f"stored in {file}; the planner reads it under {VARIABLE}={file.resolve()}"


def _sizes(text: str) -> tuple[int, int]:
    lengths = parse_lengths(text)
    return len(lengths), max(lengths)


def _point(
    shape: tuple[int, int], heads: tuple[int, int], form: Form, block_size: int = 16, **columns: object
) -> Point:
    fixed = {"batch": shape[0], "context": shape[1], "q_heads": heads[0], "kv_heads": heads[1]}
    cache = {"block_size": block_size, "head_size": 128, "dtype": "fp16", "layout": "NHD"}
    return Point("attention", "paged-decode", {**fixed, **cache, **form._asdict(), **columns})
