"""Fuzz every reader of files: ``python tests/fuzz/run.py --files 100000 --seed 1``; ``make fuzz`` does it.

The trials run in another process, whose memory is limited to a gigabyte above what it has. If one kills it,
or it answers no more, that is a finding, and a new process goes on behind it.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOM = 1 << 30
SILENT_S = 60.0


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description="Fuzz every reader of files.")
    parser.add_argument("--files", type=int, default=100_000, help="how many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first trial")
    parser.add_argument("--again", type=int, metavar="NUMBER", help="carry out one trial and show it")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.work:
        work(asked.seed, asked.first, asked.files)
        return 0
    if asked.again is not None:
        return again(asked.seed, asked.again)
    return run(asked.seed, asked.first, asked.files)


def again(seed: int, number: int) -> int:
    """Carry out one trial here and print it."""
    from trial import carry_out

    with tempfile.TemporaryDirectory(prefix="pagesim-fuzz-") as folder:
        outcome = carry_out(seed, number, Path(folder))
        for file in sorted(Path(folder).rglob("*")):
            if file.is_file():
                print(f"{file.name}: {file.read_bytes()[:2000]!r}")
    print(f"{outcome.target}: {outcome.kind}\n{outcome.detail}")
    return 0 if outcome.good else 1


def work(seed: int, first: int, files: int) -> None:
    """Carry out trials and print a line for each: first its number, and then what came of it."""
    from trial import DATA, REFUSED, carry_out

    with tempfile.TemporaryDirectory(prefix="pagesim-fuzz-") as folder:
        for number in range(first, first + files):
            print(number, end=" ", flush=True)
            started = time.perf_counter()
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + ROOM
            resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
            outcome = carry_out(seed, number, Path(folder))
            said: dict[str, Any] = {"target": outcome.target, "kind": outcome.kind}
            if outcome.kind not in (DATA, REFUSED):
                said["detail"] = outcome.detail
            said["s"] = time.perf_counter() - started
            print(json.dumps(said), flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print("over", json.dumps({"peak_mb": peak >> 10}), flush=True)


def run(seed: int, first: int, files: int) -> int:
    """Carry out trials in processes of their own, and say what came of them."""
    counts: Counter[tuple[str, str]] = Counter()
    findings: dict[tuple[str, str, str], list[int]] = {}
    details: dict[tuple[str, str, str], str] = {}
    spent: Counter[str] = Counter()
    longest, peak, at, end = (0.0, -1), 0, first, first + files
    started = time.monotonic()
    while at < end:
        worker = _Worker(seed, at, end - at)
        for number, said in worker.lines():
            if said is None:
                said = {"target": "?", "kind": worker.ended(), "detail": f"trial {number}"}
            elif number < 0:
                peak = max(peak, said["peak_mb"])
                continue
            at = number + 1
            counts[said["target"], said["kind"]] += 1
            spent[said["target"]] += said.get("s", 0.0)
            longest = max(longest, (said.get("s", 0.0), number))
            if "detail" in said:
                key = (said["target"].partition(":")[0], said["kind"], _place(said["detail"]))
                if key not in findings:
                    print(f"\n{number}: {said['target']}: {said['kind']}\n{said['detail']}", flush=True)
                findings.setdefault(key, []).append(number)
                details.setdefault(key, said["detail"])
        if worker.failed_at_once:
            print("the worker does not start", file=sys.stderr)
            return 1
    seconds = time.monotonic() - started
    total = sum(counts.values())
    data = sum(n for (_, kind), n in counts.items() if kind == "data")
    refused = sum(n for (_, kind), n in counts.items() if kind == "refused")
    print("\nslowest readers, s:", ", ".join(f"{name} {s:.0f}" for name, s in spent.most_common(6)))
    print(
        f"{total} files in {seconds:.0f} s: {data} read, {refused} refused in a sentence, "
        f"{total - data - refused} findings of {len(findings)} kinds; the slowest took {longest[0]:.1f} s "
        f"(trial {longest[1]}), the process at most {peak} MB"
    )
    for (target, kind, place), numbers in findings.items():
        print(f"{len(numbers):6} × {target}: {kind} at {place}; first {numbers[:4]}")
    return 1 if findings else 0


class _Worker:
    """A process that carries out trials."""

    def __init__(self, seed: int, first: int, files: int) -> None:
        command = [sys.executable, str(HERE / "run.py"), "--work", f"--seed={seed}"]
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [*command, f"--first={first}", f"--files={files}"],
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
        )
        self._heard = time.monotonic()
        self._silent = False
        self.failed_at_once = True
        threading.Thread(target=self._watch, daemon=True).start()

    def lines(self):  # type: ignore[no-untyped-def]
        """Yield (number, what came of it); None for the trial that the process did not survive."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._heard = time.monotonic()
            number, _, said = line.partition(" ")
            if number == "over":
                yield -1, json.loads(said)
                continue
            self.failed_at_once = False
            yield int(number), json.loads(said) if said.strip() else None

    def ended(self) -> str:
        """Say how the process ended."""
        code = self._process.wait()
        self._said.seek(0)
        last = "".join(self._said.readlines()[-3:]).strip()
        return f"silent for {SILENT_S:g} s" if self._silent else f"the process ended with {code}: {last}"

    def _watch(self) -> None:
        while self._process.poll() is None:
            if time.monotonic() - self._heard > SILENT_S:
                self._silent = True
                self._process.kill()
            time.sleep(1)


def _place(detail: str) -> str:
    """Return the last line of ours in a traceback."""
    ours = [line.strip() for line in detail.splitlines() if "/pagesim/" in line or "/fuzz/targets" in line]
    return ours[-1].rpartition("/")[2] if ours else detail[:80]


if __name__ == "__main__":
    sys.exit(main())
