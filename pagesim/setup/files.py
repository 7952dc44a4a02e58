"""Files: result folders and files appear whole or not at all."""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pagesim.errors import PagesimError

MARKERS = ("scenario.toml", "summary.json")
"""A folder that holds these is a result of ours and may be replaced."""

_EXCHANGE = 2  # Linux: RENAME_EXCHANGE
_HERE = -100  # AT_FDCWD


def check_target(target: Path) -> None:
    """Say at once, before any work, if a result could not be stored there.

    Raises:
        PagesimError: it is a file, a folder that holds something else, or below one that cannot be written.
    """
    try:
        _check(target)
    except OSError as error:  # a name that is too long, a folder that cannot be looked into
        raise PagesimError(f"{target}: cannot be written ({error.strerror})") from None


def _check(target: Path) -> None:
    if target.is_dir():
        if any(target.iterdir()) and not all((target / name).is_file() for name in MARKERS):
            raise PagesimError(
                f"{target}: is not empty and holds no result of pagesim; choose another folder or empty it"
            )
    elif target.exists() or target.is_symlink():
        raise PagesimError(f"{target}: exists and is no folder; choose another")
    parent = next(p for p in target.absolute().parents if p.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise PagesimError(f"{target}: cannot be written, {parent} is not a folder that you may write to")


def publish(target: Path, write: Callable[[Path], None]) -> Path:
    """Let ``write`` fill a temporary folder and put it in the target's place in one step.

    Raises:
        PagesimError: see ``check_target``; or writing failed, and then nothing is left behind.
    """
    check_target(target)
    # Through a link the folder that it points to is replaced, and the link stays.
    target = Path(os.path.realpath(target))
    draft = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        draft.chmod(0o755)
        write(draft)
        _put_in_place(draft, target)
    except OSError as error:
        raise PagesimError(f"{target}: cannot be written ({error.strerror or error})") from None
    finally:
        if draft is not None:
            shutil.rmtree(draft, ignore_errors=True)
    return target


def put(file: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` write a temporary file and put it in the file's place in one step.

    Raises:
        PagesimError: writing failed, and then nothing is left behind.
    """
    # Two processes may write the same file at the same time.
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        write(draft)
        draft.replace(file)
    except OSError as error:
        raise PagesimError(f"{file}: cannot be written ({error.strerror or error})") from None
    finally:
        with suppress(OSError):
            draft.unlink()


def _put_in_place(draft: Path, target: Path) -> None:
    if not target.exists():
        draft.rename(target)
    elif not _exchange(draft, target):
        # Where the two cannot be exchanged, the old result is moved away first.
        old = draft.with_name(draft.name + ".old")
        target.rename(old)
        draft.rename(target)
        shutil.rmtree(old, ignore_errors=True)


def _exchange(a: Path, b: Path) -> bool:
    """Exchange two paths in one step; False where the system cannot."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    return rename is not None and rename(_HERE, os.fsencode(a), _HERE, os.fsencode(b), _EXCHANGE) == 0
