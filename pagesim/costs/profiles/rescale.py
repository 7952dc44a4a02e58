"""Rescaling: carry a profile to another GPU or model, by the shares of the datasheet's rates it reached."""

from __future__ import annotations

from collections.abc import Callable

from pagesim.costs.profiles.attention import DecodeAttention, PrefillAttention
from pagesim.costs.profiles.bounds import Bounds
from pagesim.costs.profiles.curves import Curve
from pagesim.costs.profiles.profile import Launching, Profile, Shape, Terms, check_attends_to_all
from pagesim.costs.specs import GpuSpec, ModelSpec
from pagesim.errors import PagesimError


def rescale(
    profile: Profile, of: ModelSpec, on: GpuSpec, *, model: ModelSpec, gpu: GpuSpec, name: str
) -> Profile:
    """Return a profile for another model or GPU, marked as rescaled.

    Every term keeps the share of its bound (bytes over bandwidth, operations over peak, bytes over link) that
    it reached at the same size. Launches go with the number of layers; the engine's overhead stays as it is.

    Args:
        profile: of ``of``, on ``on``.
        of: the model that it was made for.
        on: the GPU that it was made on.
        model: the one that it shall be for.
        gpu: likewise.
        name: of the new one.

    Raises:
        PagesimError: it is not a profile of that, it is a rescaled one itself, the model cannot be divided
            over as many GPUs, or has layers that do not look back on all tokens.
    """
    if profile.kind == "rescaled":
        raise PagesimError(f"profile {profile.name} is rescaled itself; rescale what it was made from")
    if Shape.of(of) != profile.model:
        raise PagesimError(f"profile {profile.name} is for {profile.model.name}, not {of.name}")
    check_attends_to_all(model, f"profile {profile.name}")
    before = Bounds(of, on, tp=profile.tp, kv_dtype=profile.kv_dtype)
    after = Bounds(model, gpu, tp=profile.tp, kv_dtype=profile.kv_dtype)
    layers = model.layers / of.layers
    wide = layers * model.heads * model.head_dim / (of.heads * of.head_dim)

    def carried(curve: Curve, bound: Callable[[Bounds], Callable[[int], float]], tokens: int = 1) -> Curve:
        new, old = bound(after), bound(before)
        return curve.scaled(new(max(1, size) * tokens) / old(max(1, size) * tokens) for size in curve.at)

    old = profile.terms
    decode = {size: each for size, each in old.decode.items() if isinstance(each, DecodeAttention)}
    prefill = {size: each for size, each in old.prefill.items() if isinstance(each, PrefillAttention)}
    tables = len(decode) < len(old.decode) or len(prefill) < len(old.prefill)
    if tables or old.reached or old.states or old.experts:
        raise PagesimError(
            f"profile {profile.name} has attention as a table, or experts; import the tables of {gpu.name} "
            "for the model instead of rescaling"
        )
    terms = Terms(
        linear=carried(old.linear, lambda bounds: bounds.linear),
        head=carried(old.head, lambda bounds: bounds.head),
        write=carried(old.write, lambda bounds: bounds.write),
        decode={
            size: each.model_copy(
                update={
                    "launch_s": each.launch_s * layers,
                    "sequence_s": each.sequence_s * wide,
                    "context_s": each.context_s * after.context_s / before.context_s,
                    "round_s": each.round_s * after.context_s / before.context_s,
                    "kv_heads": model.kv_heads_per_gpu(profile.tp),
                }
            )
            for size, each in decode.items()
        },
        prefill={
            size: each.model_copy(
                update={
                    "launch_s": each.launch_s * layers,
                    "token_s": each.token_s * wide,
                    "pair_s": each.pair_s * after.pair_s / before.pair_s,
                    "key_s": each.key_s * layers,
                }
            )
            for size, each in prefill.items()
        },
        copy={size: carried(each, lambda bounds: bounds.copy, size) for size, each in old.copy_.items()},
        swap_out={
            size: carried(each, lambda bounds: bounds.swap, size) for size, each in old.swap_out.items()
        },
        swap_in={size: carried(each, lambda bounds: bounds.swap, size) for size, each in old.swap_in.items()},
        overhead=old.overhead,
        all_reduce=None
        if old.all_reduce is None
        else carried(old.all_reduce, lambda bounds: bounds.all_reduce),
        launching=Launching(**{name: seconds * layers for name, seconds in old.launching}),
    )
    origins = {
        term: origin if origin == "datasheet" else "rescaled" for term, origin in profile.origins.items()
    }
    return profile.model_copy(
        update={
            "name": name,
            "kind": "rescaled",
            "sentence": f"{profile.name}, carried to {model.name} on {gpu.name} by the shares of its bounds",
            "model": Shape.of(model),
            "dtype": model.weights_in_words,
            "gpu": gpu.name,
            "terms": terms,
            "origins": origins,
            "machine": {**profile.machine, "rescaled_to": gpu.name},
            "notes": (
                *profile.notes,
                f"rescaled from {profile.name}, {profile.model.name} on {on.name}; the errors are its own",
            ),
            "samples": (),
            "held_out": (),
        }
    )
