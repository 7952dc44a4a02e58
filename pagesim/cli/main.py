"""The ``pagesim`` command."""

from __future__ import annotations

import sys

import typer

from pagesim.cli import compare, lists, run, trace
from pagesim.errors import PagesimError

cli = typer.Typer(
    name="pagesim",
    help="Replay LLM serving traces through KV-cache memory systems and see where the memory goes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
cli.command("run")(run.command)
cli.command("compare")(compare.command)
cli.add_typer(trace.cli, name="trace")
for name, command in lists.COMMANDS.items():
    cli.command(name)(command)


def app() -> None:
    """Run the command line; what a user can mend is said in one sentence, with exit code 2."""
    try:
        cli()
    except PagesimError as error:
        print(f"pagesim: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader of a pipe has seen enough
        sys.stderr.close()
        sys.exit(1)
