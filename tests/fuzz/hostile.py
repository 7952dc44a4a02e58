"""Commands on hostile inputs: each runs in a process of its own, is limited, and how it ends is judged.

What is looked for: a traceback, a signal, more than 10 s, more than 2 GiB, a file lost or changed that is
none of the command's, a refusal without a sentence, and hostile input that is taken as if it were good.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import hostile_configs
import hostile_lines
import hostile_places
import hostile_traces
from hostile_case import Case

MAKERS = {
    "configs": hostile_configs.MAKERS, "lines": hostile_lines.MAKERS, "traces": hostile_traces.MAKERS,
    "environment": hostile_places.MAKERS,
}  # fmt: skip
LONGEST_S = 10
"""Of a processor's time."""

ASLEEP_S = 200.0
"""After which a process that does nothing is ended; it may wait for a core in the meantime."""

MOST_ADDRESSES, MOST_RESIDENT = 4 << 30, 2 << 30
MOST_SENTENCE = 3000
STARTS = "import sys; from pagesim.cli.main import app; sys.argv[0] = 'pagesim'; sys.exit(app())"
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
        code = _fresh(case, inside, log) if case.fresh else _forked(case, inside, log)
    except (subprocess.TimeoutExpired, TimeoutError):
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
    arguments = (case.arguments(folder), folder / case.cwd, log, _filled(case.env, folder))
    process = context.Process(target=_command, args=arguments)
    process.start()
    process.join(ASLEEP_S)
    if process.is_alive():
        process.kill()
        process.join()
        raise TimeoutError
    assert process.exitcode is not None
    return process.exitcode


def _command(argv: Sequence[str], cwd: Path, log: Path, env: Mapping[str, str]) -> None:
    """Be the command: this never returns."""
    _limit()
    for number, file in ((1, log / "out"), (2, log / "err")):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    sys.stdout, sys.stderr = (
        open(number, "w", encoding="utf-8", errors=errors)  # noqa: PTH123, SIM115
        for number, errors in ((1, "strict"), (2, "backslashreplace"))
    )
    os.chdir(cwd)
    os.environ.update(env)
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


def _fresh(case: Case, folder: Path, log: Path) -> int:
    """Start Python anew, with the environment of the input."""

    def before() -> None:
        _limit()
        if case.closed:
            os.close(case.closed)

    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "MPL", "COLUMNS"))}
    own = {"PYTHONPATH": os.pathsep.join(sys.path), **_filled(case.env, folder)}
    gone = [name for name, value in case.env.items() if value is None]
    out = Path(case.stdout) if case.stdout else log / "out"
    with out.open("wb") as stdout, (log / "err").open("wb") as stderr:
        return subprocess.run(
            [sys.executable, "-c", STARTS, *map(os.fsencode, case.arguments(folder))],
            cwd=os.fsencode(folder / case.cwd),
            env={name: value for name, value in {**inherited, **own}.items() if name not in gone},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            preexec_fn=before,
            timeout=ASLEEP_S,
            check=False,
        ).returncode


def _limit() -> None:
    limits = (resource.RLIMIT_AS, MOST_ADDRESSES), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_CPU, LONGEST_S)
    for kind, most in limits:
        resource.setrlimit(kind, (most, resource.getrlimit(kind)[1]))


def _filled(env: Mapping[str, str | None], folder: Path) -> dict[str, str]:
    """Return the variables that are set, the folder's name and the place of pagesim put in."""
    path = os.pathsep.join(sys.path)
    set_ = {name: value for name, value in env.items() if value is not None}
    return {
        name: value.replace("{PYTHONPATH}", path).replace("{}", str(folder)) for name, value in set_.items()
    }


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
    if code not in (0, 1, 2, 130):  # the last where a plug-in says that the user has interrupted it
        return f"exit code {code}"
    if code not in (0, 130) and not ended.complained.strip() and case.closed != 2:
        return f"exit code {code} without a sentence"
    if code == 2 and len(ended.complained) > MOST_SENTENCE and "note:" not in ended.complained:
        return "an endless sentence"
    if case.expects == "refused" and code not in (2, 130):
        return f"taken as good: exit code {code}"
    if case.expects == "done" and code != 0:
        return f"refused without need: exit code {code}"
    if case.expects.startswith("says:") and code != 2 and case.expects[5:] not in said:
        return f"taken as good: {case.expects[5:]} is not named"
    return None
