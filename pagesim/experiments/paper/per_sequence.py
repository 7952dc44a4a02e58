"""Why vLLM comes out too fast on Alpaca: an engine that also takes time for each sequence.

    python -m pagesim.experiments.paper.per_sequence sharegpt_sosp23_opt.parquet alpaca.parquet

fits that time to Fig. 13's vLLM bar on Alpaca, and prints what it changes there and in Fig. 12. Nothing else
uses it.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from pagesim.api import simulate
from pagesim.costs.profiles import Curve as Line
from pagesim.costs.profiles import bundled_profile
from pagesim.experiments.paper.jobs import Curve, knee
from pagesim.experiments.paper.overhead import FITTED_TO
from pagesim.experiments.paper.setting import OPT_13B, SYSTEMS, Setting
from pagesim.workloads import make_trace

ON_ALPACA = 132.44
MOST = 1024
STEP_S = 1e-5
BARS = ("orca-max", "orca-pow2", "orca-oracle", "vllm-sosp")


def save_profile(file: Path, iteration_s: float, sequence_s: float) -> None:
    """Write a profile whose overhead grows with the sequences that get a token."""
    profile = bundled_profile(OPT_13B.imported)
    overhead = Line(at=(0, MOST), seconds=(iteration_s, iteration_s + MOST * sequence_s))
    terms = profile.terms.model_copy(update={"overhead": overhead})
    profile.model_copy(update={"terms": terms}).save(file)


def batch(trace: str, rate: float, iteration_s: float, sequence_s: float, policy: str = "vllm-sosp") -> float:
    """Return a bar of Fig. 13 under such an overhead."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "profile.json"
        save_profile(file, iteration_s, sequence_s)
        requests = make_trace(trace, arrivals="sosp", rate=rate, duration=3600)
        result: Any = simulate(requests, policy, steps="none", cost=f"profile:{file}", window="600:3600")
    return float(result.summary["batch"]["mean"])


def fit(sharegpt: str, alpaca: str) -> tuple[float, float]:
    """Return seconds an iteration and a sequence, to 10 µs, with which both of vLLM's bars come out."""
    low, high = 0, 40
    while high - low > 1:
        middle = (low + high) // 2
        of_sequence = middle * STEP_S
        below = batch(alpaca, 30.0, _iteration(sharegpt, of_sequence), of_sequence) < ON_ALPACA
        low, high = (middle, high) if below else (low, middle)
    return _iteration(sharegpt, high * STEP_S), high * STEP_S


def _iteration(sharegpt: str, sequence_s: float) -> float:
    """Return the overhead an iteration with which ShareGPT's bar still comes out, to 0.1 ms."""
    low, high = 0, 100
    while high - low > 1:
        middle = (low + high) // 2
        below = batch(sharegpt, 2.0, 10 * middle * STEP_S, sequence_s) < FITTED_TO
        low, high = (middle, high) if below else (low, middle)
    return 10 * low * STEP_S


def knee_on_alpaca(alpaca: str, policy: str, iteration_s: float, sequence_s: float) -> float | None:
    """Return a knee of Fig. 12 under such an overhead."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "profile.json"
        save_profile(file, iteration_s, sequence_s)
        setting = Setting(alpaca=alpaca, cost=f"profile:{file}")
        scenario = setting.scenario(OPT_13B, policy, "alpaca", seconds=900)
        return knee(Curve(scenario, (15.0, 30.0)).run()["points"])


def main() -> None:
    """Print the fitted times, and what comes of them."""
    parser = argparse.ArgumentParser(description="Fit an engine's time for each sequence.")
    parser.add_argument("sharegpt", help="the paper's own ShareGPT lengths")
    parser.add_argument("alpaca", help="Alpaca's lengths")
    given = parser.parse_args()
    times = fit(given.sharegpt, given.alpaca)
    print(f"{times[0] * 1e3:.1f} ms an iteration and {times[1] * 1e6:.0f} µs a sequence", flush=True)
    for name, trace, rate in (("ShareGPT", given.sharegpt, 2.0), ("Alpaca", given.alpaca, 30.0)):
        for policy in BARS:
            print(f"Fig. 13, {name}, {SYSTEMS[policy]}: {batch(trace, rate, *times, policy):.2f}", flush=True)
    for policy in ("vllm-sosp", "orca-oracle", "orca-pow2"):
        print(
            f"Fig. 12, Alpaca, {SYSTEMS[policy]}: knee {knee_on_alpaca(given.alpaca, policy, *times)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
