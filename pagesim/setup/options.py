"""Scheduler options as fields: what the schedulers declare, merged by name for flags, files and keywords."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any

from pydantic import Field, ValidationError
from pydantic.fields import FieldInfo

from pagesim.errors import PagesimError, brief
from pagesim.scheduling.options import SchedulerOptions
from pagesim.setup.registry import SCHEDULERS

Declared = dict[str, list[tuple[str, FieldInfo]]]
"""By the name of an option, the schedulers that have it, each with its own field."""


def declared(names: tuple[str, ...]) -> Declared:
    """Return the options that these schedulers have."""
    found: Declared = {}
    for name in names:
        for option, field in SCHEDULERS.find(name).Options.model_fields.items():
            found.setdefault(option, []).append((name, field))
    return found


def fields_of(options: Declared) -> dict[str, tuple[Any, FieldInfo]]:
    """Return a field for each option whose default, None, stands for the scheduler's own."""
    found = {}
    for option, having in options.items():
        annotation = reduce(or_, dict.fromkeys(field.annotation for _, field in having))
        text = " ".join(dict.fromkeys(field.description or "" for _, field in having))
        found[option] = (
            annotation | None,
            Field(None, description=f"{text} [{_defaults(having)}]", json_schema_extra={"of": "scheduler"}),
        )
    return found


def _defaults(having: list[tuple[str, FieldInfo]]) -> str:
    """Return the schedulers that have an option, with its default where they have one."""
    return ", ".join(
        name if field.default is None else f"{name}: {field.default}" for name, field in having
    )


def chosen(scheduler: str, given: dict[str, Any]) -> SchedulerOptions:
    """Return a scheduler's options.

    Args:
        scheduler: its name.
        given: the options of any scheduler that were given, by name.

    Raises:
        PagesimError: the scheduler has no such option, or a value is out of bounds.
    """
    kind = SCHEDULERS.find(scheduler).Options
    for name in given:
        if name not in kind.model_fields:
            having = [each for each in SCHEDULERS.names() if name in SCHEDULERS.find(each).Options.model_fields]
            raise PagesimError(f"{name} is for scheduler {' and '.join(having)}, not {scheduler}")
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        wanted = first["msg"].removeprefix("Value error, ")
        raise PagesimError(
            f"{first['loc'][0]} is {brief(first['input'], 200)}: under scheduler {scheduler} "
            f"{wanted[0].lower()}{wanted[1:]}"
        ) from None
