"""Simulates a recorded run: the same requests at the same times, or in the same closed loop."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from pagesim.accounting.metrics import describe
from pagesim.api import run as replay
from pagesim.costs.operators.experts import KERNELS
from pagesim.errors import PagesimError
from pagesim.experiments.clusters import ClusterResult
from pagesim.experiments.clusters.cluster import run_cluster
from pagesim.experiments.recorded.errors import (
    OverTime,
    Pair,
    RecordedComparison,
    Residual,
    pairs_of,
    residuals_of,
)
from pagesim.experiments.recorded.recording import RecordedRun, Rows, Series
from pagesim.results.prometheus import states_at
from pagesim.results.result import Result
from pagesim.setup.data_parallel import ranks_of
from pagesim.setup.system import System, checked

NEEDED = (
    *("model", "gpu", "tensor_parallel_size", "vllm_version", "max_num_seqs", "max_num_batched_tokens"),
    "enable_prefix_caching",
)
"""Options of a server that a simulation requires."""

OF_ANY_POLICY = (
    "model",
    "gpu",
    "tensor_parallel_size",
    "weight_dtype",
    "kv_cache_dtype",
    "num_blocks",
    "max_model_len",
    "frontend",
)
"""Options of a server that are kept when it is simulated under a policy other than its own."""

OF_VLLM_V1 = ("vllm_version", "max_num_seqs", "max_num_batched_tokens", "enable_prefix_caching")
"""Required options that apply only to policy ``vllm-v1``."""


def system_of(run: RecordedRun, given: Mapping[str, Any]) -> System:
    """Return the system of a recorded run, with its MoE kernel passed on to ``--cost auto``.

    Args:
        run: the recording.
        given: options that override the recording.

    Raises:
        PagesimError: a required option is neither recorded nor given.
    """
    said = {name: value for name, value in run.server.items() if name in System.model_fields}
    own = said.setdefault("policy", "vllm-v1")
    if given.get("policy", own) != own:
        said = {name: said[name] for name in OF_ANY_POLICY if name in said}
    values = {**said, **given}
    if run.server.get("moe_backend") in KERNELS and values.get("cost", "auto") == "auto":
        values["cost"] = f"auto:moe_backend={run.server['moe_backend']}"
    # Without known prompts nothing is known to be shared, so prefix caching makes no difference.
    not_needed = set() if run.hash_ids is not None else {"enable_prefix_caching"}
    if values["policy"] != "vllm-v1":
        not_needed |= set(OF_VLLM_V1)
    if missing := [name for name in NEEDED if name not in values and name not in not_needed]:
        flags = " and ".join("--" + name.replace("_", "-") for name in missing)
        raise PagesimError(
            f"{run.name}: does not say {' and '.join(missing)} of the server; give {flags}, as it was started"
        )
    return checked(System, {**values, "max_concurrency": run.max_concurrency}, run.name)


def simulate_recorded(run: RecordedRun, **system: Any) -> RecordedComparison:
    """Simulate a recorded run and compare measurement and simulation.

    Args:
        run: the recording.
        **system: fields of `System`, such as ``cost="roofline"`` or ``frontend="0.01"``; they override what
            the recording says about the server.

    Raises:
        PagesimError: an option is missing, or the run and the system do not match.
    """
    chosen = system_of(run, system)
    ranks, trace = ranks_of(chosen), run.trace()
    result: Result | ClusterResult
    if ranks > 1:
        result = run_cluster(chosen, trace)
    else:
        result = replay(chosen, trace, steps="none" if run.series is None else "iterations")
    notes = (*result.notes, *_assumed(run, chosen))
    if ranks > 1 and run.series is not None:
        notes += (f"{run.name}: what the server said over time is not compared: it had {ranks} ranks",)
        run = dataclasses.replace(run, series=None)
    return compared(run, result, notes=notes)


def compared(
    run: RecordedRun,
    result: Result | ClusterResult,
    *,
    name: str | None = None,
    rows: Rows | None = None,
    front_end_s: float = 0.0,
    notes: tuple[str, ...] = (),
) -> RecordedComparison:
    """Return the comparison of a recorded run with the result of its simulation.

    Args:
        run: the recorded run.
        result: simulation of the same requests.
        name: name of the comparison; the run's if omitted.
        rows: requests to include, ``[N]``; all if omitted.
        front_end_s: additional seconds of every request before its first token.
        notes: notes on the simulation.

    Raises:
        PagesimError: no request was answered in the simulation.
    """
    columns = result.request_columns
    answered = np.isfinite(columns["finish_s"]) & (columns["finish_s"] >= 0)
    chosen = answered if rows is None else answered & rows
    if not chosen.any():
        raise PagesimError(
            f"{run.name}: none of its requests was answered in the simulation; look at the server's settings "
            "(num_blocks, max_model_len)"
        )
    notes = (*run.notes, *notes)
    if lost := int((~answered).sum()):
        notes += (f"{run.name}: {lost} requests were not answered in the simulation and are left out",)
    front = columns.get("frontend_s", 0.0) + front_end_s
    ttft = columns["first_token_s"] - columns["arrival_s"] + front
    e2e = columns["finish_s"] - columns["arrival_s"] + front
    pairs = pairs_of(run, ttft, e2e, chosen)
    curve = None
    if run.series is not None and result.steps is not None:
        curve = OverTime(run.series, Series(run.series.t, **states_at(result.steps, run.series.t)))
    return RecordedComparison(
        name=run.name if name is None else name,
        system=result.scenario,
        requests=len(run),
        pairs=pairs,
        residuals=_residuals(run, pairs, result),
        curve=curve,
        preemptions=sum(result.summary["preemptions"].values()),
        recorded_preemptions=run.preemptions,
        notes=notes,
    )


def _assumed(run: RecordedRun, system: System) -> tuple[str, ...]:
    """Return notes on what was inferred instead of recorded."""
    notes = []
    if system.num_blocks is None:
        notes.append("num_blocks is not recorded, and is worked out by sizing")
    alone: dict[str, Any] = {"expert_parallel_size": 1}
    if system.cost.startswith("auto:moe_backend="):
        alone["moe_backend"] = run.server.get("moe_backend")
    said = {name: value for name, value in run.server.items() if alone.get(name) != value}
    if unknown := [name for name in said if name not in System.model_fields]:
        values = ", ".join(f"{name} {run.server[name]}" for name in unknown)
        notes.append(f"recorded, and not an option of a system: {values}")
    return tuple(notes)


def _residuals(
    run: RecordedRun, pairs: Mapping[str, Pair], result: Result | ClusterResult
) -> dict[str, dict[str, Residual]]:
    """Return measured and simulated values by metric and statistic."""
    measured: dict[str, Any] = {metric: describe(pair.measured) for metric, pair in pairs.items()}
    if run.itl_s is not None:
        measured["itl"] = describe(np.concatenate([np.empty(0), *run.itl_s]))
    simulated = {metric: describe(pair.simulated) for metric, pair in pairs.items()}
    simulated |= {"itl": result.summary.get("itl") or {}, "duration": {"mean": duration_of(result)}}
    return residuals_of({**measured, **run.known}, simulated)


def duration_of(result: Result | ClusterResult) -> float:
    """Return the seconds from the first arrival to the last token."""
    columns = result.request_columns
    return float(np.nanmax(columns["finish_s"]) - np.nanmin(columns["arrival_s"]))
