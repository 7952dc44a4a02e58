"""Commands on hostile inputs: each runs in a process of its own, is limited, and how it ends is judged.

What is looked for: a traceback, a signal, more than 10 s, more than 2 GiB, a file lost or changed that is
none of the command's, a refusal without a sentence, and hostile input that is taken as if it were good.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import hostile_configs
import hostile_lines
from hostile_case import Case

MAKERS = {"configs": hostile_configs.MAKERS, "lines": hostile_lines.MAKERS}
LONGEST_S = 10
"""Of a processor's time."""

ASLEEP_S = 200.0
"""After which a process that does nothing is ended; it may wait for a core in the meantime."""

MOST_ADDRESSES, MOST_RESIDENT = 4 << 30, 2 << 30
MOST_SENTENCE = 3000
WARM = [
    *(f"pagesim.cli.{name}" for name in ("main", "commands", "plan", "run", "report", "sweep", "trace")),
    "pagesim.api", "pagesim.experiments.plan", "pagesim.setup.serve", "pagesim.models.huggingface",
]  # fmt: skip
"""What most commands import."""


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int = 0
    said: str = ""
    complained: str = ""
    resident: int = 0
    lost: tuple[str, ...] = ()
    asleep: bool = False


def cases(seed: int, kind: str, count: int) -> list[Case]:
    """Return so many inputs of a kind: the first of them are the same, however many there are."""
    rng = random.Random(f"{seed} {kind}")
    return [MAKERS[kind][place % len(MAKERS[kind])](rng) for place in range(count)]


def run(case: Case, folder: Path) -> Ended:
    """Run the command on an input in a folder of its own."""
    log, inside = folder / "log", folder / "case"
    log.mkdir(parents=True)
    inside.mkdir()
    case.put(inside)
    before = _contents(inside, case.may_change)
    try:
        code = _forked(case, inside, log)
    except TimeoutError:
        return Ended(asleep=True)
    after = _contents(inside, case.may_change)
    resident = log / "resident"
    return Ended(
        code,
        _start(log / "out"),
        _start(log / "err"),
        int(resident.read_text()) if resident.exists() else 0,
        tuple(name for name, content in before.items() if after.get(name) != content),
    )


def _forked(case: Case, folder: Path, log: Path) -> int:
    """Fork a process that has the command imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(WARM)
    process = context.Process(target=_command, args=(case.arguments(folder), folder, log, LONGEST_S))
    process.start()
    process.join(ASLEEP_S)
    if process.is_alive():
        process.kill()
        process.join()
        raise TimeoutError
    assert process.exitcode is not None
    return process.exitcode


def _command(argv: Sequence[str], folder: Path, log: Path, longest_s: int) -> None:
    """Be the command: this never returns."""
    limits = (resource.RLIMIT_AS, MOST_ADDRESSES), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_CPU, longest_s)
    for kind, most in limits:
        resource.setrlimit(kind, (most, resource.getrlimit(kind)[1]))
    for number, file in ((1, log / "out"), (2, log / "err")):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    sys.stdout, sys.stderr = (
        open(number, "w", encoding="utf-8", errors=errors)  # noqa: PTH123, SIM115
        for number, errors in ((1, "strict"), (2, "backslashreplace"))
    )
    os.chdir(folder)
    sys.argv = ["pagesim", *argv]
    from pagesim.cli.main import app

    code = 0
    try:
        app()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    (log / "resident").write_text(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _contents(folder: Path, may_change: tuple[str, ...]) -> dict[str, object]:
    """Return every file below a folder with what it holds, links as links, but for those that may change."""
    found: dict[str, object] = {}
    for top, folders, names in os.walk(folder):
        for name in (*names, *folders):
            file = Path(top) / name
            inside = str(file.relative_to(folder))
            kept = file.name in ("notes.txt", "mine.txt", "kept.txt", "beside.txt")
            if not kept and any(inside == each or inside.startswith(f"{each}/") for each in may_change):
                continue
            if file.is_symlink():
                found[inside] = ("link", str(file.readlink()))
            elif file.is_file():
                found[inside] = file.read_bytes()
            elif not file.is_dir():
                found[inside] = "special"
    return found


def _start(file: Path) -> str:
    """Return what was printed, the middle of very much left out."""
    data = file.read_bytes() if file.exists() else b""
    text = data if len(data) <= 20_000 else data[:10_000] + b" ... " + data[-10_000:]
    return text.decode("utf-8", "backslashreplace")


def judged(case: Case, ended: Ended) -> str | None:
    """Return what is wrong with how a command ended; None if nothing is."""
    code, said = ended.code, ended.said + ended.complained
    if ended.asleep:
        return f"hang: more than {ASLEEP_S:g} s"
    if code < 0:
        return f"killed by signal {-code}"
    if "Traceback (most recent call last)" in said or "Fatal Python error" in said:
        return "traceback"
    if ended.resident > MOST_RESIDENT:
        return f"memory: {ended.resident >> 20} MiB"
    if ended.lost:
        return f"lost or changed: {ended.lost[0]!r}"
    if code not in (0, 1, 2):
        return f"exit code {code}"
    if code and not ended.complained.strip():
        return f"exit code {code} without a sentence"
    if code == 2 and len(ended.complained) > MOST_SENTENCE and "note:" not in ended.complained:
        return "an endless sentence"
    if case.expects == "refused" and code != 2:
        return f"taken as good: exit code {code}"
    if case.expects == "done" and code != 0:
        return f"refused without need: exit code {code}"
    if case.expects.startswith("says:") and code != 2 and case.expects[5:] not in said:
        return f"taken as good: {case.expects[5:]} is not named"
    return None
