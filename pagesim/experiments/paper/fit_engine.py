"""Fits the paper's engine, and compares rules that carry it to other models.

    python -m pagesim.experiments.paper.fit_engine sharegpt_sosp23_opt.parquet alpaca_sample_gpt2bpe.parquet

fits both numbers of `engine.ENGINES`; with ``--rules`` it prints knees of Fig. 12 under each rule instead.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import cache

from pagesim.api import simulate
from pagesim.costs import EngineTime
from pagesim.experiments.paper.engine import FITTED_TO, RATES, Rule, by_layers, cost_text, engine_of
from pagesim.experiments.paper.figures.fig12 import PANELS
from pagesim.experiments.paper.jobs import Curve, knee
from pagesim.experiments.paper.setting import OPT_13B, Setting
from pagesim.workloads import make_trace
from pagesim.workloads.trace import Trace

ITERATION_STEP_S, SEQUENCE_STEP_S = 1e-4, 5e-6
"""To which the numbers are fitted: the draw of a trace moves the bars by more."""

MOST_ITERATIONS, MOST_SEQUENCES = 100, 128
"""Of these steps."""


@cache
def _trace(lengths: str, rate: float) -> Trace:
    return make_trace(lengths, arrivals="sosp", rate=rate, duration=3600)


def mean_batch(setting: Setting, workload: str, cost: str) -> float:
    """Return a vLLM bar of Fig. 13 as it comes out with such a cost."""
    trace = _trace(setting.trace(workload), RATES[workload])
    result = simulate(trace, "vllm-sosp", steps="none", cost=cost, window="600:3600")
    return float(result.summary["batch"]["mean"])


def nearest(bar: Callable[[int], float], to: float, most: int) -> int:
    """Return the whole number from 0 to ``most`` at which a bar that grows with it is nearest to a value."""
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if bar(middle) < to else (low, middle)
    return min((low, high), key=lambda at: abs(bar(at) - to))


def fit(setting: Setting) -> EngineTime:
    """Return the engine of OPT-13B with which both bars come out as near as can be.

    A slower engine batches more requests, so each bar grows with each number. For each time of a sequence
    there is one of an iteration with which ShareGPT's bar comes out; of these pairs that one is taken which
    comes nearest to Alpaca's.

    Args:
        setting: the paper's lengths, and where the other costs come from.
    """
    profile = setting.profile_on(OPT_13B)

    @cache
    def engine(sequences: int) -> EngineTime:
        sequence_s = sequences * SEQUENCE_STEP_S

        @cache
        def bar(iterations: int) -> float:
            cost = cost_text(profile, EngineTime(iterations * ITERATION_STEP_S, sequence_s))
            return mean_batch(setting, "sharegpt", cost)

        return EngineTime(nearest(bar, FITTED_TO["sharegpt"], MOST_ITERATIONS) * ITERATION_STEP_S, sequence_s)

    @cache
    def bar(sequences: int) -> float:
        return mean_batch(setting, "alpaca", cost_text(profile, engine(sequences)))

    return engine(nearest(bar, FITTED_TO["alpaca"], MOST_SEQUENCES))


RULES: dict[str, Rule] = {
    "both numbers by layers": by_layers,
    "an iteration by layers, a sequence alike": lambda engine, layers: EngineTime(
        engine.iteration_s * layers, engine.sequence_s
    ),
    "both alike": lambda engine, _: engine,
}
"""For other models than OPT-13B; the first is that of the figures."""

COMPARED = ("vllm-sosp", "orca-oracle", "orca-pow2")
"""Systems whose knees tell rules apart: Orca (Max) holds few sequences at once."""


def off(setting: Setting, rule: Rule) -> Iterator[tuple[str, float]]:
    """Yield each knee of Fig. 12's larger models, and by what share it is off from the one read by eye."""
    for panel in PANELS:
        for line in panel.lines:
            if panel.server is OPT_13B or line.policy not in COMPARED:
                continue
            engine = engine_of(setting.cost, panel.server.model, line.policy, rule)
            scenario = setting.scenario(
                panel.server,
                line.policy,
                panel.workload,
                seconds=panel.seconds,
                cost=cost_text(setting.profile_on(panel.server), engine),
            )
            found = knee(Curve(scenario, line.rates).run()["points"])
            assert found is not None
            assert line.read is not None
            yield f"{panel.title}, {line.name}", found / line.read - 1


def main() -> None:
    """Print the fitted numbers and both bars with them, or what each rule does to knees."""
    parser = argparse.ArgumentParser(description="Fit the paper's engine's time an iteration and a sequence.")
    parser.add_argument("sharegpt", help="the paper's own ShareGPT lengths")
    parser.add_argument("alpaca", help="Alpaca's lengths")
    parser.add_argument("--rules", action="store_true", help="compare rules for the larger models")
    given = parser.parse_args()
    if given.rules:
        setting = Setting(given.sharegpt, given.alpaca)
        for name, rule in RULES.items():
            knees = dict(off(setting, rule))
            for knee_of, share in knees.items():
                print(f"{name}: {knee_of}: {100 * share:+.1f} %", flush=True)
            print(f"{name}: mean {100 * sum(map(abs, knees.values())) / len(knees):.1f} %", flush=True)
        return
    for source in ("imported", "analytic"):
        setting = Setting(given.sharegpt, given.alpaca, source)
        engine = fit(setting)
        cost = cost_text(setting.profile_on(OPT_13B), engine)
        bars = " and ".join(f"{mean_batch(setting, workload, cost):.2f}" for workload in RATES)
        print(
            f"{source}: {engine.iteration_s * 1e3:.1f} ms an iteration, {engine.sequence_s * 1e6:.0f} µs a "
            f"sequence; mean batch {bars}",
            flush=True,
        )


if __name__ == "__main__":
    main()
