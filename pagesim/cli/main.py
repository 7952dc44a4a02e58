"""The ``pagesim`` command, and its error messages."""

from __future__ import annotations

import gc
import os
import signal
import sys
from _thread import interrupt_main
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from io import TextIOWrapper
from pathlib import Path
from threading import Timer
from types import FrameType, TracebackType
from typing import Any, NoReturn

from pagesim.errors import PACKAGES, PagesimError, escaped, reason


def app() -> None:
    """Run the command line; an error that the user can fix is one sentence, with exit code 2."""
    try:
        _answer()
    except (
        KeyboardInterrupt
    ):  # while typer is not looking out for it: before the command begins, or at the end
        sys.exit(130)


_interrupts: list[int] = []


def _note_interrupts() -> None:
    """Note every interrupt from now on, unless interrupts are ignored, as in a shell's background job."""
    _interrupts.clear()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)


def _interrupted(number: int, frame: FrameType | None) -> None:
    _interrupts.append(number)
    signal.default_int_handler(number, frame)


def _answer() -> None:
    _note_interrupts()
    _settle_streams()
    _settle_figures()
    sys.unraisablehook = _not_raised
    gc.set_threshold(100_000)  # a run makes many objects and hardly any cycles
    try:
        try:
            _check_arguments()
            _run()
        except BaseException:
            # Libraries turn an interrupt that falls into them into errors of their own: pydantic's core into
            # a SchemaError, or into a panic in older releases.
            if _interrupts:
                raise KeyboardInterrupt from None
            raise
        finally:
            if sys.stdout is not None:  # it is None where the caller closed it
                sys.stdout.flush()  # a full disk is noticed here, and not while Python shuts down
    except PagesimError as error:
        _refuse(str(error), error.remedy)
    except MemoryError:
        _refuse(
            "memory is exhausted: this needs more than is free, or than this process may take (ulimit -v); "
            "replay fewer requests, keep fewer steps, or free some"
        )
    except UnicodeEncodeError as error:
        # Python holds bytes of a name that are no text as halves of surrogate pairs, and no file takes these.
        if not any("\udc80" <= each <= "\udcff" for each in error.object):
            raise
        _refuse(f"{error.object!r} {_NO_TEXT}")
    except BrokenPipeError:  # the reader of a pipe has seen enough
        _abandon_stdout()
        sys.exit(1)
    except OSError as error:
        _abandon_stdout()
        _refuse(f"{error.filename or 'output'}: {error.strerror or error}")
    except (Exception, SystemExit) as error:
        blamed = _plugin_of(error.__traceback__)
        if blamed is None:
            raise
        _refuse(f"{blamed} ended the command with {type(error).__name__}: {reason(error)}")


_NO_TEXT = (
    f"holds bytes that are no {sys.getfilesystemencoding().upper()}, and a result could not name it; "
    "rename it, or make a link to it of another name"
)


def _refuse(sentence: str, remedy: str = "") -> NoReturn:
    """Exit with a message and a suggestion; if neither can be printed, with the exit code alone."""
    below = f"\nThe nearest that is taken:\n{escaped(remedy)}" if remedy else ""
    with suppress(OSError, ValueError):
        print(f"pagesim: {escaped(sentence)}{below}", file=sys.stderr, flush=True)
    sys.exit(2)


def _settle_streams() -> None:
    """Let every encoding print all characters: escaped, or else as UTF-8."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            try:
                "a – ×\n".encode(stream.encoding, "backslashreplace")
            except (UnicodeError, LookupError):  # idna, say, which is an encoding and not one of texts
                stream.reconfigure(encoding="utf-8")
            stream.reconfigure(errors="backslashreplace")


def _settle_figures() -> None:
    """Draw figures with matplotlib's default settings, without a display or a local matplotlibrc.

    On import matplotlib reads its settings from the working directory first.
    """
    matplotlib = find_spec("matplotlib")
    if matplotlib is None or matplotlib.origin is None:
        return
    os.environ["MPLBACKEND"] = "agg"
    own = Path(matplotlib.origin).parent / "mpl-data"
    os.environ["MATPLOTLIBRC"] = str(own / "matplotlibrc")
    if os.path.lexists("matplotlibrc"):
        here = Path.cwd()
        os.chdir(own)
        try:
            import_module("matplotlib")
        finally:
            os.chdir(here)


def _not_raised(error: Any) -> None:
    """Interrupt again if Python ignored an interrupt, for example in a garbage-collection callback."""
    if isinstance(error.exc_value, KeyboardInterrupt):
        Timer(0.01, interrupt_main).start()  # when this call, which would ignore it as well, is over
    else:
        sys.__unraisablehook__(error)


def _check_arguments() -> None:
    for argument in sys.argv[1:]:
        if any("\ud800" <= each <= "\udfff" for each in argument):
            raise PagesimError(f"{argument!r} {_NO_TEXT}")


def _plugin_of(trace: TracebackType | None) -> str | None:
    """Return the plug-in that raised an error, and the line; None if no plug-in did."""
    plugins = sys.modules.get("pagesim.setup.plugins")
    found: str | None = None if plugins is None else plugins.blamed(trace)
    return found


def _run() -> None:
    """Run the command that the arguments name; the doctor runs even without typer."""
    try:
        from pagesim.cli.commands import cli

        cli(prog_name="pagesim")
    except ModuleNotFoundError as missing:  # typer takes some libraries only when a command is run
        name = (missing.name or "").partition(".")[0]
        if name in ("", "pagesim"):
            raise
        if sys.argv[1:2] != ["doctor"]:
            raise PagesimError(
                f"{name} is not installed and this command needs it: pip install {PACKAGES.get(name, name)}; "
                "pagesim doctor shows what else is missing"
            ) from missing
        from pagesim.cli.doctor import command

        command()


def _abandon_stdout() -> None:
    """Discard output that cannot be printed: Python would try again at exit and fail again."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
