"""Scheduler options as fields: what the schedulers declare, merged by name for flags, files and keywords."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from pagesim.errors import PagesimError, brief
from pagesim.scheduling.options import SchedulerOptions
from pagesim.setup.registry import SCHEDULERS

if TYPE_CHECKING:
    from pagesim.setup.presets import Policy

Declared = dict[str, list[tuple[str, FieldInfo]]]
"""By the name of an option, the schedulers that have it, each with its own field."""


def declared(names: tuple[str, ...]) -> Declared:
    """Return the options that these schedulers have."""
    found: Declared = {}
    for name in names:
        for option, field in SCHEDULERS.find(name).Options.model_fields.items():
            found.setdefault(option, []).append((name, field))
    return found


def declared_by_plugins() -> Declared:
    """Return the options of the schedulers that others bring, as far as these can be loaded."""
    loaded = []
    for name in SCHEDULERS.foreign():
        try:
            SCHEDULERS.find(name)
        except PagesimError:  # it says so where it is asked for
            continue
        loaded.append(name)
    return declared(tuple(loaded))


def fields_of(options: Declared) -> dict[str, tuple[Any, FieldInfo]]:
    """Return a field for each option whose default, None, stands for the scheduler's own."""
    found = {}
    for option, having in options.items():
        annotation = _either([field.annotation for _, field in having])
        texts: Declared = {}
        for name, field in having:
            texts.setdefault(field.description or "", []).append((name, field))
        text = " ".join(f"{text} [{_defaults(own)}]" for text, own in texts.items())
        described: Any = Field(None, description=text)
        found[option] = (annotation | None, described)
    return found


def _either(annotations: list[Any]) -> Any:
    """Return the type of what is of one of these types; of several sets of choices the one of all."""
    choices = [choice for each in annotations if get_origin(each) is Literal for choice in get_args(each)]
    others = [each for each in annotations if get_origin(each) is not Literal]
    one = [Literal[tuple(dict.fromkeys(choices))]] if choices else []
    return reduce(or_, dict.fromkeys([*one, *others]))


def converted(name: str, value: Any, annotation: Any) -> Any:
    """Return the value of a plug-in's option as its type; its bounds are checked with the others, later.

    Raises:
        PagesimError: it is of another type.
    """
    try:
        return TypeAdapter(annotation).validate_python(value)
    except ValidationError as error:
        raise PagesimError(sentence(name, error)) from None


def _defaults(having: list[tuple[str, FieldInfo]]) -> str:
    """Return the schedulers that have an option, with its default where they have one."""
    return ", ".join(name if field.default is None else f"{name}: {field.default}" for name, field in having)


def refuse_unknown(scheduler: str, name: str) -> None:
    """Refuse an option that a scheduler does not have.

    Raises:
        PagesimError: the sentence names those that have it.
    """
    having = {**declared(SCHEDULERS.own()), **declared_by_plugins()}[name]
    *others, last = [each for each, _ in having]
    named = f"{', '.join(others)} and {last}" if others else last
    raise PagesimError(f"{name} is for scheduler {named}, not {scheduler}")


def sentence(name: str, error: ValidationError, where: str = "") -> str:
    """Return what is wrong with the value of an option."""
    first = error.errors()[0]
    wanted = first["msg"].removeprefix("Value error, ")
    return f"{name} is {brief(first['input'], 200)}: {where}{wanted[0].lower()}{wanted[1:]}"


def options_of(policy: Policy, given: Mapping[str, Any]) -> SchedulerOptions:
    """Return the options of a policy's scheduler: those that were given, and the policy's own.

    Args:
        policy: whose.
        given: options of any scheduler, by name.

    Raises:
        PagesimError: one contradicts the policy, the scheduler does not have it, or it is out of bounds.
    """
    for name, own in policy.options.items():
        if given.get(name, own) != own:
            raise PagesimError(
                f"{name} is {json.dumps(given[name])}; it must be {json.dumps(own)} or left out: this "
                "policy is about it"
            )
    kind = SCHEDULERS.find(policy.scheduler).Options
    for name in given:
        if name not in kind.model_fields:
            refuse_unknown(policy.scheduler, name)
    try:
        return kind.model_validate({**given, **policy.options})
    except ValidationError as error:
        where = f"under scheduler {policy.scheduler} "
        raise PagesimError(sentence(str(error.errors()[0]["loc"][0]), error, where)) from None
