"""Plans side by side: what a GPU holds at every point of a grid of options."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pagesim.errors import CapacityError, PagesimError
from pagesim.experiments.plan import Plan, plan
from pagesim.setup.system import System, checked

MOST_PLANS = 60
"""More than these do not fit a table or a figure."""


@dataclass(frozen=True)
class Planned:
    """A point of a grid of plans.

    Args:
        point: the options that vary, with their values.
        plan: of the system at this point; None where the engine would not start.
        refusal: why it would not; empty where there is a plan.
    """

    point: dict[str, Any]
    plan: Plan | None
    refusal: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return all of it, for JSON."""
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
    """Plan the memory at every point, the last option innermost.

    Args:
        given: options of a system that all points share.
        axes: by option its values.
        cache_bytes: see `plan`.
        enforce_eager: see `plan`.
        full_graphs: see `plan`.

    Raises:
        PagesimError: an option is off at every point. At some points it is a point without a plan, as is a
            model that does not fit.
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
