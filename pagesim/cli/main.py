"""The ``pagesim`` command."""

from __future__ import annotations

import os
import sys

import typer

from pagesim.cli import (
    ablate,
    bench,
    calibrate,
    capacity,
    cluster,
    compare,
    demo,
    doctor,
    gallery,
    golden,
    listing,
    live,
    plan,
    profile,
    report,
    reproduce,
    run,
    sweep,
    trace,
    validate,
)
from pagesim.cli.options import Command, Commands
from pagesim.errors import PagesimError

cli = typer.Typer(
    name="pagesim",
    cls=Commands,
    help="Replay LLM serving traces through KV-cache memory systems and see where the memory goes.\n\n"
    "Example: pagesim demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its panels cut long flags short on a narrow terminal
)
cli.command("demo")(demo.command)
cli.command("run", cls=Command)(run.command)
cli.command("compare", cls=Command)(compare.command)
cli.command("cluster", cls=Command)(cluster.command)
cli.command("plan", cls=Command)(plan.command)
cli.command("gallery")(gallery.command)
cli.command("report")(report.command)
cli.command("sweep", cls=Command)(sweep.command)
cli.command("capacity", cls=Command)(capacity.command)
cli.command("live", cls=Command)(live.command)
cli.command("calibrate")(calibrate.command)
cli.command("validate", cls=Command)(validate.command)
cli.command("golden")(golden.command)
cli.add_typer(trace.cli, name="trace")
cli.add_typer(bench.cli, name="bench")
cli.add_typer(profile.cli, name="profile")
cli.add_typer(ablate.cli, name="ablate")
cli.add_typer(listing.cli, name="list")
cli.command("reproduce")(reproduce.command)
cli.command("doctor")(doctor.command)


def app() -> None:
    """Run the command line; what a user can mend is said in one sentence, with exit code 2."""
    try:
        try:
            cli(prog_name="pagesim")
        finally:
            sys.stdout.flush()  # a full disk is noticed here, and not while Python shuts down
    except PagesimError as error:
        print(f"pagesim: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:  # while typer is not looking out for it: before the command begins, say
        sys.exit(130)
    except BrokenPipeError:  # the reader of a pipe has seen enough
        _abandon_stdout()
        sys.exit(1)
    except OSError as error:
        _abandon_stdout()
        print(f"pagesim: {error.filename or 'output'}: {error.strerror or error}", file=sys.stderr)
        sys.exit(2)


def _abandon_stdout() -> None:
    """Send what cannot be printed nowhere: Python would try again at the end, and fail once more."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
