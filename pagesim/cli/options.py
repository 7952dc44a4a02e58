"""Flags from scenario fields: what a TOML file may hold, the command line takes, under the same name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from pagesim.cli.completion import complete
from pagesim.setup.scenario import Scenario, absolute_paths, check_needs, checked, read_scenario

SCENARIO = Annotated[
    Path | None,
    typer.Argument(metavar="SCENARIO.toml", help="Options from a file; flags win over them."),
]
OUT = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Store the result in this folder.")]
JSON = Annotated[bool, typer.Option("--json", help="Print the summary as JSON and nothing else.")]

S = TypeVar("S", bound=Scenario)
Decorator = Callable[[Callable[..., None]], Callable[..., None]]


def with_flags(kind: type[Scenario], leave_out: tuple[str, ...] = ()) -> Decorator:
    """Give a command a flag for every field of a scenario; it receives those given as ``flags``."""
    return with_fields({name: f for name, f in kind.model_fields.items() if name not in leave_out})


def workload_flags(names: tuple[str, ...]) -> Decorator:
    """Give a command the flags of these fields of a scenario; it receives those given as ``flags``."""
    return with_fields({name: Scenario.model_fields[name] for name in names}, check=True)


def scenario_from(kind: type[S], file: Path | None, flags: dict[str, Any]) -> S:
    """Return the scenario of a file with the flags that were given put over it."""
    values = {}
    if file:
        written = read_scenario(kind, file)
        values = {**written.model_dump(exclude_unset=True), **absolute_paths(written, file.parent)}
    scenario = checked(kind, {**values, **flags})
    if file:
        check_needs(file, scenario)
    return scenario.model_copy(update=absolute_paths(scenario))


def with_fields(fields: dict[str, FieldInfo], *, check: bool = False) -> Decorator:
    """Give a command a flag for each of these fields; it receives those given as ``flags``."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = {
            name: p
            for name, p in inspect.signature(command, eval_str=True).parameters.items()
            if name != "flags"
        }

        def run(**values: Any) -> None:
            mine = {name: values.pop(name) for name in own}
            flags = {name: value for name, value in values.items() if value is not None}
            if check:
                checked(Scenario, flags)
            command(**mine, flags=flags)

        parameters = [
            *own.values(),
            *(
                inspect.Parameter(
                    name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_flag(name, field)
                )
                for name, field in fields.items()
            ),
        ]
        run.__name__ = command.__name__
        run.__doc__ = command.__doc__
        # typer reads both.
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return run

    return decorate


def _flag(name: str, field: FieldInfo) -> Any:
    """Return a typer annotation; bounds and choices are checked with the scenario, not here."""
    kinds = [part for part in _parts(field.annotation) if part is not type(None)]
    flag = "--" + name.replace("_", "-")
    text = field.description or ""
    choices = [str(choice) for part in kinds for choice in get_args(part) if get_origin(part) is Literal]
    if choices:
        text = f"{text} [{'|'.join(choices)}]"
    elif field.default is not None and not isinstance(field.default, tuple):
        text = f"{text} [default: {field.default}]"
    if kinds == [bool]:
        return Annotated[bool | None, typer.Option(f"{flag}/--no-{flag[2:]}", help=text)]
    if kinds == [int]:
        return Annotated[int | None, typer.Option(flag, help=text)]
    if kinds == [float]:
        return Annotated[float | None, typer.Option(flag, help=text)]
    return Annotated[str | None, typer.Option(flag, help=text, autocompletion=complete(name, choices))]


def _parts(annotation: Any) -> list[Any]:
    if get_origin(annotation) in (Literal, tuple) or not get_args(annotation):
        return [annotation]
    return [part for argument in get_args(annotation) for part in _parts(argument)]
