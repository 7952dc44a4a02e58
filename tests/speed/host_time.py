"""The host's time before a kernel is launched: what Python does from the call of an op to the launch.

    python tests/speed/host_time.py
    python tests/speed/host_time.py --pair ../older --rounds 5

Tensors are on the device ``meta``, splits and cache are given, and a launch does nothing: what is left is the
checks and the making of the argument list. Times are CPU seconds, the shortest of 15 rounds of 150 calls;
each round calls every op.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ROUNDS, CALLS = 15, 150
BATCH, CONTEXT, BLOCK, Q_HEADS, KV_HEADS, DIM = 16, 4096, 16, 32, 8, 128

Ops = dict[str, Callable[[], Any]]


def ops() -> Ops:
    """Return the calls that are timed; those named ``… unchecked`` only where the op can be told not to."""
    import torch

    from pagesim import kernels
    from pagesim.kernels.launch import Launch

    Launch.run = lambda self, on: None  # type: ignore[method-assign]

    def meta(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    pair = [meta(8192, BLOCK, KV_HEADS, DIM) for _ in range(2)]
    q, out = meta(BATCH, Q_HEADS, DIM), meta(BATCH, Q_HEADS, DIM)
    key, value = meta(BATCH, KV_HEADS, DIM), meta(BATCH, KV_HEADS, DIM)
    table = meta(BATCH, CONTEXT // BLOCK, dtype=torch.int32)
    lengths, starts = meta(BATCH, dtype=torch.int32), meta(BATCH + 1, dtype=torch.int32)
    slots, ids = meta(BATCH, dtype=torch.int64), meta(16, dtype=torch.int64)
    layers = [meta(128, BLOCK, 40, DIM) for _ in range(80)]
    staging = meta(16, 80, BLOCK, 40, DIM)
    cache = kernels.Cache(*pair)
    pool = kernels.BlockPool(layers)
    run = {"backend": "triton"}

    def decode(splits: int, **more: Any) -> Callable[[], Any]:
        options = {"num_splits": splits, "out": out, **run, **more}
        return lambda: kernels.paged_attention(q, cache, table, lengths, **options)

    def write(**more: Any) -> Callable[[], Any]:
        return lambda: kernels.reshape_and_cache(key, value, cache, slots, **run, **more)

    calls: Ops = {
        "gather_blocks, 80 caches": lambda: kernels.gather_blocks(pool, ids, out=staging, **run),
        "paged_attention, one pass": decode(1),
        "paged_attention, 8 splits": decode(8),
        "reshape_and_cache": write(),
        "paged_attention, prefill": lambda: kernels.paged_attention(
            q, cache, table, lengths, starts, max_query_len=1, out=out, **run
        ),
        "paged_attention, one pass, unchecked": decode(1, check=False),
        "reshape_and_cache, unchecked": write(check=False),
    }
    return calls


def measure() -> dict[str, float]:
    """Return the microseconds of each op."""
    calls = ops()
    times = dict.fromkeys(calls, float("inf"))
    for _ in range(ROUNDS):
        for name, call in calls.items():
            call()
            started = time.process_time()
            for _ in range(CALLS):
                call()
            times[name] = min(times[name], 1e6 * (time.process_time() - started) / CALLS)
    return times


def measure_in(folder: Path) -> dict[str, float]:
    """Return what ``measure`` gives of the pagesim in a checkout, in a process of its own."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--json"]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=True)
    times: dict[str, float] = json.loads(done.stdout)
    return times


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table of times, beside those of another checkout if one is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pair", type=Path, help="a checkout of another version, measured in turns")
    parser.add_argument("--rounds", type=int, default=3, help="how often both are measured")
    parser.add_argument("--json", action="store_true", help="times of this version only, as JSON")
    options = parser.parse_args(arguments)
    if options.json:
        print(json.dumps(measure()))
        return
    ours: list[dict[str, float]] = []
    theirs: list[dict[str, float]] = []
    for _ in range(options.rounds):
        if options.pair is not None:
            theirs.append(measure_in(options.pair.resolve()))
        ours.append(measure_in(ROOT))
    print("| op | µs |" + (" µs, other | ratio |" if theirs else ""))
    print("|---|---|" + ("---|---|" if theirs else ""))
    for name in ours[0]:
        line = f"| {name} | {median(each[name] for each in ours):.1f} |"
        if theirs and name in theirs[0]:
            ratio = median(a[name] / b[name] for a, b in zip(ours, theirs, strict=True))
            line += f" {median(each[name] for each in theirs):.1f} | {ratio:.2f} |"
        elif theirs:
            line += " – | – |"
        print(line)


if __name__ == "__main__":
    main()
