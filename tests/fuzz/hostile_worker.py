"""A warm process that runs ``pagesim`` once an input, each time in a copy of itself that is limited.

It imports nothing but the standard library and the ``pagesim`` that Python finds, perhaps another checkout's.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

LONGEST_S = 10.0
MOST_ADDRESSES = 4 << 30
MOST_RESIDENT = 2 << 30
STARTS = "import sys; from pagesim.cli.main import app; sys.argv[0] = 'pagesim'; sys.exit(app())"

WARM = (
    *(f"pagesim.cli.{name}" for name in ("commands", "plan", "run", "report", "sweep", "trace", "show")),
    "pagesim.api", "pagesim.results.report", "pagesim.experiments.sweeps.sweeping",
    "pagesim.experiments.sweeps.figures", "pagesim.experiments.plan", "pagesim.setup.serve",
    "pagesim.experiments.recorded.find", "pagesim.models.huggingface", "pyarrow.parquet", "rich.table",
)  # fmt: skip
"""What most commands import; a checkout that has no such module goes without it."""


def main() -> None:
    """Answer each line, an input in JSON, by a line: how the command ended and what it said."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from pagesim.cli import main as command

    for name in WARM:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    print(json.dumps({"ready": command.__file__}), flush=True)
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)


def run(asked: dict[str, Any]) -> dict[str, Any]:
    """Run a command, and say how it ended."""
    log = Path(asked["log"])
    started = time.monotonic()
    pid = _begin_anew(asked, log) if asked["fresh"] else os.fork()
    if pid == 0:
        _child(asked, log)
    killed, status, used = _watched(pid, asked["longest_s"])
    with contextlib.suppress(ProcessLookupError):  # what it started
        os.killpg(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(status)
    return {
        "code": code,
        "hang": killed,
        "s": time.monotonic() - started,
        "resident": used.ru_maxrss << 10,
        "out": _start(log / "out"),
        "err": _start(log / "err"),
    }


def _watched(pid: int, longest_s: float) -> tuple[bool, int, resource.struct_rusage]:
    """Wait for a process; kill it when it has run, or slept, for too long: not when it had no core."""
    started = time.monotonic()
    killed = False
    pause = 0.002
    while True:
        done, status, used = os.wait4(pid, os.WNOHANG)
        if done:
            return killed, status, used
        time.sleep(pause)
        pause = min(0.05, pause * 1.3)
        passed = time.monotonic() - started
        if passed > longest_s and not killed:
            try:
                waited = int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
            except (OSError, IndexError):  # a kernel that does not count it
                waited = 0.0
            if passed - waited > longest_s or passed > 20 * longest_s:
                killed = True
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)


def _limit() -> None:
    for kind, most in ((resource.RLIMIT_AS, MOST_ADDRESSES), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(kind, (most, resource.getrlimit(kind)[1]))


def _begin_anew(asked: dict[str, Any], log: Path) -> int:
    """Start Python anew, with the environment of the input; what its process group is, is its number."""
    environment = {**os.environ, **asked["env"]}
    for name in [name for name, value in environment.items() if value is None]:
        del environment[name]

    def before() -> None:
        os.setsid()
        _limit()
        if asked["closed"]:
            os.close(asked["closed"])

    out = asked["stdout"] or log / "out"
    with Path(out).open("wb") as stdout, (log / "err").open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-c", STARTS, *map(os.fsencode, asked["argv"])],
            cwd=os.fsencode(asked["cwd"]),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            preexec_fn=before,
        )
    process.returncode = 0  # waited for by its number
    return process.pid


def _child(asked: dict[str, Any], log: Path) -> None:
    """Be the command: this never returns."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, file, flags in (
            (0, os.devnull, os.O_RDONLY),
            (1, asked["stdout"] or str(log / "out"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
            (2, str(log / "err"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        ):
            os.dup2(os.open(file, flags, 0o644), number)
        sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False))
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)), encoding="utf-8")
        sys.stderr = io.TextIOWrapper(
            io.BufferedWriter(io.FileIO(2, "w", closefd=False)), "utf-8", "backslashreplace",
            write_through=True,
        )  # fmt: skip
        os.chdir(os.fsencode(asked["cwd"]))
        os.environ.update(asked["env"])
        sys.argv = ["pagesim", *asked["argv"]]
        _limit()
        from pagesim.cli.main import app

        try:
            app()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
    except BaseException:
        with contextlib.suppress(BaseException):
            traceback.print_exc()
        code = 1
    finally:
        with contextlib.suppress(BaseException):
            sys.stderr.flush()
        os._exit(code)


def _start(file: Path, most: int = 20_000) -> str:
    """Return the beginning and the end of what was printed."""
    try:
        data = file.read_bytes()
    except OSError:
        return ""
    text = data if len(data) <= most else data[: most // 2] + b" ... " + data[-most // 2 :]
    return text.decode("utf-8", "backslashreplace")


if __name__ == "__main__":
    main()
