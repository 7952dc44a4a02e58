"""``--cost auto``: measured costs of a model on a GPU if available, else the roofline; notes say which."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pagesim.costs.assumptions import of_operators
from pagesim.costs.engines import BY_HAND
from pagesim.costs.operators.assemble import operator_profile
from pagesim.costs.operators.experts import check_kernel
from pagesim.costs.operators.tables import Chip, chip_of
from pagesim.costs.profiled import Profiled
from pagesim.costs.profiles import Profile, bundled_names, bundled_profile
from pagesim.costs.roofline import Efficiency, Roofline
from pagesim.errors import PagesimError

if TYPE_CHECKING:
    from pagesim.costs.parse import Target


def best_cost(target: Target, moe_backend: str | None = None) -> Profiled | Roofline:
    """Return a target's cost model from the best bundled measurements, else the roofline.

    A bundled profile of the model is preferred to a sum of operators that were timed on the GPU. Notes say
    what was used, and how large its error is.

    Args:
        target: what is served, and how.
        moe_backend: kernel of experts; by default, the first that was timed.

    Raises:
        PagesimError: there is no such kernel.
    """
    if moe_backend is not None:
        check_kernel(moe_backend)
    for profile, cost in _fitting(target):
        cost.notes = (*cost.notes, f"using profile {profile.name}: {_said(profile, target.release)}")
        return cost
    chip, why = chip_of(target.gpu, target.release), f"no operators were timed on {target.gpu.name}"
    if chip is not None:
        try:
            profile = operator_profile(
                chip, target.model, tp=target.tp, kv_dtype=target.kv_dtype, moe_backend=moe_backend
            )
            cost = profiled(profile, target)
        except PagesimError as error:
            why = str(error)
        else:
            cost.notes = (*cost.notes, _of_operators(profile, chip, target), *profile.notes)
            return cost
    roofline = roofline_of(target)
    roofline.notes = (*roofline.notes, f"{why}; using datasheet estimates (cost roofline)")
    return roofline


def _fitting(target: Target) -> Iterator[tuple[Profile, Profiled]]:
    """Yield the bundled profiles that apply to a target, with their cost models."""
    for name in bundled_names():
        # A profile's name begins with its model's, so only these need to be read.
        if not name.startswith(f"{target.model.shape_name}-"):
            continue
        profile = bundled_profile(name)
        # Measured ones time pagesim's own kernels; rescaled or analytic ones are no better than roofline.
        if profile.kind != "imported" or profile.gpu != target.gpu.name:
            continue
        if target.engine.source == BY_HAND:
            profile = profile.model_copy(
                update={"terms": profile.terms.model_copy(update={"overhead": None})}
            )
        try:
            cost = profiled(profile, target)
        except PagesimError:  # another parallelism, data type or block size
            continue
        yield profile, cost


def roofline_of(target: Target, efficiency: Efficiency | None = None) -> Roofline:
    """Return the roofline cost model of a target."""
    return Roofline(
        target.model,
        target.gpu,
        tp=target.tp,
        block_size=target.block_size,
        kv_dtype=target.kv_dtype,
        efficiency=efficiency,
        engine=target.engine,
        drafter=target.drafter,
    )


def profiled(profile: Profile, target: Target) -> Profiled:
    """Return the cost model of a target from a profile."""
    return Profiled(
        profile,
        target.model,
        tp=target.tp,
        block_size=target.block_size,
        kv_dtype=target.kv_dtype,
        engine=target.engine,
    )


def _said(profile: Profile, release: str) -> str:
    """Describe a profile's errors, and the timed release if it differs."""
    said = f"{profile.kind}, {profile.held_out_error}"
    timed = profile.machine.get("release")
    if timed and release and timed != release:
        said += f"; operators of {timed} for {release}"
    return said


def _of_operators(profile: Profile, chip: Chip, target: Target) -> str:
    """Describe which releases' operators are summed, and the error of such sums."""
    releases = dict.fromkeys(source.rpartition(", ")[2] for source in profile.sources.values())
    of = f"operators of {' and '.join(releases)} timed on {chip.gpu.name}"
    said = f"using {of}, for {target.release}" if target.release else f"using {of}"
    return f"{said}: {of_operators(target.model)}"
