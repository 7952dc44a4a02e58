"""The ``pagesim`` command, and the sentence for whatever ends it early."""

from __future__ import annotations

import os
import sys

from pagesim.errors import PagesimError


def app() -> None:
    """Run the command line; what a user can mend is said in one sentence, with exit code 2."""
    try:
        try:
            _run()
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


def _run() -> None:
    """Run the command that the arguments name; the doctor without the command line's library if need be."""
    try:
        from pagesim.cli.commands import cli

        cli(prog_name="pagesim")
    except ModuleNotFoundError as missing:  # typer takes some libraries only when a command is run
        name = (missing.name or "").partition(".")[0]
        if name in ("", "pagesim"):
            raise
        if sys.argv[1:2] != ["doctor"]:
            raise PagesimError(
                f"{name} is not installed and this command needs it: pip install {name}; pagesim doctor "
                "shows what else is missing"
            ) from missing
        from pagesim.cli.doctor import command

        command()


def _abandon_stdout() -> None:
    """Send what cannot be printed nowhere: Python would try again at the end, and fail once more."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
