"""Groups of commands: a command is imported when it runs, not when it is listed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from pagesim.cli.spellings import respelled


class Entry(NamedTuple):
    """What is known about a command before it is imported."""

    name: str
    line: str
    """The first paragraph of its help."""
    module: str = ""
    """Of ``pagesim.cli``, where it is not called as the command is.

    It has a function ``command``, or a typer group ``cli``.
    """


class Commands(TyperGroup):
    """A group of commands that accept each flag in any of its spellings."""

    def resolve_command(self, ctx: Any, args: Any) -> Any:
        return super().resolve_command(ctx, respelled(args))


class LazyCommands(Commands):
    """A group of commands from a table; help lists them without importing any."""

    table: ClassVar[tuple[Entry, ...]]

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands: Any = _Imported(self.table)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        self._listed().format_commands(ctx, formatter)

    def _listed(self) -> TyperGroup:
        """Return a group with the same names and options whose commands have only one line of help."""
        lines: dict[str, Any] = {
            entry.name: TyperCommand(entry.name, help=entry.line) for entry in self.table
        }
        return TyperGroup(name=self.name, commands=lines, params=self.params)


class _Imported(Mapping[str, Any]):
    """The commands of a table by name, each imported when it is first looked up."""

    def __init__(self, table: tuple[Entry, ...]) -> None:
        self._modules = {entry.name: entry.module or entry.name for entry in table}
        self._commands: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._commands:
            module = import_module(f"pagesim.cli.{self._modules[name]}")
            self._commands[name] = (
                _group(name, module.cli) if hasattr(module, "cli") else _made(name, module.command)
            )
        return self._commands[name]

    def __contains__(self, name: object) -> bool:
        return name in self._modules

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


def _made(name: str | None, run: Callable[..., None]) -> Any:
    """Return the click command for a function, of the command class that it names, if any."""
    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"max_content_width": 100},
    )
    app.command(name, cls=getattr(run, "cls", None))(run)
    return typer.main.get_command(app)


def _group(name: str, cli: typer.Typer) -> TyperGroup:
    group = typer.main.get_group(cli)
    group.name = name
    return group
