"""Sweep: a scenario, the options that vary with their values, and the number of seeds at each point."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

from pydantic import Field

from pagesim.errors import PagesimError
from pagesim.setup.comparison import each_policy
from pagesim.setup.prepare import check
from pagesim.setup.presets import parts_of
from pagesim.setup.scenario import Scenario
from pagesim.setup.scenario_files import absolute_paths, to_toml, toml_value
from pagesim.setup.system import System, checked

MOST_RUNS = 1_000_000
"""More runs than this in one sweep are taken for a mistake."""

PATHS = ("trace", "model", "tokenizer", "cost")
"""Options that may name a file."""

LAST_SEED = 2**32 - 1


class Sweep(Scenario):
    """A scenario replayed at every point of a grid, under several seeds."""

    grid: dict[str, list[Any]] = Field({}, description="Values of each option that varies.")
    seeds: int = Field(
        1, ge=1, le=10_000, description="Number of runs at each point, with seed, seed + 1 and so on."
    )

    def axes(self) -> dict[str, tuple[Any, ...]]:
        """Return the values of each option that varies, in the grid's order.

        Raises:
            PagesimError: an option is unknown or cannot vary, or a value is out of bounds or repeated.
        """
        axes = {}
        for name, values in self.grid.items():
            if name == "steps":
                raise PagesimError("grid: steps cannot vary; it changes what a run stores, not what it finds")
            if name == "seed" and self.seeds > 1:
                raise PagesimError(f"grid: seed cannot vary while seeds is {self.seeds}; give one of the two")
            if not values:
                raise PagesimError(f"grid: {name} has no values; give at least one")
            # A string is converted to another type only if it comes from a flag, see `parse_axes`.
            axes[name] = tuple(
                getattr(checked(Scenario, {name: v}, "grid", strict=isinstance(v, str)), name) for v in values
            )
            for value in axes[name]:
                if axes[name].count(value) > 1:
                    raise PagesimError(f"grid: {name} has the value {value!r} twice; values must be distinct")
        return axes

    def scenarios(self) -> dict[Scenario, str]:
        """Return each run's scenario, seeds innermost, and why it cannot run; "" if it can.

        Each policy gets the options that it supports, as in a comparison (`each_policy`). A point with a
        value that its policy does not support is left out if the policy supports another value of that
        option. If it supports none, these points become a single one without the option.

        Raises:
            PagesimError: an axis is invalid (`axes`), there are too many runs, or no point can run.
        """
        axes = self.axes()
        size = self.seeds
        for values in axes.values():
            size *= len(values)
        if size > MOST_RUNS:
            raise PagesimError(f"the grid has {size} runs; the bound is {MOST_RUNS}")
        if self.seed + self.seeds - 1 > LAST_SEED:
            raise PagesimError(
                f"seed is {self.seed} and seeds is {self.seeds}; the last seed may be {LAST_SEED}"
            )
        base = Scenario(**self.model_dump(exclude={"grid", "seeds"}))
        policies = axes.get("policy", (self.policy,))
        others = [name for name in axes if name != "policy"]
        each = {
            point: _systems(base.model_copy(update=dict(zip(others, point, strict=True))), policies)
            for point in itertools.product(*(axes[name] for name in others))
        }
        used = {
            (policy, name)
            for point, systems in each.items()
            for policy, (system, _) in systems.items()
            for name, value in zip(others, point, strict=True)
            if not _left_out(system, name, value)
        }
        found: dict[Scenario, str] = {}
        for values in itertools.product(*axes.values()):
            asked = dict(zip(axes, values, strict=True))
            policy = asked.pop("policy", self.policy)
            system, refusal = each[tuple(asked.values())][policy]
            if not any(_left_out(system, n, v) and (policy, n) in used for n, v in asked.items()):
                seeds = range(self.seed, self.seed + self.seeds) if "seed" not in axes else (system.seed,)
                found.update((system.model_copy(update={"seed": seed}), refusal) for seed in seeds)
        if all(found.values()):
            first, refusal = next(iter(found.items()))
            point = ", ".join(f"{name}={first.option(name)}" for name in axes if len(axes[name]) > 1)
            raise PagesimError(f"{point}: {refusal}" if point else refusal)
        return found

    def located(self, beside: Path | None = None) -> Self:
        """Return the sweep with all paths made absolute, including those in the grid.

        Args:
            beside: folder to search for files that are not in the working directory.
        """
        grid = {
            name: [
                absolute_paths(checked(Scenario, {name: value}, "grid"), beside).get(name, value)
                for value in values
            ]
            if name in PATHS
            else values
            for name, values in self.grid.items()
        }
        return self.model_copy(update={**absolute_paths(self, beside), "grid": grid})


def parse_axes(texts: Iterable[str]) -> dict[str, list[Any]]:
    """Return the grid given by strings such as ``rate=0.5,1,2``.

    Values that contain commas are separated by semicolons.

    Raises:
        PagesimError: a string is malformed, repeats an option, or has a value that the option cannot have.
    """
    grid: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name = name.strip().replace("-", "_")
        parts = [part.strip() for part in values.split(";" if ";" in values else ",")]
        if not name or not equals or not all(parts):
            raise PagesimError(f"grid is {text!r}; it must be OPTION=VALUE,VALUE such as rate=0.5,1,2")
        if name in grid:
            raise PagesimError(f"grid: {name} is given twice; list all its values once")
        grid[name] = [getattr(checked(Scenario, {name: part}, "grid"), name) for part in parts]
    return grid


def grid_toml(plan: Sweep) -> str:
    """Return a TOML file that describes the sweep."""
    lines = [f"{name} = {toml_value(values)}" for name, values in plan.axes().items()]
    return "\n".join([to_toml(plan, leave_out="grid"), "[grid]", *lines, ""])


def _systems(system: Scenario, policies: Sequence[str]) -> dict[str, tuple[Scenario, str]]:
    """Return the system under each policy (`each_policy`), and why it cannot run; "" if it can."""
    found = {policy: (system.model_copy(update={"policy": policy}), "") for policy in policies}
    for policy, (asked, _) in found.items():
        parts = partial(parts_of, policy, system.scheduler, system.reservation, system.allocator)
        found[policy] = asked, _refusal(parts)
    able = [policy for policy, (_, refusal) in found.items() if not refusal]
    try:
        each = each_policy(system, able)
    except PagesimError as error:
        return {**found, **{policy: (found[policy][0], str(error)) for policy in able}}
    return {**found, **{policy: (one, _refusal(partial(check, one))) for policy, one in each.items()}}


def _refusal(attempt: Callable[[], object]) -> str:
    """Return the error message with which a call is refused; "" if it succeeds."""
    try:
        attempt()
    except PagesimError as error:
        return str(error)
    return ""


def _left_out(system: Scenario, name: str, asked: Any) -> bool:
    """Return whether an option was left out because the policy does not support it."""
    value, field = system.option(name), System.model_fields.get(name)
    return bool(value != asked and value == (None if field is None else field.default))
