"""Flags from scenario fields: the command line takes every field of a TOML file, under the same name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typer.core import TyperCommand

from pagesim.cli.spellings import SHOWN
from pagesim.setup.scenario import APART, Scenario
from pagesim.setup.scenario_files import absolute_paths, check_needs, read_scenario
from pagesim.setup.system import SCHEDULER_FIELDS, System, checked, plugin_fields

SCENARIO = Annotated[
    Path | None,
    typer.Argument(metavar="SCENARIO.toml", help="Options from a file; flags win over them."),
]
OUT = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Store the result in this folder.")]
FORCE = Annotated[bool, typer.Option("--force", help="Replace a file even if it is of another kind.")]
SERVE = Annotated[
    str | None,
    typer.Option(
        "--serve",
        metavar="LINE",
        help="Command that serves the model: 'vllm serve MODEL …', of release 0.33.0, or "
        "'sglang serve MODEL …', of 0.5.23; needs --gpu.",
    ),
]
JSON = Annotated[bool, typer.Option("--json", help="Print the summary as JSON and nothing else.")]

TRACE, SYSTEM, MEMORY, CLUSTER, DEVICE, COSTS, OUTPUT = PANELS = (
    "Trace",
    "System",
    "Memory",
    "Replicas",
    "Device",
    "Costs",
    "Output",
)
"""The headings under which a command's help shows flags, in order; what has none comes last."""

ENGINE_FIELDS = frozenset(
    (
        *SCHEDULER_FIELDS,
        "flashinfer_sampler",
        "language_model_only",
        "skip_mm_profiling",
        "max_pixels",
        "cpu_offload_gb",
        "max_loras",
        "max_lora_rank",
        "kv_cache_memory_bytes",
        "kv_offloading_link",
        "page_size",
    )
)
"""Fields of a scenario that are an engine's own options: help does not list them, ``list options`` does."""

_MEMORY = {
    *(
        "reservation",
        "allocator",
        "weight_dtype",
        "kv_cache_dtype",
        "sizing",
        "gpu_memory_utilization",
        "kv_cache_memory_bytes",
        "block_size",
    ),
    *("num_blocks", "cpu_blocks"),
}
_OF_TRACE = {name for name in Scenario.model_fields if name not in System.model_fields}
_PANEL_OF = {
    **dict.fromkeys(Scenario.model_fields, SYSTEM),
    **dict.fromkeys((*_OF_TRACE, "seed", "client_timeout", "max_concurrency", "beam_drop"), TRACE),
    **dict.fromkeys(_MEMORY, MEMORY),
    **dict.fromkeys(("policies", "serve"), SYSTEM),
    **dict.fromkeys(("replicas", "router", *APART), CLUSTER),
    **dict.fromkeys(("device", "cuda_graphs", "swap", "check"), DEVICE),
    **dict.fromkeys(("cost", "frontend"), COSTS),
    **dict.fromkeys(("steps", "window", "out", "json", "trace_events"), OUTPUT),
}

if TYPE_CHECKING:
    from pagesim.setup.serve import ServeLine

REPEATED = {"tiers"}
"""Options whose flags may be given several times, once a value."""

S = TypeVar("S", bound=Scenario)
M = TypeVar("M", bound=BaseModel)
Run = Callable[..., None]
Decorator = Callable[[Run], Run]


def with_flags(*kinds: type[BaseModel], leave_out: tuple[str, ...] = ()) -> Decorator:
    """Give a command a flag for every scenario field; it receives the given ones as ``flags``.

    An engine's own options are spelled as the engine spells them: ``--max-num-seqs 64``.
    """
    fields = {name: field for kind in kinds for name, field in kind.model_fields.items()}
    names = sorted(fields, key=lambda name: name in System.model_fields)
    return with_fields({name: fields[name] for name in names if name not in leave_out}, engine=True)


def workload_flags(names: tuple[str, ...]) -> Decorator:
    """Give a command the flags of these scenario fields; it receives the given ones as ``flags``."""
    return with_fields({name: Scenario.model_fields[name] for name in names}, check=True)


def scenario_from(
    kind: type[S], file: Path | None, flags: dict[str, Any], served: ServeLine | None = None
) -> S:
    """Return a file's scenario, overridden by a server's line and by the given flags."""
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


def taken(kind: type[M], flags: dict[str, Any]) -> M:
    """Remove a pydantic model's options from the given flags; return an instance of it."""
    return checked(kind, {name: flags.pop(name) for name in kind.model_fields if name in flags})


def with_fields(fields: Mapping[str, FieldInfo], *, check: bool = False, engine: bool = False) -> Decorator:
    """Give a command a flag for each of these fields; it receives the given ones as ``flags``.

    Args:
        fields: by name.
        check: whether to validate the values as a scenario's.
        engine: whether to accept engine options as well; the help does not list them.
    """

    def decorate(command: Run) -> Run:
        parameters = inspect.signature(command, eval_str=True).parameters
        own = {name: each for name, each in parameters.items() if name != "flags"}

        def run(typer_context: typer.Context | None = None, **values: Any) -> None:
            mine = {name: values.pop(name) for name in own}
            flags = {name: value for name, value in values.items() if value is not None}
            if typer_context is not None:
                flags |= typer_context.meta.get(_ENGINE, {})
            if check:
                checked(Scenario, flags)
            command(**mine, flags=flags)

        listed = {name: field for name, field in fields.items() if not (engine and name in ENGINE_FIELDS)}
        flags = {name: _flag(name, field) for name, field in listed.items()}
        signature = inspect.Signature(
            [
                inspect.Parameter(
                    "typer_context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
                ),
                *own.values(),
                *(
                    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=flag)
                    for name, flag in flags.items()
                ),
            ]
        )
        run.__name__ = command.__name__
        run.__doc__ = command.__doc__
        run.cls = EngineCommand if engine else Command  # type: ignore[attr-defined]
        # typer reads both.
        run.__annotations__ = {name: each.annotation for name, each in signature.parameters.items()}
        run.__signature__ = signature  # type: ignore[attr-defined]
        return run

    return decorate


class Command(TyperCommand):
    """A command whose help groups its flags under headings."""

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


class EngineCommand(Command):
    """A command that also accepts engine options, which its help does not list."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            ctx.meta[_ENGINE], rest = engine_options(args)
        except ValueError as error:
            ctx.fail(str(error))
        return super().parse_args(ctx, rest)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        formatter.write_paragraph()
        formatter.write_text(
            "Options of engines are taken as the engines spell them, such as --max-num-seqs 64; "
            "pagesim list options shows them."
        )


_ENGINE = "pagesim.engine_options"
"""Where a command's context keeps the engine's options that were given."""


def engine_options(args: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Split the words of a command line into engine options, by field, and the rest.

    Raises:
        ValueError: an engine option lacks its value, or has one and takes none.
    """
    kinds = _engine_fields()
    switches = {name for name, kind in kinds.items() if bool in _parts(kind)}
    found: dict[str, Any] = {}
    rest: list[str] = []
    words = iter(args)
    for word in words:
        flag, sign, value = word.partition("=")
        name = flag[2:].replace("-", "_") if flag.startswith("--") else ""
        name = "tiers" if name == "tier" else name
        switch = name if name in switches else name.removeprefix("no_")
        if switch in switches:
            if sign:
                raise ValueError(f"Option '{flag}' does not take a value.")
            found[switch] = switch == name
        elif name in kinds:
            if not sign and (value := next(words, "")) == "":
                raise ValueError(f"Option '{flag}' requires an argument.")
            found[name] = [*found.get(name, ()), value] if name in REPEATED else _number(value, kinds[name])
        else:
            rest.append(word)
            if word == "--":
                rest += words
    return found, rest


def _engine_fields() -> dict[str, Any]:
    """Return the types of engine options by name, including those of plug-ins."""
    own = {name: Scenario.model_fields[name].annotation for name in ENGINE_FIELDS}
    return own | {name: annotation for name, (annotation, _) in plugin_fields().items()}


def _flag(name: str, field: FieldInfo) -> Any:
    """Return a typer annotation; the scenario checks bounds and choices."""
    kinds = [part for part in _parts(field.annotation) if part is not type(None)]
    flag = "--" + SHOWN.get(name, name).replace("_", "-")
    text, panel = field.description or "", _PANEL_OF.get(name)
    choices = [str(choice) for part in kinds for choice in get_args(part) if get_origin(part) is Literal]
    if choices:
        text = f"{text} [{'|'.join(dict.fromkeys(choices))}]"
    elif field.default not in (None, False) and not isinstance(field.default, tuple):
        text = f"{text} [default: {field.default}]"
    if kinds == [bool] and field.default is False and name not in Scenario.model_fields:
        return Annotated[bool | None, typer.Option(flag, help=text, rich_help_panel=panel)]
    if kinds == [bool]:
        of_bool = typer.Option(f"{flag}/--no-{flag[2:]}", help=text, rich_help_panel=panel)
        return Annotated[bool | None, of_bool]
    option = typer.Option(
        flag,
        help=text,
        metavar=("<int>" if kinds == [int] else "<text>") if int in kinds else None,
        parser=_whole if int in kinds else None,
        rich_help_panel=panel,
    )
    return Annotated[(int if kinds == [int] else float if kinds == [float] else str) | None, option]


def _number(text: str, kind: Any) -> Any:
    """Return a number if one is expected and the text is one; otherwise the text."""
    if float in _parts(kind):
        with suppress(ValueError):
            return float(text)
    return _whole(text) if int in _parts(kind) else text


def _whole(text: str) -> int | str:
    """Return an integer; other spellings, such as 8k, are left to the scenario."""
    return int(text) if text.removeprefix("-").isdecimal() else text


def _parts(annotation: Any) -> list[Any]:
    if get_origin(annotation) in (Literal, tuple) or not get_args(annotation):
        return [annotation]
    return [part for argument in get_args(annotation) for part in _parts(argument)]
