"""Run ``pagesim`` on 2,000 hostile inputs: ``python tests/fuzz/hostile.py --seed 1``, or ``make hostile``.

Another checkout's is tried with ``--checkout FOLDER``, another installation's with ``--pagesim EXECUTABLE``.
What is looked for: a traceback, a signal, more than 10 s, more than 2 GiB, a file lost or changed that is
none of the command's, a refusal without a sentence, and hostile input that is taken as if it were good.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

import hostile_configs  # noqa: E402
import hostile_lines  # noqa: E402
import hostile_places  # noqa: E402
import hostile_results  # noqa: E402
import hostile_traces  # noqa: E402
from hostile_case import Case  # noqa: E402
from hostile_worker import LONGEST_S, MOST_RESIDENT  # noqa: E402

SHARES = {"configs": 500, "lines": 400, "traces": 500, "results": 400, "environment": 200}
MOST_SENTENCE = 3000


@dataclass(frozen=True)
class Finding:
    """What is wrong with how a command ended."""

    number: int
    case: Case
    wrong: str
    detail: str

    def reproducer(self, seed: int) -> str:
        """Return the command that shows it again."""
        return f"python tests/fuzz/hostile.py --seed {seed} --again {self.case.kind}:{self.number}"


def inputs(seed: int, kinds: tuple[str, ...], base: Path, count: int = 2000) -> Iterator[tuple[int, Case]]:
    """Yield the inputs of these kinds, numbered within their kind; fewer with a smaller count."""
    for kind in kinds:
        rng = random.Random(f"{seed} {kind}")
        yield from enumerate(_made(kind, rng, SHARES[kind], base)[: -(-SHARES[kind] * count // 2000)])


def _made(kind: str, rng: random.Random, number: int, base: Path) -> list[Case]:
    if kind == "results":
        return hostile_results.cases(rng, number, base)
    rooms = {
        "configs": hostile_configs, "lines": hostile_lines, "traces": hostile_traces,
        "environment": hostile_places,
    }  # fmt: skip
    makers: tuple[Callable[[random.Random], Case], ...] = rooms[kind].MAKERS
    return [makers[place % len(makers)](rng) for place in range(number)]


class Worker:
    """A process of another Python, or of another checkout, that runs commands.

    Args:
        python: the interpreter.
        checkout: the folder that holds ``pagesim``; None for what is installed.
        folder: for the inputs.
    """

    def __init__(self, python: str, checkout: Path | None, folder: Path) -> None:
        self._folder = folder
        self._path = str(checkout) if checkout else ""
        threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1")
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "MPL", "COLUMNS"))}
        environment = {**inherited, **threads, "PYTHONPATH": self._path, "TMPDIR": str(folder)}
        folder.mkdir(parents=True, exist_ok=True)
        self._process = subprocess.Popen(
            [python, str(HERE / "hostile_worker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            cwd=folder,
            text=True,
        )
        assert self._process.stdout is not None
        self.command = json.loads(self._process.stdout.readline())["ready"]

    def run(self, case: Case) -> tuple[dict[str, Any], list[str]]:
        """Run the command on an input; return how it ended, and which files are not as they were."""
        shutil.rmtree(self._folder / "case", ignore_errors=True)
        log, folder = self._folder / "log", self._folder / "case"
        shutil.rmtree(log, ignore_errors=True)
        log.mkdir()
        folder.mkdir()
        case.put(folder)
        before = _contents(folder, case.may_change)

        def filled(value: str | None) -> str | None:
            return value and value.replace("{PYTHONPATH}", self._path).replace("{}", str(folder))

        asked = {
            "argv": case.arguments(folder), "cwd": str(folder / case.cwd),
            "env": {name: filled(value) for name, value in case.env.items()}, "fresh": case.fresh,
            "stdout": case.stdout, "closed": case.closed, "log": str(log),
            "longest_s": LONGEST_S * (1 + 2 * case.jobs),
        }  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        ended = json.loads(self._process.stdout.readline())
        after = _contents(folder, case.may_change)
        return ended, [name for name, content in before.items() if after.get(name) != content]

    def close(self) -> None:
        """End the process."""
        self._process.communicate()
        shutil.rmtree(self._folder, ignore_errors=True)


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


def judged(case: Case, ended: dict[str, Any], lost: list[str]) -> str | None:
    """Return what is wrong with how a command ended; None if nothing is."""
    code, said = ended["code"], ended["out"] + ended["err"]
    if ended["hang"]:
        return f"hang: more than {LONGEST_S:g} s"
    if code < 0:
        return f"killed by signal {-code}"
    if "Traceback (most recent call last)" in said or "Fatal Python error" in said:
        return "traceback"
    if ended["resident"] > MOST_RESIDENT:
        return f"memory: {ended['resident'] >> 20} MiB"
    if lost:
        return f"lost or changed: {lost[0]!r}"
    if code not in (0, 1, 2, 130):  # the last where a plug-in says that the user has interrupted it
        return f"exit code {code}"
    if code not in (0, 130) and not ended["err"].strip() and case.closed != 2:
        return f"exit code {code} without a sentence"
    if code == 2 and len(ended["err"]) > MOST_SENTENCE and "note:" not in ended["err"]:
        return "an endless sentence"
    if case.expects == "refused" and code not in (2, 130):
        return f"taken as good: exit code {code}"
    if case.expects == "done" and code != 0:
        return f"refused without need: exit code {code}"
    if case.expects.startswith("says:") and code != 2 and case.expects[5:] not in said:
        return f"taken as good: {case.expects[5:]} is not named"
    return None


def tried(worker: Worker, number: int, case: Case) -> tuple[Finding | None, float]:
    """Run one input and judge it."""
    ended, lost = worker.run(case)
    wrong = judged(case, ended, lost)
    if wrong is None:
        return None, ended["s"]
    return Finding(number, case, wrong, (ended["out"][-300:] + ended["err"])[-1500:]), ended["s"]


def run(
    seed: int,
    kinds: tuple[str, ...] = tuple(SHARES),
    *,
    count: int = 2000,
    python: str = sys.executable,
    checkout: Path | None = ROOT,
    processes: int = 2,
    say: Callable[[str], object] = print,
) -> list[Finding]:
    """Run all inputs, several at a time; return what was found, having printed a table."""
    started = time.monotonic()
    findings: list[Finding] = []
    counts: Counter[tuple[str, str]] = Counter()
    bad: Counter[tuple[str, str]] = Counter()
    slowest = (0.0, "")
    # On a disk of memory a name cannot hold what a disk's can, and a result is not fsynced in any time.
    with tempfile.TemporaryDirectory(prefix="pagesim-hostile-") as name:
        folder = Path(name)
        workers = [Worker(python, checkout, folder / f"w{n}") for n in range(processes)]
        say(f"{workers[0].command}")
        base = folder / "base"
        if "results" in kinds:
            _make_base(workers[0], base)
        left = list(inputs(seed, kinds, base, count))
        left.reverse()
        lock = threading.Lock()

        def work(worker: Worker) -> None:
            nonlocal slowest
            while True:
                with lock:
                    if not left:
                        return
                    number, case = left.pop()
                finding, seconds = tried(worker, number, case)
                with lock:
                    key = (case.kind, case.name)
                    counts[key] += 1
                    slowest = max(slowest, (seconds, f"{case.kind}:{number}"))
                    if counts.total() % 200 == 0:
                        say(f"{counts.total()} inputs, {bad.total()} wrong")
                    if finding is not None:
                        bad[key] += 1
                        findings.append(finding)
                        last = (finding.detail.strip().splitlines() or [""])[-1][:160]
                        say(f"{case.kind}: {case.name}: {finding.wrong}: {last}")
                        say(f"    {finding.reproducer(seed)}")

        threads = [threading.Thread(target=work, args=(worker,)) for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for worker in workers:
            worker.close()
    findings.sort(key=lambda each: (list(SHARES).index(each.case.kind), each.number))
    say(f"{'kind':12} {'inputs':>6} {'wrong':>6}  what")
    for (kind, what), number in sorted(counts.items()):
        say(f"{kind:12} {number:6} {bad[kind, what]:6}  {what}")
    took = time.monotonic() - started
    slow = f"the slowest took {slowest[0]:.1f} s ({slowest[1]})"
    say(f"{'all':12} {counts.total():6} {bad.total():6}  in {took:.0f} s; {slow}")
    return findings


def _make_base(worker: Worker, base: Path) -> None:
    """Let the command itself make the results that are to be damaged."""
    base.mkdir()
    for argv in hostile_results.commands(base):
        ended, _ = worker.run(Case("base", "base", argv))
        assert ended["code"] == 0, ended["err"]


def again(seed: int, which: str, python: str, checkout: Path | None) -> int:
    """Run one input and show it."""
    kind, _, number = which.partition(":")
    with tempfile.TemporaryDirectory(prefix="pagesim-hostile-") as name:
        worker = Worker(python, checkout, Path(name) / "w")
        base = Path(name) / "base"
        if kind == "results":
            _make_base(worker, base)
        case = dict(inputs(seed, (kind,), base))[int(number)]
        ended, lost = worker.run(case)
        files = sorted((Path(name) / "w" / "case").rglob("*"))
        print(f"{case.name}, expects {case.expects}: pagesim {shlex.join(case.argv)[:3000]!r}")
        print({name: str(content)[:1500] for name, content in case.files.items()}, dict(case.env))
        print([str(file.relative_to(Path(name) / "w" / "case")) for file in files if file.name != "x"][:40])
        print(f"exit code {ended['code']} after {ended['s']:.1f} s, {ended['resident'] >> 20} MiB")
        print(f"{ended['out'][-2000:]}\n{ended['err'][-6000:]}")
        print(f"wrong: {judged(case, ended, lost)}")
        worker.close()
    return 1 if judged(case, ended, lost) else 0


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description="Run pagesim on hostile inputs.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default=",".join(SHARES), help="some of " + ",".join(SHARES))
    parser.add_argument("--count", type=int, default=2000, help="a smaller sample of all kinds")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--checkout", type=Path, help="a folder that holds another pagesim")
    parser.add_argument("--pagesim", type=Path, help="an executable of another installation")
    parser.add_argument("--again", metavar="KIND:NUMBER", help="run one input and show it")
    asked = parser.parse_args()
    python, checkout = sys.executable, asked.checkout or ROOT
    if asked.pagesim:
        python, checkout = asked.pagesim.read_text().splitlines()[0].removeprefix("#!").strip(), None
    checkout = checkout and checkout.resolve()
    if asked.again:
        return again(asked.seed, asked.again, python, checkout)
    findings = run(
        asked.seed, tuple(asked.kinds.split(",")), count=asked.count, python=python, checkout=checkout,
        processes=asked.processes, say=lambda text: print(text, flush=True),
    )  # fmt: skip
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
