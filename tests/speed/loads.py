"""What people run: each load of docs/explanation/performance.md by one command, and where its time goes.

    python tests/speed/loads.py --conversations conversation.jsonl
    python tests/speed/loads.py --only sglang --requests 1200 --instructions
    python tests/speed/loads.py --only sglang --only gpt-oss --profile 8

The first prints what a request takes, in bare SimPy timeouts; the second counts it, in thousands of machine
instructions and over those of a bare timeout; the third profiles each load, and prints the share of each room
of pagesim and the functions that take most.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import shlex
import sys
from collections import Counter
from pathlib import Path

from instructions import NEEDED, can_count, instructions_per_request, instructions_per_timeout
from measure import Row, arguments, measure_apart, points, replay_of

_V1 = "--policies vllm-v1"
_LLAMA = "--gpu h100 --model llama-3.1-8b"
_H100 = f"{_V1} --rate 2 --requests 3000 --gpu h100 --num-blocks 20000"
_CONVERSATIONS = (
    f"{_V1} --loads recorded --trace CONVERSATIONS --requests 3000 {_LLAMA} --enable-prefix-caching"
    " --max-num-batched-tokens 8192"
)
_TIER = "-o kv_offloading_size=256 -o kv_offloading_link=50GB/s"
_SAMPLES = "--rate 0.5 --requests 3000 --n 4"

LOADS = {
    "ShareGPT, vllm-sosp": "--policies vllm-sosp --loads saturated --requests 6000",
    "ShareGPT, vllm-v1": f"{_V1} --loads saturated --requests 6000",
    "ShareGPT, prefix caching": f"{_V1} --loads saturated --requests 6000 --enable-prefix-caching",
    "ShareGPT, two batches in flight": (
        f"{_V1} --loads saturated --requests 6000 --enable-prefix-caching -o async_scheduling=true"
    ),
    "Azure conversations, prefix caching": (
        f"{_V1} --loads recorded --trace azure-conv --requests 6000 {_LLAMA} --num-blocks 20000"
        " --enable-prefix-caching"
    ),
    "Mooncake, blocks of 16": f"{_CONVERSATIONS} --num-blocks 60000 --block-size 16",
    "Mooncake, blocks of 512": f"{_CONVERSATIONS} --num-blocks 1875 --block-size 512",
    "Mooncake, a tier on the host": (
        f"{_CONVERSATIONS} --num-blocks 60000 --block-size 16 --requests 1500 {_TIER}"
    ),
    "Llama-3.1-8B, prefix caching": f"{_H100} --model llama-3.1-8b --enable-prefix-caching",
    "Llama-3.1-8B, prefix caching, a profile's costs": (
        f"{_H100} --model llama-3.1-8b --enable-prefix-caching --cost auto"
    ),
    "gpt-oss-20b": f"{_H100} --model gpt-oss-20b",
    "gpt-oss-20b, prefix caching": f"{_H100} --model gpt-oss-20b --enable-prefix-caching",
    "gpt-oss-20b, prefix caching, a profile's costs": (
        f"{_H100} --model gpt-oss-20b --enable-prefix-caching --cost auto"
    ),
    "Gemma 3 27B": f"{_H100} --model gemma3-27b",
    "Gemma 3 27B, prefix caching": f"{_H100} --model gemma3-27b --enable-prefix-caching",
    "sglang": f"--policies sglang --rate 2 --requests 3000 {_LLAMA} --num-blocks 320000 --block-size 1",
    "four samples, vllm-sosp": f"--policies vllm-sosp {_SAMPLES}",
    "four samples, prefix caching": f"{_V1} {_SAMPLES} --enable-prefix-caching",
    "64 replicas, prefix caching": (
        f"{_V1} --rate 125 --requests 20000 {_LLAMA} --num-blocks 20000 --enable-prefix-caching --replicas 64"
    ),
}
"""What `measure.py` is asked for."""


def point_of(command: str) -> Row:
    """Return the point that a command line of `measure.py` names."""
    given = arguments().parse_args(shlex.split(command))
    (point,) = points(given)
    return {**point, "options": {**point["options"], **dict(given.option)}}


def profiled(point: Row) -> pstats.Stats:
    """Return the profile of one replay; what is loaded at first use and the trace are left out."""
    trace, replay = replay_of(point)
    replay(trace.take(slice(0, 100)))
    gc.freeze()  # what earlier loads left is not collected in the middle of this one
    profiler = cProfile.Profile()
    profiler.runcall(replay, trace)
    return pstats.Stats(profiler)


def room_of(file: str) -> str | None:
    """Return the folder of pagesim that a file is in, or numpy; None for what any of these may call."""
    parts = Path(file).parts
    if "numpy" in parts:
        return "numpy"
    if "pagesim" not in parts:
        return None
    inside = parts[len(parts) - parts[::-1].index("pagesim") :]
    return inside[0] if len(inside) > 1 else "pagesim"


def shares_of(stats: pstats.Stats) -> dict[str, float]:
    """Return the share of each room, largest first; a built-in function's time is its callers'."""
    seconds: Counter[str] = Counter()
    for (file, _, _), (_, _, own, _, callers) in stats.stats.items():  # type: ignore[attr-defined]
        room = room_of(file)
        if room is not None:
            seconds[room] += own
            continue
        for (caller, _, _), (_, _, from_there, _) in callers.items():
            seconds[room_of(caller) or "other"] += from_there
    total = seconds.total()
    return {room: spent / total for room, spent in seconds.most_common()}


def most_of(stats: pstats.Stats, count: int) -> list[tuple[str, float]]:
    """Return the functions that take most, and the share of each."""
    rows = [
        (f"{room_of(file)}/{Path(file).name}:{name}", own)
        for (file, _, name), (_, _, own, _, _) in stats.stats.items()  # type: ignore[attr-defined]
        if room_of(file) is not None
    ]
    total = stats.total_tt  # type: ignore[attr-defined]
    return [(name, own / total) for name, own in sorted(rows, key=lambda row: -row[1])[:count]]


def main() -> None:
    """Measure or profile the loads that are asked for."""
    parser = argparse.ArgumentParser(description="What each load of docs/explanation/performance.md takes.")
    parser.add_argument("--only", action="append", help="loads whose names hold this; again for more")
    parser.add_argument("--conversations", help="Mooncake's trace; without it those loads are left out")
    parser.add_argument("--requests", type=int, help="how many, instead of each load's own")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--instructions", action="store_true", help="count machine instructions with valgrind")
    how.add_argument("--profile", type=int, metavar="N", help="say where time goes: rooms, N functions")
    how.add_argument("--commands", action="store_true", help="print the command of each load instead")
    given = parser.parse_args()
    wanted = [each.lower() for each in given.only or [""]]
    chosen = {
        name: command.replace("CONVERSATIONS", given.conversations or "")
        for name, command in LOADS.items()
        if any(each in name.lower() for each in wanted)
        and (given.conversations or given.commands or "CONVERSATIONS" not in command)
    }
    if not chosen:
        sys.exit(f"no load is left; there are: {'; '.join(LOADS)}; Mooncake's need --conversations")
    if given.instructions and not can_count():
        sys.exit(f"instructions are counted by {' and '.join(NEEDED)}: install valgrind")
    for name, command in chosen.items():
        if given.commands:
            print(f"{name}: python tests/speed/measure.py {LOADS[name]}")
            continue
        asked = point_of(command)
        if given.requests is not None:
            asked["requests"] = given.requests
        if given.instructions:
            counted = instructions_per_request(asked)
            in_timeouts = counted / instructions_per_timeout()
            print(f"| {name} | {counted / 1e3:.1f} | {in_timeouts:.1f} |", flush=True)
            continue
        if given.profile is None:
            row = measure_apart(asked)
            print(f"| {name} | {row['timeouts_per_request']:.1f} | {row['peak_rss_mb']:.0f} |", flush=True)
            continue
        stats = profiled(asked)
        rooms = ", ".join(f"{room} {share:.0%}" for room, share in shares_of(stats).items() if share >= 0.005)
        print(f"{name}: {rooms}")
        for function, share in most_of(stats, given.profile):
            print(f"    {share:5.1%}  {function}")


if __name__ == "__main__":
    main()
