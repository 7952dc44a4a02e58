"""Machine instructions: what a request costs whatever else a machine does, counted by valgrind's callgrind.

Seconds move by a fifth where others use a machine, and for one replay one processor takes 1.5 times as many
bare timeouts as another. With one build of Python a replay always takes the same instructions.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from measure import Row, bare_timeout_s, replay_of

NEEDED = ("valgrind", "callgrind_control")

TIMEOUTS = 20_000


def can_count() -> bool:
    """Say whether what counts is installed."""
    return all(map(shutil.which, NEEDED))


def instructions_per_request(point: Row) -> float:
    """Return what a request takes of a replay, beyond what a replay of the first one takes."""
    requests = int(point["requests"])
    return (_counted(point, requests) - _counted(point, 1)) / (requests - 1)


@cache
def instructions_per_timeout() -> float:
    """Return what a bare SimPy timeout takes."""
    return (_counted(None, TIMEOUTS) - _counted(None, 1)) / (TIMEOUTS - 1)


def _counted(point: Row | None, many: int) -> int:
    """Return what so many requests of a point take, or so many timeouts, in a process of their own."""
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder) / "counts"
        tool = ["valgrind", "-q", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={counts}"]
        command = [*tool, sys.executable, str(Path(__file__).resolve()), json.dumps([point, many])]
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        found = re.search(r"^totals: (\d+)", counts.read_text() if counts.exists() else "", re.MULTILINE)
        if done.returncode or found is None:
            sys.exit(done.stderr or "valgrind counted nothing")
        return int(found.group(1))


def _work_of(point: Row | None, many: int) -> Callable[[], object]:
    """Return what is counted; what is loaded at first use is loaded here."""
    if point is None:
        bare_timeout_s(1)
        return lambda: bare_timeout_s(many)
    trace, replay = replay_of(point)
    replay(trace.take(slice(0, 100)))
    requests = trace.take(slice(0, many))
    return lambda: replay(requests)


def _switch(to: str) -> None:
    """Let valgrind count from here on, or no longer."""
    control = ["callgrind_control", f"--instr={to}", str(os.getpid())]
    subprocess.run(control, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main() -> None:
    """Do what the command line says while valgrind counts."""
    work = _work_of(*json.loads(sys.argv[1]))
    _switch("on")
    work()
    _switch("off")


if __name__ == "__main__":
    main()
