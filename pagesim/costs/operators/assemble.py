"""From operators to a profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pagesim.costs.base import AttentionSpan
from pagesim.costs.held_out import TermError
from pagesim.costs.operators.dtypes import BF16, Dtypes, dtypes, in_types
from pagesim.costs.operators.held_out import Score, held_out_of
from pagesim.costs.operators.iteration import Operators, operators
from pagesim.costs.operators.launches import launching
from pagesim.costs.operators.planes import Plane
from pagesim.costs.operators.store import NOTICE
from pagesim.costs.operators.sums import Knots, knots
from pagesim.costs.operators.system_tables import Tables
from pagesim.costs.profiles import schema1
from pagesim.costs.profiles.analytic import SIZES, analytic_profile
from pagesim.costs.profiles.profile import (
    ANY_BLOCK,
    Origin,
    Profile,
    Range,
    Reached,
    Shape,
    States,
    Terms,
)
from pagesim.costs.table import Table, constant
from pagesim.errors import PagesimError
from pagesim.hardware import GpuSpec
from pagesim.hardware import gpu as gpu_of
from pagesim.models import ModelSpec

GPUS = {
    "a100_sxm": "a100-80gb",
    "h100_sxm": "h100",
    "h200_sxm": "h200",
    "b200_sxm": "b200",
    "gb200": "gb200",
}
"""What systems of the tables are called in the catalogue of GPUs."""

NOTHING = constant("tokens", 0.0)


def operator_profile(
    tables: Tables,
    model: ModelSpec,
    gpu: GpuSpec,
    types: Dtypes,
    *,
    tp: int = 1,
    moe_ep: int = 1,
    moe_backend: str | None = None,
    kv_dtype: str = "bf16",
    name: str,
    errors: Mapping[str, TermError] | None = None,
) -> Profile:
    """Return the profile that operator tables make of a model; what they lack is the datasheet's.

    It knows no engine: an iteration's own time is the engine's that runs it.

    Args:
        tables: of the GPU and engine.
        model: any whose layers can be summed up (see `operators`).
        gpu: for what the tables lack, and for copies and swaps, which no table has.
        types: of weights and cache.
        tp: GPUs over which the model is divided.
        moe_ep: GPUs over which experts are dealt out, a divisor of ``tp``.
        moe_backend: see `operators`.
        kv_dtype: of the cache, as pagesim calls it.
        name: of the profile.
        errors: by term, on held-out points of the tables.

    Raises:
        PagesimError: the model cannot be divided so, a table is damaged, or attention of layers that do not
            look back on all tokens, or a state, is in no table: a datasheet has no term of it.
    """
    found = operators(tables, model, tp, types, moe_ep=moe_ep, moe_backend=moe_backend)
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
    terms = _terms(found, rest.terms, model)
    sources = dict(found.origins)
    if found.linear is None:
        sources.pop("linear", None)
    if found.decode:
        sources["write"] = "in the time of attention"
    for term, of in (("all_reduce_eager", "all_reduce"), ("reached", "decode")):
        if of in sources:
            sources[term] = sources[of]
    names = terms.names()
    origins: dict[str, Origin] = {term: "imported" if term in sources else "datasheet" for term in names}
    release = f"{tables.store.backend} {tables.store.version}"
    of_types = model.weights_in_words
    missing = tuple(f"{term}: {why}; it is the datasheet's" for term, why in found.missing.items())
    return Profile(
        name=name,
        kind="imported",
        sentence=f"{model.name} on {tp} {gpu.name}, {release}, weights {of_types}: sums of timed operators",
        model=Shape.of(model),
        tp=tp,
        dtype=of_types,
        kv_dtype=kv_dtype,
        sources={term: source for term, source in sources.items() if term in origins},
        gpu=gpu.name,
        terms=terms,
        origins=origins,
        ranges=_ranges(found),
        errors={term: error for term, error in (errors or {}).items() if origins.get(term) == "imported"},
        machine={"gpu": gpu.name, "system": tables.store.system, "release": release, "source": NOTICE},
        notes=(
            "copies, swaps and the engine's own time were not timed: copies and swaps are the datasheet's",
            *missing,
            *dict.fromkeys(found.notes),
        ),
    )


def import_operators(
    tables: Tables,
    model: ModelSpec,
    *,
    tp: int = 1,
    moe_ep: int = 1,
    moe_backend: str | None = None,
    weight_dtype: str | None = None,
    expert_dtype: str | None = None,
    kv_dtype: str = "bf16",
    name: str | None = None,
    scores: Sequence[Score] | None = None,
) -> Profile:
    """Return a model's profile by its types' names, with the errors of its terms on held-out points.

    Args:
        tables: of the GPU and engine.
        model: see `operator_profile`.
        tp: GPUs over which the model is divided.
        moe_ep: of these, those over which experts are dealt out; it divides ``tp``.
        moe_backend: see `operators`.
        weight_dtype: see `in_types`; as the model is released when left out.
        expert_dtype: see `in_types`.
        kv_dtype: of the cache.
        name: of the profile; MODEL-GPU-tpN when left out, and further types behind it.
        scores: of these tables, if they are at hand.

    Raises:
        PagesimError: see `operator_profile`; an unknown type, or a GPU that is not in the catalogue.
    """
    store = tables.store
    if store.system not in GPUS:
        raise PagesimError(
            f"system is {store.system!r}; no datasheet here is of its GPU, for what tables lack: it must "
            f"be one of {', '.join(GPUS)}"
        )
    if tp % moe_ep:
        raise PagesimError(f"expert_parallel_size is {moe_ep}; it must divide the {tp} GPUs")
    gpu = gpu_of(GPUS[store.system])
    model = in_types(model, weight_dtype, expert_dtype)
    types = dtypes(model, kv_dtype)
    further = (
        weight_dtype,
        f"experts-{expert_dtype}" if expert_dtype else None,
        f"ep{moe_ep}" if moe_ep > 1 else None,
        moe_backend,
        "kv-fp8" if kv_dtype == "fp8" else None,
    )
    return operator_profile(
        tables,
        model,
        gpu,
        types,
        tp=tp,
        moe_ep=moe_ep,
        moe_backend=moe_backend,
        kv_dtype=kv_dtype,
        name=name or "-".join((model.name, gpu.name, f"tp{tp}", *(each for each in further if each))),
        errors=errors_of(held_out_of(tables) if scores is None else scores, types, model),
    )


def errors_of(scores: Sequence[Score], types: Dtypes, model: ModelSpec) -> dict[str, TermError]:
    """Return the errors of a model's terms on held-out points.

    Args:
        scores: of the tables.
        types: of its weights and cache.
        model: with latent attention or without.
    """
    latent = f"{types.attention}, KV {types.cache}"
    of = {
        "linear": ("linear", types.shared if model.moe else types.mlp),
        "head": ("linear", BF16),
        "experts": ("experts", types.experts),
        "all_reduce": ("all_reduce", BF16),
        "decode": ("latent decode", latent) if model.mla else ("decode", types.cache),
        "prefill": ("latent prompts", latent) if model.mla else ("prompts", types.cache),
    }
    known = {(score.term, score.dtype): score for score in scores}
    return {
        term: TermError(mean=round(each.mean, 4), worst=round(each.worst, 4), points=each.points)
        for term, key in of.items()
        if (each := known.get(key)) is not None
    }


def _terms(found: Operators, rest: Terms, model: ModelSpec) -> Terms:
    # Of blocks of one token, the datasheet's copies and swaps are over tokens.
    states = None
    if found.states_decode is not None and found.states_prompts is not None:
        states = States(
            decode=_curve(found.states_decode, "sequences"), prefill=_of_tokens(found.states_prompts)
        )
    return Terms(
        linear=rest.linear if found.linear is None else _curve(found.linear),
        head=rest.head if found.head is None else _curve(found.head, "sequences"),
        write=NOTHING if found.decode else rest.write,
        decode={ANY_BLOCK: _decode(_whole(found.decode)) if found.decode else rest.decode[1]},
        prefill={ANY_BLOCK: _prefill(_whole(found.prompts)) if found.prompts else rest.prefill[1]},
        copy={ANY_BLOCK: _short(rest.copy_[1])},
        swap_out={ANY_BLOCK: _short(rest.swap_out[1])},
        swap_in={ANY_BLOCK: _short(rest.swap_in[1])},
        all_reduce=rest.all_reduce if found.all_reduce is None else _curve(found.all_reduce),
        all_reduce_eager=None if found.all_reduce_eager is None else _curve(found.all_reduce_eager),
        experts=None if found.experts is None else _curve(found.experts),
        reached={
            f"{span.kind}:{span.size}": Reached(decode=_decode(plane), prefill=_prefill(found.prompts[span]))
            for span, plane in found.decode.items()
            if span is not None
        },
        states=states,
        launching=launching(model),
    )


def _of_tokens(plane: Plane) -> Table:
    """Return what prompts take by their tokens: one prompt of so many, or as many of the longest."""
    longest = int(plane.length[-1])
    return _curve(knots(lambda tokens: plane(max(1, tokens // longest), min(tokens, longest))))


def _whole(planes: Mapping[AttentionSpan | None, Plane]) -> Plane:
    """Return attention to all tokens; one that takes no time where no layer looks back on all."""
    if None in planes:
        return planes[None]
    one = np.array([1], np.int64)
    return Plane(one, one, np.zeros((1, 1)))


def _decode(plane: Plane) -> Table:
    return Table.model_validate(schema1.decode(plane.decode_table()))


def _prefill(plane: Plane) -> Table:
    return Table.model_validate(schema1.prefill(plane.prefill_table()))


def _curve(knots: Knots, axis: str = "tokens") -> Table:
    return Table(axes={axis: knots.at}, seconds=knots.seconds)


def _short(table: Table) -> Table:
    """Return a table that is a line by its two ends."""
    return Table.of({"blocks": (table.knots[0][0], SIZES[-1])}, table).rounded(5)


def _ranges(found: Operators) -> dict[str, Range]:
    ranges: dict[str, Range] = {}
    for term, curve in (("linear", found.linear), ("head", found.head), ("all_reduce", found.all_reduce)):
        if curve is not None:
            ranges[term] = Range(least=curve.at[0], most=curve.at[-1])
    if found.experts is not None:
        ranges["experts"] = Range(least=found.experts.at[0], most=found.experts.at[-1])
    for planes in (found.decode, found.prompts):
        for plane in list(planes.values())[:1]:
            batch, length = int(plane.batch[-1]), int(plane.length[-1])
            if planes is found.decode:
                ranges["decode"] = Range(least=1, most=batch, most_context=length)
            else:
                ranges["prefill"] = Range(least=1, most=plane.most, most_context=length * (length + 1) // 2)
    return ranges
