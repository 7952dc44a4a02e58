"""Files: write result folders and files atomically, and replace only results of the same kind."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from pagesim.errors import PagesimError
from pagesim.setup.reading import parse_json, read_file

MANIFEST = "manifest.json"
"""File that holds a result folder's kind and the SHA-256 of each of its files, by path."""

_KINDS = ("run", "comparison", "cluster", "validation", "workload")

_EXCHANGE = 2  # Linux: RENAME_EXCHANGE
_HERE = -100  # AT_FDCWD


def check_target(target: Path, kind: str) -> None:
    """Check, before any work is done, that a result can be stored in a folder.

    Args:
        target: the folder.
        kind: kind of result to store: ``run``, ``comparison``, ``cluster``, ``validation`` or ``workload``.

    Raises:
        PagesimError: the target is a file, or holds anything but an unchanged result of this kind, or lies
            below a folder that cannot be written to.
    """
    try:
        _check(target, kind)
    except OSError as error:  # a name that is too long, an unreadable folder
        raise PagesimError(f"{target}: cannot be written ({error.strerror})") from None


def _check(target: Path, kind: str) -> None:
    assert kind in _KINDS
    if target.is_dir():
        if any(target.iterdir()):
            _check_replaceable(target, kind)
    elif target.exists() or target.is_symlink():
        raise PagesimError(f"{target}: exists and is no folder; choose another")
    parent = next(p for p in target.absolute().parents if p.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise PagesimError(f"{target}: cannot be written, {parent} is not a folder that you may write to")


def _check_replaceable(folder: Path, kind: str) -> None:
    """Check that a folder holds an unchanged result of this kind and nothing else."""
    sealed = read_manifest(folder)
    if sealed is None:
        raise PagesimError(
            f"{folder}: is not empty and holds no result of pagesim; choose another folder or empty it"
        )
    before, files = sealed
    if before != kind:
        raise PagesimError(
            f"{folder}: holds a {before}, which a {kind} does not replace; choose another folder or remove it"
        )
    folders = {parent.as_posix() for name in files for parent in Path(name).parents}
    for path in _inside(folder):
        name = path.relative_to(folder).as_posix()
        if path.is_dir() and not path.is_symlink():
            known, changed = name in folders, False
        else:
            known = name in files and path.is_file() and not path.is_symlink()
            changed = known and files[name] != _sha256_of(path)
        if not known or changed:
            how = "was changed since pagesim wrote it" if changed else "was not written by pagesim"
            raise PagesimError(
                f"{path}: {how} and would be lost; move it away, or choose another folder than {folder}"
            )


def _inside(folder: Path) -> Iterator[Path]:
    """Yield all paths below a folder except its manifest, without following links."""
    for above, folders, files in os.walk(folder):
        for name in sorted((*folders, *files)):
            path = Path(above, name)
            if path != folder / MANIFEST:
                yield path


def read_manifest(folder: Path) -> tuple[str, dict[str, str]] | None:
    """Return a result folder's kind and its files' SHA-256 by path; None if it has no manifest.

    Raises:
        PagesimError: the manifest is damaged.
    """
    file = folder / MANIFEST
    if not os.path.lexists(file):
        return None
    try:
        held = parse_json(read_file(file))
        kind, files = held["kind"], held["files"]
        if not isinstance(kind, str) or not all(isinstance(seal, str) and seal for seal in files.values()):
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise PagesimError(f"{file}: is damaged; run the same again") from None
    return kind, files


def read_sealed(folder: Path, names: tuple[str, ...], kind: str, command: str) -> dict[str, bytes]:
    """Return the contents of files of a result folder, by name.

    Args:
        folder: result folder.
        names: names of the files; those that the result does not have are left out.
        kind: expected kind of the result.
        command: command that stores such folders, for the error message.

    Raises:
        PagesimError: the folder is not of this kind, or a file was changed since the result was stored.
    """
    sealed = read_manifest(folder)
    if sealed is None or sealed[0] != kind:
        what = f"it has no {MANIFEST}" if sealed is None else f"it holds a {sealed[0]}"
        raise PagesimError(f"{folder}: is no result of {command} ({what})")
    files = {}
    for name in names:
        path = folder / name
        if (name in sealed[1]) != os.path.lexists(path):
            how = "is missing" if name in sealed[1] else "was added since the result was stored"
            raise PagesimError(f"{path}: {how}; run the same again")
        if name not in sealed[1]:
            continue
        try:
            files[name] = read_file(path)
        except OSError as error:
            raise PagesimError(f"{path}: cannot be read ({error.strerror or error})") from None
        if hashlib.sha256(files[name]).hexdigest() != sealed[1][name]:
            raise PagesimError(f"{path}: was changed since the result was stored; run the same again")
    return files


def seal(folder: Path, kind: str) -> None:
    """Write the manifest of a folder that holds a result and nothing else."""
    files = {
        path.relative_to(folder).as_posix(): _sha256_of(path) for path in _inside(folder) if not path.is_dir()
    }
    text = json.dumps({"kind": kind, "files": files}, indent=2) + "\n"
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def _sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def publish(target: Path, write: Callable[[Path], object], kind: str) -> Path:
    """Let ``write`` fill a temporary folder, and atomically put it in the target's place.

    Raises:
        PagesimError: the target may not be replaced, or writing failed; nothing is left behind.
    """
    check_target(target, kind)
    # If the target is a link, the folder it points to is replaced, and the link stays.
    target = Path(os.path.realpath(target))
    draft = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = _draft(target)
        draft.mkdir()
        write(draft)
        seal(draft, kind)
        for path in (*_inside(draft), draft / MANIFEST, draft):
            _flush(path)
        _put_in_place(draft, target)
        _flush(target.parent)
    except OSError as error:
        raise PagesimError(f"{target}: cannot be written ({error.strerror or error})") from None
    finally:
        if draft is not None:
            shutil.rmtree(draft, ignore_errors=True)
    return target


def check_file(file: Path, kind: str, *, force: bool | None = None, begins: str = "") -> None:
    """Check, before any work if possible, that a command's output would not replace a file of another kind.

    Args:
        file: file to write.
        kind: kind of file: ``page``, ``trace``, ``profile``, ``model of lengths``, ``figure`` or ``table``.
        force: whether to replace a file of another kind anyway; None if the command has no such flag.
        begins: beginning of a table's file, which is its header.

    Raises:
        PagesimError: there is a folder, a FIFO, a device or a file of another kind.
    """
    if not os.path.lexists(file):
        return
    try:
        if not file.is_file():
            what = "a folder" if file.is_dir() else "no regular file"
            raise PagesimError(f"{file}: cannot be written (it is {what}); name a file")
        with file.open("rb") as opened:
            head = opened.read(_SEEN)
            opened.seek(-min(_SEEN, file.stat().st_size), os.SEEK_END)
            tail = opened.read()
    except OSError as error:
        raise PagesimError(f"{file}: cannot be written ({error.strerror})") from None
    ours = head.startswith(begins.encode()) if kind == "table" else _IS[kind](head, tail)
    if head and not ours and not force:
        forced = "" if force is None else ", or give --force to replace it"
        raise PagesimError(
            f"{file}: exists and is no {kind} that pagesim wrote; choose another name, move it away{forced}"
        )


_SEEN = 1 << 16
"""Bytes read at a file's beginning and end to recognize its kind."""

_COLUMNS = (b"request_id", b"prompt_tokens", b"output_tokens")


def _is_trace(head: bytes, tail: bytes) -> bool:
    if head.startswith(b"PAR1"):
        return all(name in tail for name in _COLUMNS)
    return all(name in head.partition(b"\n")[0].strip().split(b",") for name in _COLUMNS)


def _is_figure(head: bytes, tail: bytes) -> bool:
    if head.startswith(b"\x89PNG"):
        # Between header and data, pagesim's figures declare 150 dots per inch and name no program.
        return head[37:50] == b"pHYs\0\0\x17\x12\0\0\x17\x12\1" and head[58:62] == b"IDAT"
    return b"<svg" in head and b"dcmitype/StillImage" in head and b"<dc:date>" not in head[:2000]


_IS: dict[str, Callable[[bytes, bytes], object]] = {
    "page": lambda head, tail: b"<title>pagesim report</title>" in head,
    "trace": _is_trace,
    "profile": lambda head, tail: re.match(rb'\{\s*"schema":\s*\d+,\s*"name":', head),
    "model of lengths": lambda head, tail: re.match(rb'\{\s*"schema":\s*"pagesim-lengths"', head),
    "figure": _is_figure,
}
"""Tests of whether a file is of a kind, given its beginning and its end."""


def put(file: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let ``write`` write a temporary file, and atomically put it in the file's place.

    Raises:
        PagesimError: writing failed; nothing is left behind.
    """
    # If the file is a link, the file it points to is replaced, and the link stays.
    place = Path(os.path.realpath(file))
    if os.path.lexists(place) and not place.is_file():
        what = "a folder" if place.is_dir() else "no regular file"
        raise PagesimError(f"{file}: cannot be written (it is {what}); name a file")
    # Two processes may write the same file at the same time.
    draft = _draft(place)
    try:
        with draft.open("xb") as out:
            write(out)
            out.flush()
            os.fsync(out.fileno())
        draft.replace(place)
        _flush(place.parent)
    except OSError as error:
        raise PagesimError(f"{file}: cannot be written ({error.strerror or error})") from None
    finally:
        with suppress(OSError):
            draft.unlink()


def put_text(file: Path, text: str) -> None:
    """Write a text to a file atomically.

    Raises:
        PagesimError: writing failed; nothing is left behind.
    """
    put(file, lambda out: out.write(text.encode("utf-8")))


DRAFT = ".pagesim."
"""Prefix of the names of temporary files, which a killed process leaves behind."""


def _draft(target: Path) -> Path:
    """Return an unpredictable path next to the target, so that no link can have been placed there."""
    return target.parent / f"{DRAFT}{secrets.token_hex(8)}"


def _flush(path: Path) -> None:
    """Flush a file or folder to disk."""
    opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _put_in_place(draft: Path, target: Path) -> None:
    if not target.exists():
        draft.rename(target)
    elif not _exchange(draft, target):
        # If the two cannot be exchanged, the old result is moved away first.
        old = draft.with_name(draft.name + ".old")
        target.rename(old)
        draft.rename(target)
        shutil.rmtree(old, ignore_errors=True)


def _exchange(a: Path, b: Path) -> bool:
    """Exchange two paths atomically; return False if the system cannot."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    return rename is not None and rename(_HERE, os.fsencode(a), _HERE, os.fsencode(b), _EXCHANGE) == 0
