"""The one fitted number: what the paper's engine takes an iteration beside its kernels."""

from __future__ import annotations

import argparse

from pagesim.api import simulate
from pagesim.workloads import make_trace

FITTED_TO = 30.42
"""Fig. 13's bar of vLLM on ShareGPT, mean number of requests in a batch: nothing else is fitted to."""

LAYERS = 40
"""Of OPT-13B, for which it is fitted. An engine launches kernels layer by layer, so for other models the
overhead goes with their number of layers."""

OVERHEAD_S = {"imported": 0.0065, "analytic": 0.0105}
"""Seconds an iteration by where the other costs come from. Made by

    python -m pagesim.experiments.paper.overhead sharegpt_sosp23_opt.parquet

from the paper's own ShareGPT lengths, to a tenth of a millisecond."""


def mean_batch(trace: str, profile: str, overhead_s: float) -> float:
    """Return Fig. 13's vLLM bar on ShareGPT as it comes out with such an overhead."""
    result = simulate(
        make_trace(trace, arrivals="sosp", rate=2.0, duration=3600),
        steps="none",
        cost=f"profile:{profile},overhead_s={overhead_s:g}",
        window="600:3600",
    )
    return float(result.summary["batch"]["mean"])


def fit(trace: str, profile: str) -> float:
    """Return the overhead, in seconds, whole tenths of a millisecond, that comes nearest to the bar.

    A slower engine batches more requests, so the bar grows with the overhead and bisection finds it.
    """
    low, high = 0, 300
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if mean_batch(trace, profile, middle / 1e4) < FITTED_TO else (low, middle)
    return min((low, high), key=lambda at: abs(mean_batch(trace, profile, at / 1e4) - FITTED_TO)) / 1e4


def main() -> None:
    """Print the fitted numbers."""
    parser = argparse.ArgumentParser(description="Fit the paper's engine's overhead an iteration.")
    parser.add_argument("trace", help="the paper's own ShareGPT lengths")
    trace = parser.parse_args().trace
    for source, profile in (("imported", "opt-13b-a100-40gb-rescaled"), ("analytic", "analytic-a100-40gb")):
        overhead_s = fit(trace, profile)
        print(f"{source}: {overhead_s:g} s, mean batch {mean_batch(trace, profile, overhead_s):.2f}")


if __name__ == "__main__":
    main()
