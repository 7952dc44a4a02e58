"""Reads what a server says about itself: its log, a dump of ``/metrics``, or AIPerf's samples of them.

Sources: aiperf 0.13.0, docs/server-metrics; SGLang, observability/metrics_collector.py; vLLM,
v1/core/kv_cache_utils.py, v1/engine/core.py, v1/metrics/loggers.py, entrypoints/utils.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pagesim.errors import PagesimError, brief
from pagesim.experiments.recorded.layout import Amount, FileLayout, Nanoseconds, number, parsed, table
from pagesim.experiments.recorded.recording import Series

_SAMPLE = re.compile(r"^((?:vllm|sglang):[a-z_]+)(?:\{(.*)\})?\s+(\S+)\s*$")
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')
PREEMPTIONS = ("vllm:num_preemptions", "sglang:num_retracted_requests")
"""Counters of preempted requests; the text format appends ``_total``."""

IN_LABELS = {"block_size": "block_size", "num_gpu_blocks": "num_blocks"}
OVER_TIME = (
    ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"),
    ("sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:token_usage"),
)
"""Gauges of running requests, waiting requests and the KV cache's used share, one tuple per engine."""

_RELEASE = re.compile(r"(?:LLM engine \(v|API server version |vLLM version )(\d+\.\d+(?:\.\d+)?)")
_IN_LOG = {
    "num_kv_tokens": re.compile(r"GPU KV cache size: ([\d,]+) tokens"),
    "num_blocks": re.compile(r"# (?:GPU|CUDA) blocks: ([\d,]+)"),
    "max_num_batched_tokens": re.compile(r"enabled with max_num_batched_tokens=(\d+)"),
    "tensor_parallel_size": re.compile(r"\btensor_parallel_size=(\d+)"),
    "max_model_len": re.compile(r"\bmax_seq_len=(\d+)"),
    "model": re.compile(r"with config: model='([^']+)'"),
    "enable_prefix_caching": re.compile(r"\benable_prefix_caching=(True|False)"),
}
_ARGUMENTS = re.compile(r"non-default args: (\{.*\})")
_OPTIONS = (
    *(
        "model",
        "tensor_parallel_size",
        "data_parallel_size",
        "enable_expert_parallel",
        "moe_backend",
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
        "block_size",
    ),
    *("enable_prefix_caching", "gpu_memory_utilization", "async_scheduling", "enable_chunked_prefill"),
)
BLOCK_SIZE = 16
"""vLLM's block size if its log names no other."""


class ServerFacts(NamedTuple):
    """What a server says about itself.

    Attributes:
        options: options of a system.
        preemptions: number of preemptions; None if not counted.
        series: state over time; None if not recorded.
    """

    options: Mapping[str, Any]
    preemptions: int | None = None
    series: Series | None = None


class MetricSample(NamedTuple):
    """A metric's value; for AIPerf's samples, its increase or mean, and also its means by time slice."""

    metric: str
    labels: Mapping[str, Any]
    value: Any
    slices: Sequence[Any] = ()


class _Slice(FileLayout):
    start_ns: Nanoseconds
    end_ns: Nanoseconds
    avg: Amount


def samples_of(text: str) -> list[MetricSample]:
    """Return the samples of a dump of ``/metrics``."""
    found = filter(None, map(_SAMPLE.match, text.splitlines()))
    return [MetricSample(each[1], dict(_LABEL.findall(each[2] or "")), each[3]) for each in found]


def sampled(data: object) -> list[MetricSample]:
    """Return the samples of AIPerf's ``server_metrics_export.json``."""
    found = []
    for metric, of in table(table(data).get("metrics")).items():
        series = table(of).get("series")
        for each in map(table, series if isinstance(series, list) else ()):
            stats, slices = table(each.get("stats")), each.get("timeslices")
            value = stats.get("total", stats.get("avg", 0))
            means = slices if isinstance(slices, list) else ()
            found.append(MetricSample(metric, table(each.get("labels")), value, means))
    return found


def metrics(name: str, samples: Sequence[MetricSample]) -> ServerFacts:
    """Return what a server's metrics say.

    Raises:
        PagesimError: a value is not a number.
    """
    options: dict[str, Any] = {}
    preempted: float | None = None
    slices: dict[str, list[_Slice]] = {}
    for metric, labels, value, means in samples:
        if "model_name" in labels:
            options.setdefault("model", labels["model_name"])
        if metric.removesuffix("_total") in PREEMPTIONS:
            preempted = (preempted or 0) + _number(name, metric, value)
        if metric.startswith("sglang:"):
            options["policy"] = "sglang"
        if metric == "sglang:max_total_num_tokens":
            options["max_total_tokens"] = int(_number(name, metric, value))
        if metric == "vllm:cache_config_info":
            for label, option in IN_LABELS.items():
                if labels.get(label, "None") not in ("None", "null", ""):
                    options[option] = int(_number(name, label, labels[label]))
            if labels.get("enable_prefix_caching") in ("True", "False"):
                options["enable_prefix_caching"] = labels["enable_prefix_caching"] == "True"
        if means:
            slices[metric] = [parsed(_Slice, f"{name}: {metric}", each) for each in means]
    return ServerFacts(options, None if preempted is None else int(preempted), _series(slices))


def _series(slices: Mapping[str, Sequence[_Slice]]) -> Series | None:
    """Return the state over time, at the centre of each slice; None if slices are incomplete."""
    for gauges in OVER_TIME:
        found = [slices.get(gauge, ()) for gauge in gauges]
        if found[0] and len(set(map(len, found))) == 1:
            starts, ends = (
                np.array([getattr(each, end) for each in found[0]]) for end in ("start_ns", "end_ns")
            )
            values = (np.array([each.avg for each in of]) for of in found)
            return Series((starts + ends) / 2 - starts[0], *values)
    return None


def log(name: str, text: str) -> ServerFacts | None:
    """Return what a server's log says, with start-up flags taking precedence; None if it is not a log.

    Args:
        name: name of the file.
        text: contents of the log.

    Raises:
        PagesimError: a value is not a number.
    """
    options: dict[str, Any] = {}
    for option, pattern in _IN_LOG.items():
        if (found := pattern.search(text)) is not None:
            value = found[1]
            if option == "enable_prefix_caching":
                options[option] = value == "True"
            else:
                options[option] = (
                    value if option == "model" else int(_number(name, option, value.replace(",", "")))
                )
    if (release := _RELEASE.search(text)) is not None:
        options["vllm_version"] = release[1]
    if "Asynchronous scheduling is enabled" in text:
        options["async_scheduling"] = True
    options |= {key: value for key, value in _arguments(text).items() if key in _OPTIONS}
    tokens = options.pop("num_kv_tokens", None)
    if tokens is not None and "num_blocks" not in options:
        options["num_blocks"] = tokens // options.get("block_size", BLOCK_SIZE)
    return ServerFacts(options) if options else None


def _arguments(text: str) -> Mapping[str, Any]:
    """Return the flags that, according to its log, a server was started with."""
    found = _ARGUMENTS.search(text)
    try:
        value = {} if found is None or len(found[1]) > 1 << 16 else ast.literal_eval(found[1])
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return {}
    return value if isinstance(value, dict) else {}


def _number(name: str, what: str, value: object) -> float:
    try:
        return number(0, 1e12, cell=True)(value)
    except ValueError as error:
        raise PagesimError(f"{name}: {what} is {brief(value)}; {error}") from None
