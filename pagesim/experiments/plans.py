"""Plans for comparison: what a GPU's memory holds at every point of a grid of options."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pagesim.errors import CapacityError, PagesimError
from pagesim.experiments.plan import Plan, plan
from pagesim.setup.system import System, checked

MOST_PLANS = 60
"""Maximum number of plans that fit a table or a figure."""


@dataclass(frozen=True)
class Planned:
    """A point in a grid of plans.

    Args:
        point: the varying options with their values.
        plan: plan of the system at this point; None if the engine would not start.
        refusal: why it would not start; empty if there is a plan.
    """

    point: dict[str, Any]
    plan: Plan | None
    refusal: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        return {
            "point": self.point,
            "plan": None if self.plan is None else self.plan.as_dict(),
            "refusal": self.refusal or None,
        }


def plans(
    given: Mapping[str, Any],
    axes: Mapping[str, Sequence[Any]],
    *,
    cache_bytes: int | None = None,
    enforce_eager: bool = False,
    full_graphs: bool = True,
) -> list[Planned]:
    """Plan the memory at every point of the grid, with the last option varying fastest.

    Args:
        given: options of a system that all points share.
        axes: values of the varying options.
        cache_bytes: see `plan`.
        enforce_eager: see `plan`.
        full_graphs: see `plan`.

    Raises:
        PagesimError: an option is invalid at every point. A point where it is, or where the model does not
            fit, has no plan.
    """
    found: list[Planned] = []
    errors: list[PagesimError] = []
    for values in itertools.product(*axes.values()):
        point = dict(zip(axes, values, strict=True))
        try:
            system = checked(System, {**given, **point})
            made = plan(system, cache_bytes=cache_bytes, enforce_eager=enforce_eager, full_graphs=full_graphs)
        except PagesimError as error:
            errors.append(error)
            found.append(Planned(point, None, str(error)))
        else:
            found.append(Planned(point, made))
    if len(errors) == len(found) and not all(isinstance(error, CapacityError) for error in errors):
        raise next(error for error in errors if not isinstance(error, CapacityError))
    return found
