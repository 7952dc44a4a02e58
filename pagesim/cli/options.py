"""Flags from scenario fields: what a TOML file may hold, the command line takes, under the same name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_origin

import typer
from pydantic.fields import FieldInfo
from typer.core import TyperCommand

from pagesim.cli.completion import complete
from pagesim.setup.scenario import Scenario
from pagesim.setup.scenario_files import absolute_paths, check_needs, read_scenario
from pagesim.setup.system import SCHEDULER_FIELDS, System, checked, plugin_fields

SCENARIO = Annotated[
    Path | None,
    typer.Argument(metavar="SCENARIO.toml", help="Options from a file; flags win over them."),
]
OUT = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Store the result in this folder.")]
FORCE = Annotated[bool, typer.Option("--force", help="Replace a file even if it is of another kind.")]
JSON = Annotated[bool, typer.Option("--json", help="Print the summary as JSON and nothing else.")]

TRACE, SYSTEM, MEMORY, SCHEDULER, COSTS, OUTPUT = PANELS = (
    "Trace",
    "System",
    "Memory",
    "Scheduler (each option only for those named)",
    "Costs",
    "Output",
)
"""The headings under which a command's help shows flags, in order; what has none comes last."""

_MEMORY = {
    *(
        "reservation",
        "allocator",
        "weight_dtype",
        "kv_cache_dtype",
        "sizing",
        "gpu_memory_utilization",
        "mem_fraction_static",
        "max_total_tokens",
        "flashinfer_sampler",
        "block_size",
        "page_size",
    ),
    *("num_blocks", "cpu_blocks"),
}
_OF_TRACE = {name for name in Scenario.model_fields if name not in System.model_fields}
_PANEL_OF = {
    **dict.fromkeys(Scenario.model_fields, SYSTEM),
    **dict.fromkeys((*_OF_TRACE, "seed", "client_timeout", "max_concurrency", "beam_drop"), TRACE),
    **dict.fromkeys(SCHEDULER_FIELDS, SCHEDULER),
    **dict.fromkeys(_MEMORY, MEMORY),
    **dict.fromkeys(("serve",), SYSTEM),
    **dict.fromkeys(("cost", "frontend"), COSTS),
    **dict.fromkeys(("steps", "window", "out", "json", "trace_events"), OUTPUT),
}

if TYPE_CHECKING:
    from pagesim.setup.serve import ServeLine

ALIASES = {"rate": ("--request-rate",), "tiers": ("--tier",)}
"""Further names of flags: what ``vllm bench serve`` calls them, and one of several values."""

REPEATED = {"tiers"}
"""Options whose flags may be given several times, once a value."""

S = TypeVar("S", bound=Scenario)
Run = Callable[..., None]
Decorator = Callable[[Run], Run]


def with_flags(kind: type[Scenario], leave_out: tuple[str, ...] = ()) -> Decorator:
    """Give a command a flag for every field of a scenario; it receives those given as ``flags``."""
    names = sorted(kind.model_fields, key=lambda name: name in System.model_fields)
    fields = {name: kind.model_fields[name] for name in names if name not in leave_out}
    return with_fields(fields, of_scenario=True)


def workload_flags(names: tuple[str, ...]) -> Decorator:
    """Give a command the flags of these fields of a scenario; it receives those given as ``flags``."""
    return with_fields({name: Scenario.model_fields[name] for name in names}, check=True)


def scenario_from(
    kind: type[S], file: Path | None, flags: dict[str, Any], served: ServeLine | None = None
) -> S:
    """Return the scenario of a file with the flags that were given, and a server's line, put over it."""
    values = {}
    if file:
        written = read_scenario(kind, file)
        values = {**written.model_dump(exclude_unset=True), **absolute_paths(written, file.parent)}
    given = {**values, **flags}
    scenario = checked(kind, given if served is None else served.merged_with(given))
    if file:
        check_needs(file, scenario)
    if served is not None:
        from pagesim.setup.block_plans import check_serve_line
        from pagesim.setup.engine_config import EngineConfig

        check_serve_line(EngineConfig(scenario), full_graphs=served.full_graphs)
    return scenario.model_copy(update=absolute_paths(scenario))


def with_fields(
    fields: Mapping[str, FieldInfo], *, check: bool = False, of_scenario: bool = False
) -> Decorator:
    """Give a command a flag for each of these fields; it receives those given as ``flags``.

    Args:
        fields: by name.
        check: whether the values are checked as a scenario's.
        of_scenario: whether the options of schedulers are among the fields: those of others' schedulers are
            added, and the help shows the flags under headings.
    """

    def decorate(command: Run) -> Run:
        own = {
            name: p
            for name, p in inspect.signature(command, eval_str=True).parameters.items()
            if name != "flags"
        }

        def with_these(fields: Mapping[str, FieldInfo], more: Mapping[str, FieldInfo]) -> Run:
            def run(**values: Any) -> None:
                mine = {name: values.pop(name) for name in own}
                flags = {name: value for name, value in values.items() if value is not None and value != []}
                if check:
                    checked(Scenario, flags)
                command(**mine, flags=flags)

            flags = {
                **{name: _flag(name, field, _PANEL_OF.get(name)) for name, field in fields.items()},
                **{name: _flag(name, field, SCHEDULER) for name, field in more.items()},
            }
            parameters = [
                *own.values(),
                *(
                    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=flag)
                    for name, flag in flags.items()
                ),
            ]
            run.__name__ = command.__name__
            run.__doc__ = command.__doc__
            run.cls = Command  # type: ignore[attr-defined]
            # typer reads both.
            run.__annotations__ = {p.name: p.annotation for p in parameters}
            run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
            return run

        def with_more() -> Run | None:
            """Return the command with the options of others' schedulers; None where there are none."""
            more = _more()
            return with_these(fields, more) if more else None

        run = with_these(fields, {})
        if of_scenario:
            run.with_more = with_more  # type: ignore[attr-defined]
        return run

    return decorate


class Command(TyperCommand):
    """A command whose help shows its flags under headings."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        records: dict[str, list[tuple[str, str]]] = {"Arguments": [], **{name: [] for name in PANELS}}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                argument = param.param_type_name == "argument"
                panel = getattr(param, "rich_help_panel", None) or _PANEL_OF.get(param.name or "", "Options")
                records.setdefault("Arguments" if argument else panel, []).append(record)
        for panel, own in records.items():
            if own:
                with formatter.section(panel):
                    formatter.write_dl(own)


def _more() -> dict[str, FieldInfo]:
    """Return the options of others' schedulers, each with its type in its field."""
    found = plugin_fields()
    for annotation, field in found.values():
        field.annotation = annotation
    return {name: field for name, (_, field) in found.items()}


def _flag(name: str, field: FieldInfo, panel: str | None) -> Any:
    """Return a typer annotation; bounds and choices are checked with the scenario, not here."""
    kinds = [part for part in _parts(field.annotation) if part is not type(None)]
    flag = "--" + name.replace("_", "-")
    text = field.description or ""
    choices = [str(choice) for part in kinds for choice in get_args(part) if get_origin(part) is Literal]
    if choices:
        text = f"{text} [{'|'.join(dict.fromkeys(choices))}]"
    elif field.default is not None and not isinstance(field.default, tuple):
        text = f"{text} [default: {field.default}]"
    if kinds == [bool]:
        of_bool = typer.Option(f"{flag}/--no-{flag[2:]}", help=text, rich_help_panel=panel)
        return Annotated[bool | None, of_bool]
    option = typer.Option(
        flag,
        *ALIASES.get(name, ()),
        help=text,
        rich_help_panel=panel,
        autocompletion=_completing(name, kinds, choices),
    )
    if name in REPEATED:
        return Annotated[list[str] | None, option]
    kind = kinds[0] if kinds in ([int], [float]) else str
    return Annotated[kind | None, option]


def _completing(name: str, kinds: list[Any], choices: list[str]) -> Any:
    return None if kinds in ([int], [float]) else complete(name, choices)


def _parts(annotation: Any) -> list[Any]:
    if get_origin(annotation) in (Literal, tuple) or not get_args(annotation):
        return [annotation]
    return [part for argument in get_args(annotation) for part in _parts(argument)]
