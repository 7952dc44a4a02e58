"""The two fitted numbers: what the paper's engine takes beside its kernels, an iteration and a sequence."""

from __future__ import annotations

from collections.abc import Callable

from pagesim.costs import EngineTime, engine_time
from pagesim.costs.specs import model

FITTED_TO = {"sharegpt": 30.42, "alpaca": 132.44}
"""Fig. 13's bars of vLLM, mean number of requests in a batch: nothing else is fitted to."""

RATES = {"sharegpt": 2.0, "alpaca": 30.0}
"""Requests/s of these bars."""

FITTED_FOR = "opt-13b"
"""The model of these bars."""

ENGINES = {"imported": engine_time("vllm-sosp"), "analytic": EngineTime(0.0, 3.45e-4)}
"""The engine of `FITTED_FOR` by where the other costs come from: what these leave to be explained. Made by

    python -m pagesim.experiments.paper.fit_engine sharegpt_sosp23_opt.parquet alpaca_sample_gpt2bpe.parquet

from the paper's own lengths."""

OUTSIDE = ("static",)
"""Policies whose tokens do not pass through the engine's loop: FasterTransformer computes a whole batch, from
its prompts to its last tokens, in one call of C++. The paper's Orca is a scheduler that its authors wrote
into their own engine, and takes what vLLM takes."""

Rule = Callable[[EngineTime, float], EngineTime]
"""From the engine of `FITTED_FOR`, and another model's layers over its, to the other model's engine."""


def by_layers(engine: EngineTime, layers: float) -> EngineTime:
    """Return both numbers in proportion to the layers."""
    return EngineTime(engine.iteration_s * layers, engine.sequence_s * layers, engine.source)


def engine_of(source: str, model_name: str, policy: str, rule: Rule = by_layers) -> EngineTime:
    """Return the engine's own time of a system of the paper.

    Both numbers are what is left beside kernels that others timed, and kernels run layer by layer; so for
    other models than `FITTED_FOR` they go with the layers. `fit_engine` compares this with other rules.

    Args:
        source: of the other costs, a key of `ENGINES`.
        model_name: what the system serves.
        policy: ours, of the system.
        rule: for other models than the one that was fitted.
    """
    if policy in OUTSIDE:
        return EngineTime(0.0, 0.0)
    return rule(ENGINES[source], model(model_name).layers / model(FITTED_FOR).layers)


def cost_text(profile: str, engine: EngineTime) -> str:
    """Return a profile with an engine's own time, as ``--cost`` takes it."""
    return f"profile:{profile},overhead_s={engine.iteration_s:.6g},sequence_s={engine.sequence_s:.6g}"


def in_words(engine: EngineTime) -> str:
    """Return both numbers as people read them."""
    return f"{engine.iteration_s * 1e3:.1f} ms an iteration and {engine.sequence_s * 1e6:.0f} µs a sequence"
