"""A run as Prometheus would have scraped it: timestamped OpenMetrics text with the engine's metric names.

`promtool tsdb create-blocks-from openmetrics` imports it into Prometheus, so that a dashboard of real
servers shows the simulated one. Sources: vLLM, v1/metrics/loggers.py; SGLang,
observability/metrics_collector.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pagesim.results.result import Result

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]

SCRAPES = 200
"""Maximum number of intervals between scrapes up to the last event; each lasts at least a second."""

Named = dict[str, tuple[str, tuple[float, ...]]]
"""Metric names and bucket bounds (empty unless a histogram), by the quantity they measure."""

_CALLS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0),
    *(960.0, 1920.0, 7680.0),
)
_FIRST = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0),
    *(80.0, 160.0, 640.0, 2560.0),
)
_GAPS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0),
    80.0,
)
VLLM: Named = {
    "running": ("vllm:num_requests_running", ()),
    "waiting": ("vllm:num_requests_waiting", ()),
    "kv_use": ("vllm:kv_cache_usage_perc", ()),
    "preemptions": ("vllm:num_preemptions", ()),
    "queried": ("vllm:prefix_cache_queries", ()),
    "cached": ("vllm:prefix_cache_hits", ()),
    "prompts": ("vllm:prompt_tokens", ()),
    "outputs": ("vllm:generation_tokens", ()),
    "finished": ("vllm:request_success", ()),
    "ttft": ("vllm:time_to_first_token_seconds", _FIRST),
    "itl": ("vllm:inter_token_latency_seconds", _GAPS),
    "e2e": ("vllm:e2e_request_latency_seconds", _CALLS),
    "queue": ("vllm:request_queue_time_seconds", _CALLS),
}
_SGLANG = (
    0.1,
    0.2,
    0.4,
    0.6,
    0.8,
    1.0,
    2.0,
    4.0,
    6.0,
    8.0,
    10.0,
    20.0,
    40.0,
    60.0,
    80.0,
    100.0,
    200.0,
    400.0,
)
_SGLANG_GAPS = (
    *(0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4),
    *(0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0),
)
SGLANG: Named = {
    "running": ("sglang:num_running_reqs", ()),
    "waiting": ("sglang:num_queue_reqs", ()),
    "kv_use": ("sglang:token_usage", ()),
    "preemptions": ("sglang:num_retracted_requests", ()),
    "cached": ("sglang:cached_tokens", ()),
    "prompts": ("sglang:prompt_tokens", ()),
    "outputs": ("sglang:generation_tokens", ()),
    "finished": ("sglang:num_requests", ()),
    "ttft": ("sglang:time_to_first_token_seconds", _SGLANG),
    "itl": ("sglang:inter_token_latency_seconds", _SGLANG_GAPS),
    "e2e": ("sglang:e2e_request_latency_seconds", (*_SGLANG, 600.0, 1200.0, 1800.0, 2400.0)),
}


def states_at(steps: pd.DataFrame, t: Floats) -> dict[str, Floats]:
    """Return a server's state at given instants from its steps table, with zeros while it is idle.

    Args:
        steps: steps table, one row per iteration or stretch.
        t: instants in seconds, ``[T]``, ascending.

    Returns:
        Requests ``running`` and ``waiting``, and ``kv_use``, the share of KV blocks in use, ``[T]`` each.
    """
    if not len(steps):
        return dict.fromkeys(("running", "waiting", "kv_use"), np.zeros(len(t)))
    # The null block of vllm-v1 is not counted, as on the real server.
    use = 1 - steps["free_gpu_blocks"] / (steps["free_gpu_blocks"] + steps["num_physical_blocks"]).max()
    start = steps["start"].to_numpy()
    last = start + steps["step_s"].to_numpy() * steps.get("iterations", 1)
    at = np.searchsorted(start, t, "right") - 1
    busy = (at >= 0) & (t < np.asarray(last)[np.maximum(at, 0)])
    columns = {"running": steps["num_running"], "waiting": steps["num_waiting"], "kv_use": use}
    return {
        name: np.where(busy, each.to_numpy(np.float64)[np.maximum(at, 0)], 0.0)
        for name, each in columns.items()
    }


class _Events:
    """Counted events: times, weights and values for histograms, ``[N]`` each; NaN times are dropped."""

    def __init__(self, at: Floats, weight: Floats, value: Floats | None = None) -> None:
        order = np.argsort(at, kind="stable")[: int(np.isfinite(at).sum())]
        self.at, self._weight = at[order], weight[order]
        self._value = np.zeros(len(order)) if value is None else value[order]

    def until(self, t: Floats, *, below: float = np.inf, sums: bool = False) -> Floats:
        """Return the sum of weights up to each instant, ``[T]``.

        Args:
            t: instants in seconds, ``[T]``, ascending.
            below: inclusive upper bound on the values that count.
            sums: whether to sum weighted values instead of weights.
        """
        weight = self._weight * (self._value if sums else self._value <= below)
        found: Floats = np.append(0.0, np.cumsum(weight))[np.searchsorted(self.at, t, "right")]
        return found


def _counted(result: Result) -> dict[str, _Events]:
    """Return the events of counters and histograms, by the quantity they measure."""
    columns: Any = result.request_columns
    front = columns.get("frontend_s", 0.0)
    sent, began, first, over = (
        columns[name].astype(np.float64)
        for name in ("arrival_s", "first_scheduled_s", "first_token_s", "finish_s")
    )
    over = np.where(columns["status"] == "finished", over, np.nan)
    prompt, output = (columns[name].astype(np.float64) for name in ("prompt_tokens", "output_tokens"))
    one, gaps = np.ones(len(sent)), np.maximum(output - 1, 0)
    found = {
        "queried": _Events(began, prompt),
        "cached": _Events(began, columns["cached_tokens"].astype(np.float64)),
        "prompts": _Events(first, prompt),
        "outputs": _Events(over, output),
        "finished": _Events(over, one),
        "ttft": _Events(first, one, first - sent + front),
        # All gaps of a request are replaced by their mean.
        "itl": _Events(over, gaps, (over - first) / np.maximum(gaps, 1)),
        "e2e": _Events(over, one, over - sent + front),
        "queue": _Events(began, one, began - sent),
    }
    if result.steps is not None:
        rows = result.steps
        found["preemptions"] = _Events(rows["start"].to_numpy(), rows["num_preempted"].to_numpy(np.float64))
    return found


def openmetrics(result: Result) -> str:
    """Return a run as OpenMetrics text: gauges, counters and histograms at evenly spaced instants.

    Gauges and preemptions need a steps table. Output tokens count when their request finishes.

    Args:
        result: result of one engine.
    """
    sglang = result.scenario.policy == "sglang"
    model = result.scenario.model.replace("\\", "\\\\").replace('"', '\\"')
    labels = f'model_name="{model}"' if sglang else f'engine="0",model_name="{model}"'
    counted = _counted(result)
    end = max(float(each.at.max(initial=0.0)) for each in counted.values())
    t = np.arange(0.0, end + 2 * max(1.0, end / SCRAPES), max(1.0, end / SCRAPES))
    states = {} if result.steps is None else states_at(result.steps, t)
    lines: list[str] = []
    for what, (name, buckets) in (SGLANG if sglang else VLLM).items():
        if what in states:
            lines.append(f"# TYPE {name} gauge")
            lines += (f"{name}{{{labels}}} {v:.12g} {at:.12g}" for at, v in zip(t, states[what], strict=True))
        elif what in counted:
            lines.append(f"# TYPE {name} {'histogram' if buckets else 'counter'}")
            lines += _samples(name, labels, counted[what], t, buckets)
    return "\n".join([*lines, "# EOF", ""])


def _samples(name: str, labels: str, events: _Events, t: Floats, buckets: tuple[float, ...]) -> Iterator[str]:
    """Yield one line per sample: of a counter, or of a histogram's buckets, count and sum."""
    whole = events.until(t)
    if not buckets:
        for at, total in zip(t, whole, strict=True):
            yield f"{name}_total{{{labels}}} {total:.12g} {at:.12g}"
        return
    counts = [(f"{bound}", events.until(t, below=bound)) for bound in buckets] + [("+Inf", whole)]
    for row, (at, total) in enumerate(zip(t, events.until(t, sums=True), strict=True)):
        for bound, count in counts:
            yield f'{name}_bucket{{{labels},le="{bound}"}} {count[row]:.12g} {at:.12g}'
        yield f"{name}_count{{{labels}}} {whole[row]:.12g} {at:.12g}"
        yield f"{name}_sum{{{labels}}} {total:.12g} {at:.12g}"
