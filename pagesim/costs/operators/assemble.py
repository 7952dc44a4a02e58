"""From operators to a profile."""

from __future__ import annotations

from collections.abc import Mapping

from pagesim.costs.operators.dtypes import Dtypes
from pagesim.costs.operators.held_out import BARS
from pagesim.costs.operators.iteration import Operators, operators
from pagesim.costs.operators.planes import Plane
from pagesim.costs.operators.store import NOTICE
from pagesim.costs.operators.sums import Knots
from pagesim.costs.operators.tables import Tables
from pagesim.costs.profiles.analytic import SIZES, analytic_profile
from pagesim.costs.profiles.attention import DecodeAttention, PrefillAttention
from pagesim.costs.profiles.curves import Curve
from pagesim.costs.profiles.profile import ANY, Origin, Profile, Range, Shape, TermError, Terms
from pagesim.costs.profiles.tables import DecodeTable, PromptTable, ReachTerm, StatesTerm
from pagesim.costs.specs import GpuSpec, ModelSpec
from pagesim.errors import PagesimError

GPUS = {
    "a100_sxm": "a100-80gb",
    "h100_sxm": "h100",
    "h200_sxm": "h200",
    "b200_sxm": "b200",
    "gb200": "gb200",
}
"""What systems of the tables are called in the catalogue of GPUs."""

NOTHING = Curve(at=(1,), seconds=(0.0,))


def operator_profile(
    tables: Tables,
    model: ModelSpec,
    gpu: GpuSpec,
    types: Dtypes,
    *,
    tp: int = 1,
    moe_ep: int = 1,
    kv_dtype: str = "bf16",
    name: str,
    errors: Mapping[str, TermError] | None = None,
) -> Profile:
    """Return the profile that operator tables make of a model; what they lack is the datasheet's.

    It knows no engine: an iteration's own time is the engine's that runs it.

    Args:
        tables: of the GPU and engine.
        model: any whose layers can be summed up (see `operators`).
        gpu: for what the tables lack, and for copies and swaps, which nobody times.
        types: of weights and cache.
        tp: GPUs over which the model is divided.
        moe_ep: GPUs over which experts are dealt out, a divisor of ``tp``.
        kv_dtype: of the cache, as pagesim calls it.
        name: of the profile.
        errors: by term, on held-out points of the tables.

    Raises:
        PagesimError: the model cannot be divided so, a table is damaged, or attention of layers that do not
            look back on all tokens, or a state, is in no table: a datasheet has no term of it.
    """
    found = operators(tables, model, tp, types, moe_ep=moe_ep)
    rest = analytic_profile(gpu, model, tp=tp, kv_dtype=kv_dtype, block_sizes=(1,))
    if model.moe is not None and ("experts" in found.missing or "linear" in found.missing):
        # The datasheet knows products and experts together: without one it is both.
        found.linear = found.experts = None
    limited = not model.keeps_all
    if limited and (found.missing.keys() & {"decode", "prefill", "states"}):
        term = next(iter(found.missing.keys() & {"decode", "prefill", "states"}))
        raise PagesimError(
            f"{tables.store.system}: {found.missing[term]}, and the layers of {model.name} are "
            f"{model.layers_in_words}: there is no profile of them; choose cost roofline"
        )
    terms = _terms(found, rest.terms)
    origins: dict[str, Origin] = {}
    for term in terms.names():
        origins[term] = "imported" if term in found.origins else "datasheet"
    if found.linear is None:
        origins["linear"] = "datasheet"
    if found.decode:
        origins["write"] = "imported"  # in attention's time
    release = f"{tables.store.backend} {tables.store.version}"
    of_types = (
        types.weights if types.experts == types.weights else f"{types.weights}, experts {types.experts}"
    )
    missing = tuple(f"{term}: {why}; it is the datasheet's" for term, why in found.missing.items())
    return Profile(
        name=name,
        kind="imported",
        sentence=f"{model.name} on {tp} {gpu.name}, {release}, weights {of_types}: sums of timed operators",
        model=Shape.of(model),
        tp=tp,
        dtype=of_types,
        kv_dtype=kv_dtype,
        release=release,
        sources={term: source for term, source in found.origins.items() if origins.get(term) == "imported"},
        gpu=gpu.name,
        terms=terms,
        origins=origins,
        ranges=_ranges(found),
        errors={term: error for term, error in (errors or {}).items() if origins.get(term) == "imported"},
        machine={"gpu": gpu.name, "system": tables.store.system, "source": NOTICE},
        notes=(
            "copies, swaps and the engine's own time were not timed: copies and swaps are the datasheet's",
            *missing,
            *dict.fromkeys(found.notes),
        ),
    )


def held_out_errors(scores: Mapping[str, tuple[float, float, int]]) -> dict[str, TermError]:
    """Return errors as a profile keeps them: mean, worst and points, by term."""
    return {
        term: TermError(mean=round(mean, 4), worst=round(worst, 4), points=points)
        for term, (mean, worst, points) in scores.items()
        if term in BARS
    }


def _terms(found: Operators, rest: Terms) -> Terms:
    decode: DecodeAttention | DecodeTable = rest.decode[1]
    prefill: PrefillAttention | PromptTable = rest.prefill[1]
    if found.decode and found.prompts:
        whole = found.decode.get(None), found.prompts.get(None)
        decode = _none(whole[0]).decode_table()
        prefill = _none(whole[1]).prompt_table()
    elif found.decode or found.prompts:
        decode = found.decode[None].decode_table() if None in found.decode else decode
        prefill = found.prompts[None].prompt_table() if None in found.prompts else prefill
    reaching = tuple(
        ReachTerm(
            kind="window" if reach.kind == "window" else "chunk",
            size=reach.size,
            decode=plane.decode_table(),
            prefill=found.prompts[reach].prompt_table(),
        )
        for reach, plane in found.decode.items()
        if reach is not None
    )
    states = None
    if found.states_decode is not None and found.states_prompts is not None:
        states = StatesTerm(decode=_curve(found.states_decode), prefill=found.states_prompts.prompt_table())
    reduces, eager = found.all_reduce, found.all_reduce_eager
    # Per token in a cache of blocks of one token, and so over tokens: any block size.
    return Terms(
        linear=rest.linear if found.linear is None else _curve(found.linear),
        head=rest.head if found.head is None else _curve(found.head),
        write=NOTHING if found.decode else rest.write,
        decode={ANY: decode},
        prefill={ANY: prefill},
        copy={ANY: _short(rest.copy_[1])},
        swap_out={ANY: _short(rest.swap_out[1])},
        swap_in={ANY: _short(rest.swap_in[1])},
        overhead=NOTHING,
        all_reduce=rest.all_reduce if reduces is None else _curve(reduces),
        all_reduce_eager=None if eager is None else _curve(eager),
        experts=None if found.experts is None else _curve(found.experts),
        reaching=reaching,
        states=states,
    )


def _none(plane: Plane | None) -> Plane:
    """Return a plane, or one that takes no time: no layer looks back on all tokens."""
    if plane is not None:
        return plane
    import numpy as np

    one = np.array([1], np.int64)
    return Plane(one, one, np.zeros((1, 1)))


def _curve(knots: Knots) -> Curve:
    return Curve(at=knots.at, seconds=knots.seconds)


def _short(curve: Curve) -> Curve:
    """Return a curve that is a line by its two ends."""
    ends = (curve.at[0], SIZES[-1])
    return Curve(at=ends, seconds=tuple(float(f"{curve(size):.5g}") for size in ends))


def _ranges(found: Operators) -> dict[str, Range]:
    ranges: dict[str, Range] = {}
    for term, curve in (("linear", found.linear), ("head", found.head), ("all_reduce", found.all_reduce)):
        if curve is not None:
            ranges[term] = Range(least=curve.at[0], most=curve.at[-1])
    if found.experts is not None:
        ranges["experts"] = Range(least=found.experts.at[0], most=found.experts.at[-1])
    for term, planes in (("decode", found.decode), ("prefill", found.prompts)):
        for plane in planes.values():
            batch, length = plane.batch, plane.length
            ranges[term] = Range(
                least=int(batch[0]),
                most=int(batch[-1]) * (1 if term == "decode" else int(length[-1])),
                most_context=int(length[-1]) if term == "decode" else int(length[-1]) ** 2,
            )
            break
    return ranges
