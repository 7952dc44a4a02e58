"""Reads what a server says of itself: its log, and a dump of ``/metrics`` in Prometheus's text format.

Sources: vLLM, v1/core/kv_cache_utils.py, v1/engine/core.py, v1/metrics/loggers.py, entrypoints/utils.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from pagesim.errors import PagesimError

_SAMPLE = re.compile(r"^(vllm:[a-z_]+)(?:\{(.*)\})?\s+(\S+)\s*$")
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')
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
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
        "block_size",
    ),
    *("enable_prefix_caching", "gpu_memory_utilization", "async_scheduling", "enable_chunked_prefill"),
)
BLOCK_SIZE = 16
"""Of vLLM where its log names no other."""


class ServerFacts(NamedTuple):
    """What a server says of itself.

    Attributes:
        options: of a system.
        preemptions: how many it counted; None where it did not.
    """

    options: Mapping[str, Any]
    preemptions: int | None = None


def is_metrics(text: str) -> bool:
    """Return whether a text is a dump of vLLM's metrics."""
    return any(_SAMPLE.match(line) for line in text.splitlines())


def is_log(text: str) -> bool:
    """Return whether a text is vLLM's log."""
    return bool(_RELEASE.search(text) or any(pattern.search(text) for pattern in _IN_LOG.values()))


def metrics(name: str, text: str) -> ServerFacts:
    """Return what a dump of ``/metrics`` says.

    Args:
        name: of the file.
        text: the dump.

    Raises:
        PagesimError: a value is no number.
    """
    options: dict[str, Any] = {}
    preempted: float | None = None
    for found in filter(None, map(_SAMPLE.match, text.splitlines())):
        metric, labels = found[1], dict(_LABEL.findall(found[2] or ""))
        if "model_name" in labels:
            options.setdefault("model", labels["model_name"])
        if metric == "vllm:num_preemptions_total":
            preempted = (preempted or 0) + _number(name, metric, found[3])
        if metric == "vllm:cache_config_info":
            for label, option in (("block_size", "block_size"), ("num_gpu_blocks", "num_blocks")):
                if labels.get(label, "None") not in ("None", "null", ""):
                    options[option] = int(_number(name, label, labels[label]))
            if labels.get("enable_prefix_caching") in ("True", "False"):
                options["enable_prefix_caching"] = labels["enable_prefix_caching"] == "True"
    return ServerFacts(options, None if preempted is None else int(preempted))


def log(name: str, text: str) -> ServerFacts:
    """Return what a server's log says; flags it was started with count before what it printed of them.

    Args:
        name: of the file.
        text: the log.

    Raises:
        PagesimError: a value is no number.
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
    return ServerFacts(options)


def _arguments(text: str) -> Mapping[str, Any]:
    """Return the flags that a server says it was started with."""
    found = _ARGUMENTS.search(text)
    try:
        value = {} if found is None or len(found[1]) > 1 << 16 else ast.literal_eval(found[1])
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return {}
    return value if isinstance(value, dict) else {}


def _number(name: str, what: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1e12:
        raise PagesimError(f"{name}: {what} is {text[:40]!r}; a number from 0 to 1e+12 is needed")
    return value
