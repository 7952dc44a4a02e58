"""Why Fig. 13's vLLM bar on Alpaca comes out too low: an engine that also takes time for each sequence.

    python -m pagesim.paper.per_sequence sharegpt_sosp23_opt.parquet alpaca.parquet

fits that time to this bar, and prints what it changes. Nothing else uses it.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from pagesim.api import simulate
from pagesim.paper.overhead import FITTED_TO
from pagesim.profiles import Curve, boxed
from pagesim.workloads import make_trace

PROFILE = "opt-13b-a100-40gb-rescaled"
ON_ALPACA = 132.44
MOST = 1024
TENTH_MS = 1e-4


def overhead(iteration_s: float, sequence_s: float) -> Curve:
    """Return an overhead that grows with the sequences that get a token."""
    return Curve(at=(0, MOST), seconds=(iteration_s, iteration_s + MOST * sequence_s))


def batch(trace: str, rate: float, iteration_s: float, sequence_s: float, policy: str = "vllm-sosp") -> float:
    """Return a bar of Fig. 13 under such an overhead."""
    profile = boxed(PROFILE)
    terms = profile.terms.model_copy(update={"overhead": overhead(iteration_s, sequence_s)})
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "profile.json"
        profile.model_copy(update={"terms": terms}).save(file)
        requests = make_trace(trace, arrivals="sosp", rate=rate, duration=3600)
        result: Any = simulate(requests, policy, steps="none", cost=f"profile:{file}", window="600:3600")
    return float(result.summary["batch"]["mean"])


def fit(sharegpt: str, alpaca: str) -> tuple[float, float]:
    """Return seconds an iteration and a sequence, to 10 µs, with which both of vLLM's bars come out."""
    low, high = 0, 50
    while high - low > 1:
        middle = (low + high) // 2
        a_sequence = middle * TENTH_MS / 10
        if batch(alpaca, 30.0, _iteration(sharegpt, a_sequence), a_sequence) < ON_ALPACA:
            low = middle
        else:
            high = middle
    return _iteration(sharegpt, high * TENTH_MS / 10), high * TENTH_MS / 10


def _iteration(sharegpt: str, sequence_s: float) -> float:
    """Return the overhead an iteration with which ShareGPT's bar still comes out."""
    low, high = 0, 100
    while high - low > 1:
        middle = (low + high) // 2
        below = batch(sharegpt, 2.0, middle * TENTH_MS, sequence_s) < FITTED_TO
        low, high = (middle, high) if below else (low, middle)
    return low * TENTH_MS


def main() -> None:
    """Print the fitted times and Fig. 13 with them."""
    parser = argparse.ArgumentParser(description="Fit an engine's time for each sequence.")
    parser.add_argument("sharegpt", help="the paper's own ShareGPT lengths")
    parser.add_argument("alpaca", help="Alpaca's lengths")
    given = parser.parse_args()
    iteration_s, sequence_s = fit(given.sharegpt, given.alpaca)
    print(f"{iteration_s * 1e3:.1f} ms an iteration and {sequence_s * 1e6:.0f} µs a sequence")
    for name, trace, rate in (("ShareGPT", given.sharegpt, 2.0), ("Alpaca", given.alpaca, 30.0)):
        for policy in ("orca-max", "orca-pow2", "orca-oracle", "vllm-sosp"):
            print(f"{name} {policy}: {batch(trace, rate, iteration_s, sequence_s, policy):.2f}")


if __name__ == "__main__":
    main()
