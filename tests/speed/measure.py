"""How fast the simulator is, in a unit that holds on any machine: bare SimPy timeouts.

A bare timeout is one event of an empty simulation. Machines differ in how many they make a second, and one
machine differs from hour to hour; what a replayed request costs in them hardly does.

    python tests/speed/measure.py --policies vllm-sosp,vllm-v1 --loads saturated --requests 10000
    python tests/speed/measure.py --policies vllm-sosp --requests 10000 --pair ../older --rounds 5

Only what is public of pagesim is used: the script measures whichever pagesim is imported, of any age.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import simpy

ROOT = Path(__file__).resolve().parents[2]

RATES = {"light": 0.5, "saturated": 1.95, "overload": 4.0}
"""Requests a second of the loads, for OPT-13B in 983 blocks and the default costs: memory is mostly free;
just enough; too small, so that every request is preempted about once."""

TIMEOUTS = 200_000

ENOUGH_S, MOST_REPLAYS = 3.0, 9
"""A replay that is shorter is repeated: what else runs on a machine comes and goes in tenths of a second."""

Row = dict[str, Any]
"""What is replayed, and what it took. A point is a row that is not measured yet."""


def bare_timeout_s(timeouts: int = TIMEOUTS) -> float:
    """Return the CPU seconds of one timeout in a simulation of nothing else."""
    environment = simpy.Environment()

    def wait() -> Generator[simpy.Event]:
        for _ in range(timeouts):
            yield environment.timeout(1)

    environment.process(wait())
    started = time.process_time()
    environment.run()
    return (time.process_time() - started) / timeouts


def replay_of(point: Row) -> tuple[Any, Callable[[Any], dict[str, Any]]]:
    """Return the trace of a point, and what replays requests as the point says and returns the summary."""
    import pagesim

    how = {} if point["rate"] is None else {"arrivals": "poisson", "rate": point["rate"]}
    trace = pagesim.make_trace(point["trace"], num_requests=point["requests"], **how)
    for column in ("n", "beam_width"):
        if point[column] > 1:
            trace = trace.with_columns({column: np.full(len(trace), point[column])})

    def replay(requests: Any) -> dict[str, Any]:
        if point["replicas"] > 1:
            cluster = {"replicas": point["replicas"], "router": point["router"]}
            found = pagesim.simulate_cluster(requests, point["policy"], **cluster, **point["options"])
        else:
            found = pagesim.simulate(requests, point["policy"], steps="none", **point["options"])
        summary: dict[str, Any] = found.summary
        return summary

    return trace, replay


def measure(point: Row) -> Row:
    """Replay a point in this process and return its row.

    Beside the point's own columns: ``timeouts_per_request`` and ``timeouts_per_decision``, the median of some
    replays with ledger and every metric, each beside the bare timeouts before and after it, the making of the
    trace left out; ``cpu_s`` and ``bare_timeout_us``, medians too; ``decisions_per_request``; requests,
    tokens and iterations a CPU second; ``preemptions_per_request``; ``peak_rss_mb`` of the process; whose
    ``code``.
    """
    import pagesim

    trace, replay = replay_of(point)
    replay(trace.take(slice(0, 100)))  # what is loaded at first use
    times, bares = [], [bare_timeout_s()]
    while not times or (sum(times) < ENOUGH_S and len(times) < MOST_REPLAYS):
        started = time.process_time()
        summary = replay(trace)
        times.append(time.process_time() - started)
        bares.append(bare_timeout_s())
    requests = len(trace)
    timeouts = median(
        2 * cpu_s / (before + after) for cpu_s, before, after in zip(times, bares, bares[1:], strict=False)
    )
    cpu_s, sim = median(times), summary["sim"]
    decisions = sim.get("rows", sim.get("decisions"))  # what older checkouts say
    tokens = int((trace.output_tokens * trace.n).sum())
    return {
        **point,
        "requests": requests,
        "code": str(Path(pagesim.__file__).resolve().parents[1]),
        "replays": len(times),
        "timeouts_per_request": timeouts / requests,
        "timeouts_per_decision": timeouts / decisions if decisions else None,
        "decisions_per_request": decisions / requests,
        "cpu_s": cpu_s,
        "bare_timeout_us": median(bares) * 1e6,
        "requests_per_s": requests / cpu_s,
        "tokens_per_s": tokens / cpu_s,
        "iterations_per_s": summary["iterations"] / cpu_s,
        "preemptions_per_request": sum(summary["preemptions"].values()) / requests,
        "peak_rss_mb": summary["sim"]["peak_rss_mb"],
    }


def measure_apart(point: Row, checkout: Path | None = None) -> Row:
    """Return the row of a point that is replayed in a process of its own, so that its memory is its own.

    Args:
        point: what to replay.
        checkout: whose pagesim; None for the one that is imported here.
    """
    environment = dict(os.environ)
    if checkout is not None:
        environment["PYTHONPATH"] = str(checkout)
    command = [sys.executable, str(Path(__file__).resolve()), "--point", json.dumps(point)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    name = f"{point['policy']}, {point['load']}, {point['requests']} requests"
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["it was killed"]
        sys.exit(f"{name}: {last[0]}")
    row: Row = json.loads(done.stdout)
    if checkout is not None and Path(row["code"]) != checkout.resolve():
        sys.exit(f"{name}: {row['code']} was measured instead of {checkout}")
    return row


def measure_pair(point: Row, other_options: dict[str, Any], other: Path, rounds: int) -> Row:
    """Return what this checkout takes over what another takes: each round has both, in changing order."""
    ours: list[float] = []
    theirs: list[float] = []
    for turn in range(rounds):
        both = [(ours, ROOT, point), (theirs, other, {**point, "options": other_options})]
        for found, checkout, each in both[:: 1 if turn % 2 == 0 else -1]:
            found.append(measure_apart(each, checkout)["timeouts_per_request"])
    ratios = [our / their for our, their in zip(ours, theirs, strict=True)]
    return {
        **point,
        "other": str(other),
        "other_options": other_options,
        "timeouts_per_request": median(ours),
        "other_timeouts_per_request": median(theirs),
        "ratio": median(ratios),
        "ratios": ratios,
    }


def option(text: str) -> tuple[str, Any]:
    """Return the name and value of ``name=value``: a number, true, false, none, or a text."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not name=value")
    words = {"true": True, "false": False, "none": None}
    if value.lower() in words:
        return name, words[value.lower()]
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value


def other_option(text: str) -> tuple[str, Any] | None:
    """Return an option of the other checkout; none for an empty text."""
    return option(text) if text else None


def arguments() -> argparse.ArgumentParser:
    """Return what the command line takes."""
    parser = argparse.ArgumentParser(
        description="What a replayed request costs, in bare SimPy timeouts: a row of JSON a point."
    )
    parser.add_argument("--policies", default="vllm-sosp,vllm-v0,vllm-v1,orca-max,orca-pow2,orca-oracle")
    parser.add_argument(
        "--loads",
        default="light,saturated,overload",
        help=f"of {', '.join(RATES)}, or recorded for the trace's own arrivals",
    )
    parser.add_argument("--rate", type=float, help="requests a second, instead of loads")
    parser.add_argument("--requests", default="10000,100000", help="how many, as 10000,100000")
    parser.add_argument("--trace", default="sharegpt", help="a bundled workload, or a trace file")
    parser.add_argument("--n", type=int, default=1, help="samples a request")
    parser.add_argument("--beam-width", type=int, default=1, help="beams a request")
    parser.add_argument("--replicas", type=int, default=1, help="engines of a cluster, each as given here")
    parser.add_argument("--router", default="least-loaded", help="of a cluster")
    parser.add_argument("--enable-prefix-caching", action="store_true", help="for vllm-v1")
    parser.add_argument("--num-blocks", type=int, default=983)
    parser.add_argument("--model", default="opt-13b")
    parser.add_argument("--gpu", help="for a cost that asks for one")
    parser.add_argument("--cost", default="affine:0.024,1e-4,8.2e-7")
    parser.add_argument("--block-size", type=int)
    parser.add_argument("--max-num-batched-tokens", type=int)
    parser.add_argument(
        *("--option", "-o"),
        type=option,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any other option of pagesim.simulate; again for more",
    )
    parser.add_argument("--pair", type=Path, metavar="CHECKOUT", help="another checkout to compare with")
    parser.add_argument("--rounds", type=int, default=5, help="of a pair, each a replay of both")
    parser.add_argument(
        "--other-option",
        type=other_option,
        action="append",
        metavar="NAME=VALUE",
        help="for the other checkout instead of every --option; empty for none of them",
    )
    parser.add_argument("--point", help=argparse.SUPPRESS)
    return parser


def points(given: argparse.Namespace) -> Iterator[Row]:
    """Yield the points that were asked for."""
    if given.rate is not None:
        rates: dict[str, float | None] = {f"{given.rate:g}/s": given.rate}
    else:
        rates = {load: None if load == "recorded" else RATES[load] for load in given.loads.split(",")}
    names = ("num_blocks", "model", "gpu", "cost", "block_size", "max_num_batched_tokens")
    options = {name: getattr(given, name) for name in names if getattr(given, name) is not None}
    for policy in given.policies.split(","):
        own = {"sizing": "paper", "async_scheduling": False}
        own["enable_prefix_caching"] = given.enable_prefix_caching
        limits = own if policy == "vllm-v1" else {}
        for load, rate in rates.items():
            for requests in given.requests.split(","):
                yield {
                    "policy": policy,
                    "load": load,
                    "rate": rate,
                    "requests": int(requests),
                    "trace": given.trace,
                    "n": given.n,
                    "beam_width": given.beam_width,
                    "replicas": given.replicas,
                    "router": given.router,
                    "options": {**options, **limits},
                }


def main() -> None:
    """Measure what the command line asks for, and print a row a point."""
    parser = arguments()
    given = parser.parse_args()
    if given.point is not None:
        print(json.dumps(measure(json.loads(given.point))))
        return
    if unknown := [load for load in given.loads.split(",") if load not in (*RATES, "recorded")]:
        parser.error(f"--loads holds {unknown[0]!r}; it may hold {', '.join(RATES)}, recorded")
    if given.other_option is not None and given.pair is None:
        parser.error("--other-option is for the other checkout of --pair")
    own = dict(given.option)
    others = own if given.other_option is None else dict(filter(None, given.other_option))
    asked = list(points(given))
    for point in asked:
        with_own = {**point, "options": {**point["options"], **own}}
        if given.pair is not None:
            row = measure_pair(with_own, {**point["options"], **others}, given.pair.resolve(), given.rounds)
        elif len(asked) == 1:
            row = measure(with_own)
        else:
            row = measure_apart(with_own)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
