"""What the planner takes a GPU's programs to cost: one frozen object, its file, and where the file is found.

``pagesim bench tune`` measures decode under forced plans, fits the constants to what was measured and writes
the file. The planner reads the one that the environment variable ``PAGESIM_PLAN_CONSTANTS`` names; without it
the defaults count, which are of other libraries' measurements.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any

from pagesim.errors import PagesimError, brief
from pagesim.setup.files import put_text

VARIABLE = "PAGESIM_PLAN_CONSTANTS"
"""The environment variable that names a file of constants."""

SCHEMA = 1
"""Of the file; raised whenever a constant changes its meaning."""

MAX_WARPS = 32
"""A program has at most 1024 threads."""


@dataclass(frozen=True, slots=True)
class PlanConstants:
    """What the planner's estimates are made of. A *tile* as a unit of time is what a program takes for one.

    Args:
        min_split_tokens: a split shorter than this is not worth its start and its share of the reduction.
        start_tiles: what starting and draining a program costs, in tiles (flashinfer#4904, on a GH200).
        reduce_tiles: what the reduction costs for each split, in tiles (the same source).
        reduction_tiles: what the reduction costs whatever the number of splits, in tiles; not known before it
            is measured.
        empty_tiles: what a program costs that finds no tokens, in tiles: about a microsecond, where a tile
            of 32 KB takes 3 on an H200 whose programs all read.
        list_gain: share of a step's estimated time that empty programs must take for a work list to be made.
        key_bytes: of a tile's keys, as the registers hold them.
        flying_bytes: of keys and values that a program has in flight at least.
        warps: of a program that takes up to 32 query heads.

    Raises:
        PagesimError: a constant is out of range; the message names it and the bound.
    """

    min_split_tokens: int = 256
    start_tiles: float = 10.0
    reduce_tiles: float = 0.22
    reduction_tiles: float = 0.0
    empty_tiles: float = 0.3
    list_gain: float = 0.05
    key_bytes: int = 16 * 1024
    flying_bytes: int = 48 * 1024
    warps: int = 4

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "int":
                if type(value) is not int or value < 1:
                    raise PagesimError(f"{field.name} is {brief(value)}; a whole number from 1 is needed")
            elif type(value) not in (int, float) or not isfinite(value) or value < 0:
                raise PagesimError(f"{field.name} is {brief(value)}; a number from 0 is needed")
        if self.warps > MAX_WARPS or self.warps & (self.warps - 1):
            raise PagesimError(f"warps is {self.warps}; a power of two from 1 to {MAX_WARPS} is needed")
        if self.key_bytes & (self.key_bytes - 1):
            raise PagesimError(f"key_bytes is {self.key_bytes}; a power of two is needed")


def constants_in_force() -> PlanConstants:
    """Return the constants of the file that the environment names, or the defaults.

    Raises:
        PagesimError: the file cannot be read, or holds something else.
    """
    named = os.environ.get(VARIABLE)
    return _read_once(named) if named else DEFAULTS


def read_constants(file: Path) -> PlanConstants:
    """Return the constants that ``write_constants`` has written; those that are not there are the defaults.

    Raises:
        PagesimError: the file cannot be read, or holds something else.
    """
    try:
        found: Any = json.loads(file.read_bytes())
    except OSError as error:
        raise PagesimError(f"{file}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        raise PagesimError(f"{file}: is no JSON; `pagesim bench tune --out DIR` writes one") from None
    held = found.get("constants") if isinstance(found, dict) else None
    if not isinstance(held, dict):
        raise PagesimError(
            f"{file}: holds no planner's constants; `pagesim bench tune --out DIR` writes them"
        )
    if found.get("schema") != SCHEMA:
        said = brief(found.get("schema"))
        raise PagesimError(f"{file}: schema is {said}; this version of pagesim reads {SCHEMA}; tune anew")
    known = [field.name for field in fields(PlanConstants)]
    if unknown := [name for name in held if name not in known]:
        raise PagesimError(f"{file}: {brief(unknown[0])} is no constant; those there are: {', '.join(known)}")
    try:
        return PlanConstants(**held)
    except PagesimError as error:
        raise PagesimError(f"{file}: {error}") from None


def write_constants(file: Path, constants: PlanConstants, about: Mapping[str, Any]) -> None:
    """Write constants with what they were fitted to, whole or not at all.

    Args:
        file: to be written.
        constants: all of them are written.
        about: what JSON can hold: the GPU, the errors of the fit.

    Raises:
        PagesimError: the file cannot be written.
    """
    text = json.dumps({"schema": SCHEMA, "constants": asdict(constants), **about}, indent=1, allow_nan=False)
    put_text(file, text + "\n")


DEFAULTS = PlanConstants()


@cache
def _read_once(file: str) -> PlanConstants:
    try:
        return read_constants(Path(file))
    except PagesimError as error:
        raise PagesimError(f"{VARIABLE}: {error}") from None
