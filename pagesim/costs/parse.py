"""Parsing of cost models from texts such as ``affine:0.024,1e-4,8.2e-7`` or ``profile:NAME``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from pagesim.costs.affine import Affine
from pagesim.costs.auto import best_cost, profiled, roofline_of
from pagesim.costs.base import CostModel
from pagesim.costs.engines import BY_HAND, UNKNOWN, EngineTime
from pagesim.costs.profiled import Profiled
from pagesim.costs.profiles import find_profile
from pagesim.costs.roofline import DraftForwards, Efficiency, Roofline
from pagesim.errors import PagesimError
from pagesim.hardware import GpuSpec
from pagesim.models import ModelSpec
from pagesim.setup.plugins import Plugins


@dataclass(frozen=True, slots=True)
class Target:
    """Deployment whose iterations are priced: a model on ``tp`` GPUs in an engine.

    Attributes:
        block_size: tokens per block.
        kv_dtype: data type of the KV cache, one of `KV_DTYPE_BYTES`.
        engine: the engine's own time.
        release: release of the engine, such as ``vllm 0.33.0``; selects and describes measurements.
        drafter: how the drafter runs, priced by the roofline; None without drafts, or if no model makes them.
    """

    model: ModelSpec
    gpu: GpuSpec
    tp: int
    block_size: int
    kv_dtype: str
    engine: EngineTime = UNKNOWN
    release: str = ""
    drafter: DraftForwards | None = None


MAX_ERROR = 0.25
"""Largest accepted median error of a profile on held-out points, unless ``max_error`` sets another."""

_OF_ENGINE = {"overhead_s": "iteration_s", "sequence_s": "sequence_s"}
"""Fields of `EngineTime` by their option names in ``--cost``."""

MakeCost = Callable[[str, Target], CostModel]
"""Makes a cost model from the text after its name and a colon; ``""`` if there is none."""


def parse_cost(text: str, target: Target) -> CostModel:
    """Return the cost model that a text names, for a target.

    Args:
        text: value of ``--cost``, e.g. ``affine:0.024,1e-4,8.2e-7``.
        target: deployment to price; its engine's time is used if neither text nor cost model gives one.

    Raises:
        PagesimError: the text names no cost model, or a number is missing, unknown or out of bounds.
    """
    kind, _, rest = text.partition(":")
    if kind not in COST_MODELS:
        others = "".join(f", {name}[:…]" for name in COST_MODELS.foreign())
        raise PagesimError(
            f"cost is {text!r}; it must be auto[:name=value,…], roofline[:name=value,…], "
            f"affine:a,b,c[,d]{others} or profile:NAME or PATH[,overhead_s=seconds][,sequence_s=seconds]"
            "[,max_error=share]"
        )
    return COST_MODELS.make(kind, lambda make: make(rest, target))


def _auto(rest: str, target: Target) -> CostModel:
    others = [part for part in rest.split(",") if part]
    kernels = [part.partition("=")[2] for part in others if part.startswith("moe_backend=")]
    numbers = ",".join(part for part in others if not part.startswith("moe_backend="))
    values = _numbers("auto", rest, numbers, (*_OF_ENGINE, "moe_backend"))
    engine = {_OF_ENGINE[name]: value for name, value in values.items()}
    target = replace(target, engine=_by_hand(target.engine, engine))
    return best_cost(target, kernels[-1] if kernels else None)


def _roofline(rest: str, target: Target) -> Roofline:
    shares = [f.name for f in fields(Efficiency)]
    values = _numbers("roofline", rest, rest, (*shares, *_OF_ENGINE))
    engine = {_OF_ENGINE[name]: values.pop(name) for name in _OF_ENGINE if name in values}
    target = replace(target, engine=_by_hand(target.engine, engine))
    return roofline_of(target, Efficiency(**values))


def _profiled(rest: str, target: Target) -> Profiled:
    name, engine, max_error = split_profile(rest)
    profile = find_profile(
        name,
        model=target.model,
        tp=target.tp,
        kv_dtype=target.kv_dtype,
        block_size=target.block_size,
    )
    profile.check_error(max_error)
    own = target.engine
    if profile.terms.overhead is None:
        own = _by_hand(own, engine)
    elif engine:
        profile = profile.with_overhead(**engine)
    cost = profiled(profile, replace(target, engine=own))
    cost.notes = (*cost.notes, f"profile {profile.name}: {profile.held_out_error}")
    return cost


def _by_hand(own: EngineTime, given: Mapping[str, float]) -> EngineTime:
    """Return an engine's time with the numbers that the user gave, if any."""
    if not given:
        return own
    return replace(
        own,
        iteration_s=given.get("iteration_s", own.iteration_s),
        sequence_s=given.get("sequence_s", own.sequence_s),
        source=BY_HAND,
    )


def split_profile(rest: str) -> tuple[str, dict[str, float], float]:
    """Split a profile cost into the profile's name or path, the engine's time and the error bound.

    Args:
        rest: text of a cost after ``profile:``.

    Returns:
        The name or path, the given keywords of `Profile.with_overhead`, and the largest error that
        `Profile.check_error` accepts.

    Raises:
        PagesimError: an option is unknown or not a number, or the bound is not above 0.
    """
    name, _, options = rest.partition(",")
    values = _numbers("profile", rest, options, (*_OF_ENGINE, "max_error"))
    max_error = values.pop("max_error", MAX_ERROR)
    if not max_error > 0:
        raise PagesimError(f"cost is 'profile:{rest}'; max_error must be above 0")
    return name, {_OF_ENGINE[key]: value for key, value in values.items()}, max_error


def _numbers(kind: str, rest: str, options: str, known: Sequence[str]) -> dict[str, float]:
    """Parse ``name=value,…`` into numbers by name, rejecting unknown names."""
    text = f"{kind}:{rest}"
    values: dict[str, float] = {}
    for part in options.split(",") if options else []:
        name, _, value = part.partition("=")
        if name not in known:
            raise PagesimError(f"cost is {text!r}; {kind} takes {', '.join(known)}, not {name!r}")
        values[name] = _number(text, value)
    return values


def _affine(rest: str, target: Target) -> Affine:
    text = f"affine:{rest}"
    numbers = [_number(text, part) for part in rest.split(",")]
    if len(numbers) not in (3, 4):
        raise PagesimError(
            f"cost is {text!r}; affine takes 3 or 4 numbers: s, s/token, s/context token[, s/swapped block]"
        )
    return Affine(*numbers)


def _number(text: str, part: str) -> float:
    try:
        return float(part)
    except ValueError:
        raise PagesimError(f"cost is {text!r}; {part!r} is not a number") from None


COST_MODELS: Plugins[MakeCost] = Plugins(
    "cost",
    "pagesim.cost_models",
    {"auto": _auto, "roofline": _roofline, "affine": _affine, "profile": _profiled},
    methods=("iteration", "decode"),
)
"""Makers of cost models, by the name before the colon."""
