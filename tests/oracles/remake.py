"""Remake the golden logs with released vLLM and compare them: ``make golden``, ``make golden ONLY=v0_n4``.

A line a log says whether every column is equal, byte by byte. The exit code is 1 if a log differs or its
engine fails. What was made is left in the folder ``out``, in the coding of the golden logs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

from compare import compare
from wheels import unpacked

from pagesim.experiments.golden import GoldenLog, read_manifest

HERE = Path(__file__).resolve().parent
GOLDEN = HERE.parent / "golden"
ENGINES = {"vllm-v0": "v0", "vllm-v1": "v1"}
"""The engine that a policy decides as; the others' logs are no released vLLM's."""


def main() -> int:
    """Remake what the command line asks for."""
    parser = argparse.ArgumentParser(
        description="Remake the golden logs with released vLLM and compare them."
    )
    parser.add_argument("--python", type=Path, required=True, help="interpreter that has requirements.txt")
    parser.add_argument("--wheels", type=Path, required=True, help="folder in which wheels are unpacked")
    parser.add_argument("--out", type=Path, required=True, help="folder for what is made")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="only these logs")
    asked = parser.parse_args()
    logs = {log.name: log for log in golden_logs()}
    if unknown := [name for name in asked.only if name not in logs]:
        parser.error(f"there is no golden log {unknown[0]}; there are {', '.join(logs)}")
    asked.out.mkdir(parents=True, exist_ok=True)
    by_release: dict[str, list[GoldenLog]] = {}
    for log in (logs[name] for name in asked.only or logs):
        if has_driver(log):
            by_release.setdefault(log.options["vllm_version"], []).append(log)
        else:
            print(f"{log.name}: cannot be remade: README.md says why")
    failures = 0
    for release, of_release in by_release.items():
        try:
            folder = unpacked(release, asked.wheels)
        except subprocess.CalledProcessError:
            print(f"vLLM {release}: pip cannot fetch it, so {len(of_release)} logs are not remade")
            failures += len(of_release)
            continue
        failures += remake(of_release, folder, asked.python, asked.out)
    return 1 if failures else 0


def has_driver(log: GoldenLog) -> bool:
    """Say whether a log can be remade: of a released engine, without what its driver does not set."""
    others = {
        "data_parallel_size",
        "decode_context_parallel_size",
        "kv_offloading_chunks",
        "model",
        "pipeline_parallel_size",
        "prefill_schedule_interval",
    }
    return log.policy in ENGINES and not others & log.options.keys()


def golden_logs() -> Iterator[GoldenLog]:
    """Yield the logs of every manifest."""
    for file in sorted(GOLDEN.glob("*.toml")):
        yield from read_manifest(file)


def remake(logs: list[GoldenLog], folder: Path, python: Path, out: Path) -> int:
    """Make the logs of one release, print a line of each, and return how many are not equal.

    Args:
        logs: those of one release.
        folder: where its wheel is unpacked.
        python: the interpreter to run it with.
        out: the folder for what is made.
    """
    command = [python, HERE / "drive.py", ENGINES[logs[0].policy], folder]
    messages = out / f"{folder.name}.txt"
    unequal = 0
    with tempfile.TemporaryDirectory() as room:
        files = {log.name: Path(room) / log.name for log in logs}
        jobs = [
            {"name": log.name, "trace": str(log.trace), "options": log.options, "out": str(files[log.name])}
            for log in logs
        ]
        with (
            messages.open("w", encoding="utf-8") as errors,
            subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=errors, text=True) as driver,
        ):
            assert driver.stdin is not None
            assert driver.stdout is not None
            driver.stdin.write("".join(json.dumps(job) + "\n" for job in jobs))
            driver.stdin.close()
            for log, line in zip(logs, driver.stdout, strict=False):
                verdict = line.rstrip("\n").partition("\t")[2]
                if not verdict:
                    verdict = compare(log, json.loads(files[log.name].read_text(encoding="utf-8")), out)
                print(f"{log.name}: {log.engine}: {verdict or 'equal in every column'}", flush=True)
                unequal += bool(verdict)
    if driver.returncode:
        print(f"{folder.name}: the driver ended with status {driver.returncode}; {messages} says why")
    return unequal + bool(driver.returncode)


if __name__ == "__main__":
    sys.exit(main())
