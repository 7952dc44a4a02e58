"""The first hour with a GPU: ``python -m pagesim.kernels.bench.first --out DIR``.

Four steps, each at most ten minutes: are the kernels right, how fast are they beside peers, what does a
model take (a profile), and does the simulator predict a live run? The same command goes on where it was: a
step that is over is not repeated, and the bench and the calibration go on within their step. On a CPU the
kernels run in Triton's interpreter and everything else on the reference path, which says nothing of speed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pagesim.errors import PagesimError
from pagesim.kernels.bench.selection import device as find_device
from pagesim.setup.files import put_text

LIMIT_S = 600.0
"""Maximum seconds per step."""

STATE = "first.json"
"""File in the output folder that records which steps have finished."""


class Step(NamedTuple):
    """A step.

    Attributes:
        name: name of the step.
        question: question that it answers.
        arguments: arguments for Python.
    """

    name: str
    question: str
    arguments: list[str]


def steps(out: Path, device: str, quick: bool) -> list[Step]:
    """Return the four steps.

    Args:
        out: folder for all output.
        device: ``cpu`` or ``cuda``.
        quick: whether to measure few points; always so on a CPU, where a step takes at most a minute.
    """
    on_gpu = device == "cuda"
    quick = quick or not on_gpu
    where = f"--device {device}"
    model = f"--model {'llama-3.1-8b' if on_gpu else 'tiny'} {'--cuda-graphs' if on_gpu else ''}"
    fast = "--quick --seconds 0.001" if quick else ""
    tests = ["tests/kernels/ops", "-m", "not slow", "-q", "-W", "ignore", "-p", "no:cacheprovider"]
    if quick:
        tests += ["-k", "blocks_are_copied or any_number_of_splits"]
    load = "--trace fixed:30,8 --num-requests 8 --num-blocks 24"
    if on_gpu:
        load = "--trace sharegpt --num-blocks 500 --rate 8 --duration 20"
    if quick:
        load += " --policies vllm-v1 --preemptions recompute"
    bench = f"-m pagesim bench all {where} {fast} --time-limit {LIMIT_S - 60} --out".split()
    calibrate = f"-m pagesim calibrate {where} {model} {fast}".split()
    validate = f"-m pagesim validate --live {where} {model} {load} --out".split()
    profile = str(out / "profile.json")
    return [
        Step("correctness", "Are the kernels right?", ["-m", "pytest", *tests]),
        Step("bench", "How fast are they, beside peers?", [*bench, str(out / "bench")]),
        Step("calibration", "What does a model take?", [*calibrate, profile]),
        Step(
            "validation",
            "Does the simulator predict a live run?",
            [*validate, str(out / "validation"), "--profile", profile],
        ),
    ]


def run(out: Path, device: str | None = None, *, quick: bool = False) -> bool:
    """Run the steps that have not finished yet, and return whether all have.

    Args:
        out: folder for all output, created if missing.
        device: ``cpu`` or ``cuda``; None for a GPU if there is one.
        quick: whether to measure few points.

    Raises:
        PagesimError: the device is not available.
    """
    device = find_device(device)
    wanted = steps(out, device, quick)
    out.mkdir(parents=True, exist_ok=True)
    state = out / STATE
    over: dict[str, float] = json.loads(state.read_text(encoding="utf-8")) if state.exists() else {}
    interpreted = {"TRITON_INTERPRET": "1"} if device == "cpu" else {}
    # A tiny model's tensors are too small for several threads, which would wait for each other on a busy CPU.
    threads = {"OMP_NUM_THREADS": "1"} if device == "cpu" else {}
    root = Path(__file__).resolve().parents[2]  # of a checkout, which contains the tests
    for number, step in enumerate(wanted, 1):
        if step.name in over:
            continue
        print(f"{number}. {step.question} {' '.join(step.arguments)}", flush=True)
        # Only the kernels' own tests use the interpreter; everything else uses the reference on a CPU.
        given = {**os.environ, **threads, **(interpreted if step.name == "correctness" else {})}
        began = time.monotonic()
        try:
            done = subprocess.run(
                [sys.executable, *step.arguments], cwd=root, env=given, timeout=LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            print(f"{step.name} was stopped after {LIMIT_S:.0f} s; the same command goes on", flush=True)
            return False
        if done.returncode:
            print(f"{step.name} ended with {done.returncode}; the same command tries again", flush=True)
            return False
        over[step.name] = round(time.monotonic() - began, 1)
        put_text(state, json.dumps(over, indent=1) + "\n")
    return len(over) == len(wanted)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m pagesim.kernels.bench.first", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of all that is stored")
    parser.add_argument("--device", help="cpu or cuda; a GPU if there is one")
    parser.add_argument("--quick", action="store_true", help="few points, to try it, as always on a CPU")
    asked = parser.parse_args(arguments)
    try:
        return 0 if run(asked.out.resolve(), asked.device, quick=asked.quick) else 1
    except PagesimError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
