"""``--cost auto``: the best profile there is for a model on a GPU, else the roofline; it says which."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pagesim.costs.profiled import Profiled
from pagesim.costs.profiles import Profile, bundled_names, bundled_profile
from pagesim.costs.roofline import Roofline
from pagesim.errors import PagesimError

if TYPE_CHECKING:
    from pagesim.costs.parse import Target

RANK = ("measured", "imported")
"""Kinds of profiles that are taken, the best first: a rescaled or analytic one is no better than roofline."""

ERROR_OF_ROOFLINE = "on published runs of vLLM its mean times were 15 to 30 % off, either way"
"""What is known of the error of datasheet estimates."""


def best_cost(target: Target) -> Profiled | Roofline:
    """Return the costs of a target by the best bundled profile that fits it, else by the roofline.

    Its notes say what was taken, and what error such a profile has.

    Args:
        target: the model, the GPU, and how it is divided, kept and served.
    """
    for profile, cost in sorted(_fitting(target), key=lambda each: RANK.index(each[0].kind)):
        cost.notes = (*cost.notes, f"using profile {profile.name}: {_said(profile, target.release)}")
        return cost
    roofline = Roofline(
        target.model,
        target.gpu,
        tp=target.tp,
        block_size=target.block_size,
        kv_dtype=target.kv_dtype,
        engine=target.engine,
        drafter=target.drafter,
    )
    roofline.notes = (
        *roofline.notes,
        f"no measured profile matches {target.model.name} ({target.model.weights_in_words}, KV cache "
        f"{target.kv_dtype}) on {target.tp} {target.gpu.name}; using datasheet estimates (cost roofline): "
        f"{ERROR_OF_ROOFLINE}",
    )
    return roofline


def _fitting(target: Target) -> Iterator[tuple[Profile, Profiled]]:
    """Yield the bundled profiles of a target's model and GPU that hold for it, with their costs."""
    for name in bundled_names():
        # A profile's name begins with its model's: not all of them are read.
        if not name.startswith(f"{target.model.shape_name}-"):
            continue
        profile = bundled_profile(name)
        if profile.kind not in RANK or profile.gpu != target.gpu.name:
            continue
        try:
            cost = Profiled(
                profile,
                target.model,
                tp=target.tp,
                block_size=target.block_size,
                kv_dtype=target.kv_dtype,
                engine=target.engine,
            )
        except PagesimError:  # of another division, type or block size
            continue
        yield profile, cost


def _said(profile: Profile, release: str) -> str:
    """Return what is known of a profile's errors, and of the release that was timed."""
    said = f"{profile.kind}, {profile.held_out_error}"
    timed = profile.machine.get("release")
    if timed and release and timed != release:
        said += f"; operators of {timed} for {release}"
    return said
