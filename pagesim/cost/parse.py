"""From a text such as ``affine:0.024,1e-4,8.2e-7`` or ``profile:NAME`` to a cost model."""

from __future__ import annotations

from dataclasses import fields

from pagesim.cost.affine import Affine
from pagesim.cost.base import CostModel
from pagesim.cost.profiled import Profiled
from pagesim.cost.roofline import Efficiency, Roofline
from pagesim.errors import PagesimError
from pagesim.profiles import find_profile
from pagesim.specs import GpuSpec, ModelSpec


def parse_cost(
    text: str, *, model: ModelSpec, gpu: GpuSpec, tp: int, block_size: int, kv_dtype: str
) -> CostModel:
    """Return the cost model that the text names, for this model on this GPU.

    Raises:
        PagesimError: the text names none, or a number is missing, unknown or out of bounds.
    """
    kind, _, rest = text.partition(":")
    if kind == "affine":
        return _affine(text, rest)
    if kind == "roofline":
        return Roofline(
            model, gpu, tp=tp, block_size=block_size, kv_dtype=kv_dtype, efficiency=_efficiency(text, rest)
        )
    if kind == "profile":
        return _profiled(text, rest, model=model, tp=tp, block_size=block_size, kv_dtype=kv_dtype)
    raise PagesimError(
        f"cost is {text!r}; it must be roofline[:name=value,…], affine:a,b,c[,d] or "
        "profile:NAME or PATH[,overhead_s=seconds]"
    )


def _profiled(text: str, rest: str, *, model: ModelSpec, tp: int, block_size: int, kv_dtype: str) -> Profiled:
    name, _, option = rest.partition(",")
    profile = find_profile(name, model=model, tp=tp, kv_dtype=kv_dtype, block_size=block_size)
    if option:
        key, _, value = option.partition("=")
        if key != "overhead_s":
            raise PagesimError(f"cost is {text!r}; profile takes overhead_s, not {key!r}")
        profile = profile.with_overhead(_number(text, value))
    return Profiled(profile, model, tp=tp, block_size=block_size, kv_dtype=kv_dtype)


def _affine(text: str, rest: str) -> Affine:
    numbers = [_number(text, part) for part in rest.split(",")]
    if len(numbers) not in (3, 4):
        raise PagesimError(
            f"cost is {text!r}; affine takes 3 or 4 numbers: s, s/token, s/context token[, s/swapped block]"
        )
    return Affine(*numbers)


def _efficiency(text: str, rest: str) -> Efficiency:
    known = [f.name for f in fields(Efficiency)]
    values: dict[str, float] = {}
    for part in rest.split(",") if rest else []:
        name, _, value = part.partition("=")
        if name not in known:
            raise PagesimError(f"cost is {text!r}; roofline takes {', '.join(known)}, not {name!r}")
        values[name] = _number(text, value)
    return Efficiency(**values)


def _number(text: str, part: str) -> float:
    try:
        return float(part)
    except ValueError:
        raise PagesimError(f"cost is {text!r}; {part!r} is not a number") from None
