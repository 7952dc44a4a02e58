"""Reads what a server says about itself: its log, or a dump of ``/metrics``.

Sources: SGLang, observability/metrics_collector.py; vLLM, v1/core/kv_cache_utils.py, v1/engine/core.py,
v1/metrics/loggers.py, entrypoints/utils.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pagesim.errors import PagesimError, brief
from pagesim.experiments.recorded.layout import number

_SAMPLE = re.compile(r"^((?:vllm|sglang):[a-z_]+)(?:\{(.*)\})?\s+(\S+)\s*$")
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')
PREEMPTIONS = ("vllm:num_preemptions", "sglang:num_retracted_requests")
"""Counters of preempted requests; ``_total`` is appended to their names."""

IN_LABELS = {"block_size": "block_size", "num_gpu_blocks": "num_blocks"}

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
    """

    options: Mapping[str, Any]
    preemptions: int | None = None


class MetricSample(NamedTuple):
    """A metric's value."""

    metric: str
    labels: Mapping[str, Any]
    value: Any


def samples_of(text: str) -> list[MetricSample]:
    """Return the samples of a dump of ``/metrics``; none if the text is something else."""
    found = filter(None, map(_SAMPLE.match, text.splitlines()))
    return [MetricSample(each[1], dict(_LABEL.findall(each[2] or "")), each[3]) for each in found]


def metrics(name: str, samples: Sequence[MetricSample]) -> ServerFacts:
    """Return what a server's metrics say.

    Raises:
        PagesimError: a value is not a number.
    """
    options: dict[str, Any] = {}
    preempted: float | None = None
    for metric, labels, value in samples:
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
    return ServerFacts(options, None if preempted is None else int(preempted))


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
