"""Assembly of a profile from timed operators."""

from __future__ import annotations

from pagesim.costs.operators.iteration import Operators
from pagesim.costs.operators.tables import NOTICE, Chip, OperatorTables
from pagesim.costs.profiles.profile import Origin, Profile, Shape
from pagesim.errors import PagesimError
from pagesim.hardware import gpu as gpu_of
from pagesim.models import ModelSpec


def operator_profile(
    chip: Chip,
    model: ModelSpec,
    *,
    tp: int = 1,
    kv_dtype: str = "bf16",
    moe_ep: int = 1,
    moe_backend: str | None = None,
    name: str = "",
) -> Profile:
    """Return a model's profile from operator tables, or from the datasheet where they lack a term.

    The profile has no overhead of its own: the run's engine adds it.

    Args:
        chip: the GPU and its measurements.
        model: see `Operators`.
        tp: GPUs over which the model is divided.
        kv_dtype: data type of the KV cache.
        moe_ep: see `Operators`.
        moe_backend: see `Operators`.
        name: name of the profile; by default MODEL-GPU-tpN.

    Raises:
        PagesimError: the model cannot be divided this way, or there is no such kernel.
    """
    found = Operators(chip, model, tp=tp, kv_dtype=kv_dtype, moe_ep=moe_ep, moe_backend=moe_backend)
    terms = found.terms()
    of_types = model.weights_in_words
    used = {term: table for term, table in found.used.items() if term in terms.names()}
    origins: dict[str, Origin] = {
        term: "datasheet" if term in found.missing or (term not in used and term != "reached") else "imported"
        for term in terms.names()
    }
    if "decode" in used:
        origins["write"] = "imported"
    release = max((table.release for table in used.values() if table.release.startswith("vllm")), default="")
    notes = [
        *(f"{term}: {why}; it is the datasheet's" for term, why in found.missing.items()),
        *dict.fromkeys(found.notes),
    ]
    return Profile(
        name=name or f"{model.name}-{chip.gpu.name}-tp{tp}",
        kind="imported",
        sentence=f"{model.name} on {tp} {chip.gpu.name}, weights {of_types}: sums of timed operators",
        model=Shape.of(model),
        tp=tp,
        dtype=of_types,
        kv_dtype=kv_dtype,
        sources={term: f"{' '.join(table.name)}, {table.release}" for term, table in used.items()},
        gpu=chip.gpu.name,
        terms=terms,
        origins=origins,
        ranges=found.ranges,
        errors={term: table.held_out for term, table in used.items() if term in _WITH_ERRORS},
        machine={"gpu": chip.gpu.name, "release": release, "source": NOTICE},
        notes=tuple(notes),
    )


def imported_profile(
    tables: OperatorTables,
    model: ModelSpec,
    *,
    tp: int = 1,
    moe_ep: int = 1,
    moe_backend: str | None = None,
    weight_dtype: str | None = None,
    kv_dtype: str = "bf16",
    name: str | None = None,
) -> Profile:
    """Return a model's profile from operator tables and the names of its data types.

    Args:
        tables: operator tables of a GPU.
        model: see `Operators`.
        tp: GPUs over which the model is divided.
        moe_ep: expert parallel degree; a divisor of ``tp``.
        moe_backend: see `Operators`.
        weight_dtype: data type of the weights; by default, as the model was released.
        kv_dtype: data type of the KV cache.
        name: name of the profile; by default MODEL-GPU-tpN, followed by the other choices.

    Raises:
        PagesimError: a type or GPU is unknown, or the model cannot be divided this way.
    """
    if tp % moe_ep:
        raise PagesimError(f"expert_parallel_size is {moe_ep}; it must divide the {tp} GPUs")
    gpu = gpu_of(tables.gpu)
    model = model if weight_dtype is None else model.with_weights(weight_dtype)
    further = (weight_dtype, f"ep{moe_ep}" if moe_ep > 1 else None, moe_backend)
    parts = (model.name, gpu.name, f"tp{tp}", *further, "kv-fp8" if kv_dtype == "fp8" else None)
    return operator_profile(
        Chip(gpu, tables),
        model,
        tp=tp,
        kv_dtype=kv_dtype,
        moe_ep=moe_ep,
        moe_backend=moe_backend,
        name=name or "-".join(each for each in parts if each),
    )


_WITH_ERRORS = ("linear", "head", "experts", "decode", "prefill", "all_reduce")
