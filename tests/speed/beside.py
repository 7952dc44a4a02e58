"""How long a load takes in pagesim, and in another simulator that is installed: whole commands in turn.

    python tests/speed/beside.py --rate 2 --vidur ~/vidur --vidur-python ~/vidur/.venv/bin/python
    python tests/speed/beside.py --rate 2 --blis ~/inference-sim --blis-model qwen/qwen3-14b

Both get the same requests, arrivals, blocks and limits. Models and step times are each one's own, so their
latencies are not to be compared. What a simulator does once (Vidur trains its predictors) is done in a first
round, which does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from peers import Call, Load, Peer
from peers.blis import Blis
from peers.vidur import Vidur


class Pagesim:
    """The pagesim that this Python imports, by its command line.

    Args:
        options: further ones of ``pagesim run``.
    """

    name = "pagesim"

    def __init__(self, options: Sequence[str]) -> None:
        self.options = options

    def prepare(self, load: Load, folder: Path) -> Call:
        trace = folder / "pagesim.csv"
        columns = (load.arrival_s, load.prompt_tokens, load.output_tokens)
        rows = zip(*[column.tolist() for column in columns], strict=True)
        lines = [f"{arrival!r},{prompt},{output}" for arrival, prompt, output in rows]
        trace.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *lines]), encoding="utf-8")
        options = {
            "trace": trace,
            "num-blocks": load.num_blocks,
            "block-size": load.block_size,
            "max-num-seqs": load.max_num_seqs,
            "max-num-batched-tokens": load.max_num_batched_tokens,
            "out": folder / "pagesim",
        }
        given = [text for name, value in options.items() for text in (f"--{name}", str(value))]
        return Call([sys.executable, "-m", "pagesim", "run", *given, *self.options], Path.cwd())

    def finished(self, folder: Path) -> int | None:
        summary = json.loads((folder / "pagesim" / "summary.json").read_text(encoding="utf-8"))
        return int(summary["requests"]["finished"])


def measure(call: Call) -> dict[str, float]:
    """Return the seconds, the processor seconds and the memory in MB that a command takes."""
    with tempfile.TemporaryFile() as said:
        started = time.perf_counter()
        try:
            process = subprocess.Popen(call.command, cwd=call.folder, stdout=said, stderr=said)
        except OSError as error:
            sys.exit(f"{call.command[0]} cannot be started in {call.folder}: {error.strerror}")
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            last = said.read().decode(errors="replace").strip().splitlines()[-5:]
            sys.exit("\n".join([f"it ended with {process.returncode}: {' '.join(call.command)}", *last]))
    unit = 1 if sys.platform == "darwin" else 1024  # bytes in one unit of ru_maxrss
    cpu_s = usage.ru_utime + usage.ru_stime
    return {"wall_s": wall_s, "cpu_s": cpu_s, "memory_mb": usage.ru_maxrss * unit / 1e6}


def beside(load: Load, simulators: Sequence[Peer], rounds: int) -> Iterator[dict[str, Any]]:
    """Yield a row a simulator: requests a second, processor seconds, memory, medians of the rounds."""
    requests = len(load.arrival_s)
    with tempfile.TemporaryDirectory() as folder:
        calls = {each.name: each.prepare(load, Path(folder)) for each in simulators}
        taken: dict[str, list[dict[str, float]]] = {name: [] for name in calls}
        for turn in range(1 + rounds):
            for name, call in calls.items():
                found = measure(call)
                if turn:
                    taken[name].append(found)
        for each in simulators:
            middle = {column: median([one[column] for one in taken[each.name]]) for column in found}
            row = {"simulator": each.name, "requests": requests, "finished": each.finished(Path(folder))}
            yield {**row, "requests_per_s": requests / middle["wall_s"], **middle}


def arguments() -> argparse.ArgumentParser:
    """Return what the command line takes; what it does not know goes to ``pagesim run``."""
    about = "What is not known here goes to pagesim run, as --policy vllm-v0 or --cost roofline."
    parser = argparse.ArgumentParser(description=about, allow_abbrev=False)
    parser.add_argument("--trace", default="sharegpt", help="a bundled workload, or a trace file")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--rate", type=float, help="requests a second; without, the trace's own arrivals")
    parser.add_argument("--num-blocks", type=int, default=20000)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--max-num-seqs", type=int, default=128)
    parser.add_argument("--max-num-batched-tokens", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=3, help="after a first one, which does not count")
    parser.add_argument("--vidur", type=Path, metavar="CHECKOUT")
    parser.add_argument("--vidur-python", default=sys.executable, help="of Vidur's environment")
    parser.add_argument("--vidur-model", default="meta-llama/Meta-Llama-3-8B")
    parser.add_argument("--vidur-device", default="a100")
    parser.add_argument("--blis", type=Path, metavar="CHECKOUT")
    parser.add_argument("--blis-model", default="qwen/qwen3-14b")
    parser.add_argument("--blis-device", default="H100")
    return parser


def main() -> None:
    """Measure what the command line asks for, and print a row of JSON a simulator."""
    import pagesim

    given, options = arguments().parse_known_args()
    simulators: list[Peer] = [Pagesim(options)]
    if given.vidur is not None:
        checkout = given.vidur.expanduser().resolve()
        simulators.append(Vidur(checkout, given.vidur_python, given.vidur_model, given.vidur_device))
    if given.blis is not None:
        simulators.append(Blis(given.blis.expanduser().resolve(), given.blis_model, given.blis_device))
    how = {} if given.rate is None else {"arrivals": "poisson", "rate": given.rate}
    trace = pagesim.make_trace(given.trace, num_requests=given.requests, **how)
    limits = (given.num_blocks, given.block_size, given.max_num_seqs, given.max_num_batched_tokens)
    load = Load(trace.arrival_s, trace.prompt_tokens, trace.output_tokens, *limits)
    for row in beside(load, simulators, given.rounds):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
