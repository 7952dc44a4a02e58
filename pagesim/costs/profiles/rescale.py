"""Rescaling: transfer a profile to another GPU, model or tensor parallel degree by its achieved rates."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pagesim.costs.profiles.analytic import HBM, analytic_profile
from pagesim.costs.profiles.bounds import Bounds
from pagesim.costs.profiles.profile import Launching, Profile, Shape, Terms, check_attends_to_all
from pagesim.costs.table import Table
from pagesim.errors import PagesimError
from pagesim.hardware import GpuSpec
from pagesim.models import ModelSpec

LAUNCH_S = 4e-6
"""Minimum seconds of a kernel. At decode sizes, Vidur's linear layers of Llama-2-7B on an A100 take 36 us per
layer of nine kernels, which no division over 4 or 8 GPUs reduces."""

KERNELS = {"linear": 9, "write": 1, "decode": 1, "decode_mixed": 1, "prefill": 1}
"""Kernels per layer: two norms, four GEMMs, rotary embedding, activation and residual; a cache write; and
attention. Other terms are assumed to scale with their bound alone."""


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

    Beyond its launches, a term keeps its ratio to its bound (bytes over bandwidth, operations over peak,
    bytes over link) at the same size. Launches scale with the number of layers and take as long on another
    GPU or on several. Norms and the residual stream are not divided among GPUs. The engine's overhead stays
    as it is. All-reduces over another link or at another degree come from the datasheet.

    Args:
        profile: profile to rescale.
        of: model that the profile was made for.
        on: GPU that the profile was made on.
        model: model of the new profile.
        gpu: GPU of the new profile.
        tp: tensor parallel degree of the new profile; by default, that of ``profile``.
        name: name of the new profile.
        launch_s: launch seconds of a kernel of linear layers, cache writes or attention. With 0, a term
            scales with its bound alone.

    Raises:
        PagesimError: the profile is not for ``of`` or is rescaled itself, or the model cannot be divided
            over ``tp`` GPUs or has layers without full attention.
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
    old = profile.terms
    if old.reached or old.states or old.experts:
        raise PagesimError(
            f"profile {profile.name} has experts, states, or layers that look back on some tokens only; "
            f"import the tables of {gpu.name} for the model instead of rescaling"
        )

    def alone(term: str, where: ModelSpec, there: GpuSpec, size: float) -> float:
        """Return the seconds of a term on each GPU that do not depend on the number of GPUs."""
        seconds = KERNELS.get(term, 0) * where.layers * launch_s
        if term == "linear" and tp != profile.tp:
            seconds += 16 * where.layers * where.hidden * size / (HBM * there.hbm_bytes_per_s)
        return seconds

    def carried(term: str, table: Table, bound: Callable[[Bounds], Callable[..., float]]) -> Table:
        """Return a term rescaled at its knots: launches separately, the rest in proportion to its bound."""
        new_bound, old_bound = bound(after), bound(before)

        def seconds(*sizes: float) -> float:
            sizes = tuple(max(1, size) for size in sizes)
            taken, new, least = table(*sizes), new_bound(*sizes), old_bound(*sizes)
            own = 0.0 if profile.origins[term] == "datasheet" else alone(term, of, on, sizes[0])
            # At least the term's bound is left.
            counted = min(own, max(0.0, taken - least))
            kept = counted * alone(term, model, gpu, sizes[0]) / own if own else 0.0
            return kept + (taken - counted) * (new / least)

        return Table.of(table.axes, seconds).rising(*table.axes)

    def by_block(term: str, bound: Callable[..., Callable[..., float]]) -> dict[int, Table]:
        tables: dict[int, Table] = old.whole(term)
        return {size: carried(term, each, partial(bound, size=max(1, size))) for size, each in tables.items()}

    def decoded(bounds: Bounds, size: int) -> Callable[..., float]:
        return lambda sequences, context: bounds.context_s * sequences * context

    def prompted(bounds: Bounds, size: int) -> Callable[..., float]:
        return lambda tokens, keys: bounds.pair_s * tokens * keys

    def copied(bounds: Bounds, size: int) -> Callable[..., float]:
        return lambda blocks: bounds.copy(blocks * size)

    def swapped(bounds: Bounds, size: int) -> Callable[..., float]:
        return lambda blocks: bounds.swap(blocks * size)

    same_link = tp == profile.tp and gpu.peer == on.peer
    reduces: list[Table | None] = [
        carried(term, old.whole(term), lambda bounds: bounds.all_reduce)
        if old.whole(term) is not None and same_link
        else None
        for term in ("all_reduce", "all_reduce_eager")
    ]
    notes = [f"rescaled from {profile.name}, {profile.model.name} on {on.name}; the errors are its own"]
    if tp > 1 and not same_link:
        reduces[0] = analytic_profile(gpu, model, tp=tp, kv_dtype=profile.kv_dtype).terms.all_reduce
        notes.append(
            f"all-reduces are the datasheet's of {tp} {gpu.name}: another link's would be wrong for it"
        )
    terms = Terms(
        linear=carried("linear", old.linear, lambda bounds: bounds.linear),
        head=carried("head", old.head, lambda bounds: bounds.head),
        write=carried("write", old.write, lambda bounds: bounds.write),
        decode=by_block("decode", decoded),
        decode_mixed=by_block("decode_mixed", decoded),
        prefill=by_block("prefill", prompted),
        copy=by_block("copy", copied),
        swap_out=by_block("swap_out", swapped),
        swap_in=by_block("swap_in", swapped),
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
