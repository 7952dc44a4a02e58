"""Rescaling: carry a profile to another GPU, model or division, by the shares of the rates it reached."""

from __future__ import annotations

from collections.abc import Callable

from pagesim.costs.profiles.analytic import HBM, analytic_profile
from pagesim.costs.profiles.attention_terms import DecodeAttention, PrefillAttention
from pagesim.costs.profiles.bounds import Bounds
from pagesim.costs.profiles.curves import Curve
from pagesim.costs.profiles.profile import Launching, Profile, Shape, Terms, check_attends_to_all
from pagesim.errors import PagesimError
from pagesim.hardware import GpuSpec
from pagesim.models import ModelSpec

LAUNCH_S = 4e-6
"""What a kernel takes however little it has to do. Vidur's linear layers of Llama-2-7B on an A100 take, at
the sizes of decoding, 36 us a layer of nine kernels that no division over 4 or 8 GPUs makes shorter."""

KERNELS = {"linear": 9, "write": 1}
"""Kernels a layer: two norms, four products, rotation, activation and residual; and a write to the cache."""


def rescale(
    profile: Profile,
    of: ModelSpec,
    on: GpuSpec,
    *,
    model: ModelSpec,
    gpu: GpuSpec,
    tp: int | None = None,
    name: str,
    launch_s: float = LAUNCH_S,
) -> Profile:
    """Return a profile for another model, GPU or tensor parallel degree, marked as rescaled.

    What a term takes beyond its launches keeps the share of its bound (bytes over bandwidth, operations over
    peak, bytes over link) that it reached at the same size. Launches go with the number of layers and are no
    shorter on another GPU or on several. Norms and the residual stream are not divided among GPUs. The
    engine's overhead stays as it is. All-reduces of another link or degree are the datasheet's.

    Args:
        profile: of ``of``, on ``on``.
        of: the model that it was made for.
        on: the GPU that it was made on.
        model: the one that it shall be for.
        gpu: likewise.
        tp: likewise; the profile's when left out.
        name: of the new one.
        launch_s: of a kernel of linear layers and writes to the cache. With 0 all of a term is a share.

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
    tp = profile.tp if tp is None else tp
    after = Bounds(model, gpu, tp=tp, kv_dtype=profile.kv_dtype)
    layers = model.layers / of.layers
    wide = layers * model.heads * model.head_dim / (of.heads * of.head_dim) * profile.tp / tp

    def alone(term: str, where: ModelSpec, there: GpuSpec, size: int) -> float:
        """Return what a term takes on each GPU, over however many the model is divided."""
        seconds = KERNELS[term] * where.layers * launch_s
        if term == "linear" and tp != profile.tp:
            seconds += 16 * where.layers * where.hidden * size / (HBM * there.hbm_bytes_per_s)
        return seconds

    def carried(curve: Curve, bound: Callable[[Bounds], Callable[[int], float]], tokens: int = 1) -> Curve:
        new, old = bound(after), bound(before)
        return curve.scaled(new(max(1, size) * tokens) / old(max(1, size) * tokens) for size in curve.at)

    def apart(term: str, curve: Curve, bound: Callable[[Bounds], Callable[[int], float]]) -> Curve:
        """Return a curve carried, launches apart from what keeps its share."""
        if profile.origins[term] == "datasheet":
            return carried(curve, bound)
        factors = []
        for size, seconds in zip(curve.at, curve.seconds, strict=True):
            new, old = bound(after)(max(1, size)), bound(before)(max(1, size))
            own = alone(term, of, on, size)
            # No less is left than what bounds the term.
            counted = min(own, max(0.0, seconds - old))
            kept = counted * alone(term, model, gpu, size) / own if own else 0.0
            factors.append((kept + (seconds - counted) * new / old) / seconds if seconds else 1.0)
        return curve.scaled(factors)

    old = profile.terms
    decode = {size: each for size, each in old.decode.items() if isinstance(each, DecodeAttention)}
    prefill = {size: each for size, each in old.prefill.items() if isinstance(each, PrefillAttention)}
    tables = len(decode) < len(old.decode) or len(prefill) < len(old.prefill)
    if tables or old.decode_mixed or old.reached or old.states or old.experts:
        raise PagesimError(
            f"profile {profile.name} has attention as a table, or experts; import the tables of {gpu.name} "
            "for the model instead of rescaling"
        )
    same_link = tp == profile.tp and gpu.peer == on.peer
    reduces: list[Curve | None] = [
        carried(curve, lambda bounds: bounds.all_reduce) if curve is not None and same_link else None
        for curve in (old.all_reduce, old.all_reduce_eager)
    ]
    notes = [f"rescaled from {profile.name}, {profile.model.name} on {on.name}; the errors are its own"]
    if tp > 1 and not same_link:
        reduces[0] = analytic_profile(gpu, model, tp=tp, kv_dtype=profile.kv_dtype).terms.all_reduce
        notes.append(
            f"all-reduces are the datasheet's of {tp} {gpu.name}: another link's would be wrong for it"
        )
    terms = Terms(
        linear=apart("linear", old.linear, lambda bounds: bounds.linear),
        head=carried(old.head, lambda bounds: bounds.head),
        write=apart("write", old.write, lambda bounds: bounds.write),
        decode={
            size: each.model_copy(
                update={
                    "launch_s": each.launch_s * layers,
                    "sequence_s": each.sequence_s * wide,
                    "context_s": each.context_s * after.context_s / before.context_s,
                    "round_s": each.round_s * after.context_s / before.context_s,
                    "kv_heads": model.kv_heads_per_gpu(tp),
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
        all_reduce=reduces[0],
        all_reduce_eager=reduces[1],
        launching=Launching(
            decode_s=old.launching.decode_s * layers,
            prompt_s=old.launching.prompt_s * layers,
            mixed_s=old.launching.mixed_s * layers,
            unless_graphed=old.launching.unless_graphed,
        ),
    )
    origins = {
        term: "datasheet" if profile.origins.get(term) == "datasheet" else "rescaled"
        for term in terms.names()
    }
    if terms.all_reduce is not None and not same_link:
        origins["all_reduce"] = "datasheet"
    reduced = set() if same_link else {"all_reduce", "all_reduce_eager"}
    where = gpu.name if tp == profile.tp else f"{tp} {gpu.name}"
    return profile.model_copy(
        update={
            "name": name,
            "kind": "rescaled",
            "sentence": f"{profile.name}, carried to {model.name} on {where} by the shares of its bounds",
            "model": Shape.of(model),
            "dtype": model.weights_in_words,
            "gpu": gpu.name,
            "tp": tp,
            "terms": terms,
            "origins": origins,
            "ranges": {term: each for term, each in profile.ranges.items() if term not in reduced},
            "errors": {term: each for term, each in profile.errors.items() if term not in reduced},
            "machine": {**profile.machine, "rescaled_to": gpu.name},
            "notes": (*profile.notes, *notes),
            "samples": (),
            "held_out": (),
        }
    )
