"""One run of four requests, in each format in which it may be recorded."""

from __future__ import annotations

import json
from typing import Any

PROMPT = [40, 60, 80, 100]
OUTPUT = [5, 3, 9, 2]
ARRIVAL_S = [0.0, 1.5, 2.0, 2.25]
TTFT_S = [0.1, 0.2, 0.15, 0.3]
GAP_S = 0.02
E2E_S = [ttft + (tokens - 1) * GAP_S for ttft, tokens in zip(TTFT_S, OUTPUT, strict=True)]
CLOCK_S = 100.0
MODEL = "meta-llama/Llama-3.1-8B"


def _lists() -> dict[str, Any]:
    return {
        "input_lens": PROMPT,
        "output_lens": OUTPUT,
        "ttfts": TTFT_S,
        "itls": [[GAP_S] * (tokens - 1) for tokens in OUTPUT],
        "errors": [""] * len(PROMPT),
    }


def vllm() -> dict[str, Any]:
    """Return what ``vllm bench serve`` saves."""
    starts = [CLOCK_S + arrival for arrival in ARRIVAL_S]
    return {"model_id": MODEL, "completed": 4, "request_rate": 2.0, **_lists(), "start_times": starts}


def sglang(clients: int) -> dict[str, Any]:
    """Return what SGLang's bench appends."""
    info = {"model_path": MODEL, "tp_size": 2, "max_running_requests": 64, "chunked_prefill_size": 8192}
    return {
        "backend": "sglang",
        "request_rate": "inf",
        "max_concurrency": clients,
        "server_info": info,
        "completed": 4,
        "mean_e2e_latency_ms": 1e3 * sum(E2E_S) / 4,
        **_lists(),
    }


def _times(row: int) -> list[float]:
    return [CLOCK_S + ARRIVAL_S[row] + TTFT_S[row] + GAP_S * token for token in range(OUTPUT[row])]


def guidellm() -> dict[str, Any]:
    """Return GuideLLM's report of one benchmark."""
    rows = [
        {
            "prompt_tokens": PROMPT[row],
            "output_tokens": OUTPUT[row],
            "info": {
                "timings": {
                    "request_start": CLOCK_S + ARRIVAL_S[row],
                    "first_token_iteration": _times(row)[0],
                    "last_token_iteration": _times(row)[-1],
                }
            },
        }
        for row in range(4)
    ]
    requests = {"successful": rows, "incomplete": [], "errored": []}
    strategy = {"type_": "poisson", "rate": 2.0}
    return {"metadata": {}, "benchmarks": [{"config": {"strategy": strategy}, "requests": requests}]}


def inference_perf() -> list[dict[str, Any]]:
    """Return inference-perf's requests."""
    return [
        {
            "start_time": CLOCK_S + ARRIVAL_S[row],
            "end_time": _times(row)[-1] + 0.001,
            "info": {
                "request_metrics": {"text": {"input_tokens": PROMPT[row]}},
                "response_metrics": {"output_tokens": OUTPUT[row], "output_token_times": _times(row)},
                "input_tokens": PROMPT[row],
            },
            "error": None,
        }
        for row in range(4)
    ]


def llmservingsim() -> str:
    """Return an engine's own log."""
    return "\n".join(
        json.dumps(
            {
                "queued_ts": CLOCK_S + ARRIVAL_S[row],
                "first_token_ts": _times(row)[0],
                "last_token_ts": _times(row)[-1],
                "input_toks": PROMPT[row],
                "output_toks": OUTPUT[row],
            }
        )
        for row in range(4)
    )


def sampled(metrics: dict[str, tuple[float, list[float]]]) -> dict[str, Any]:
    """Return what AIPerf exports of a server's metrics: by name the total or mean, and means of 2 s each."""

    def slices(means: list[float]) -> list[dict[str, float]]:
        starts = [10**9 * (100 + 2 * row) for row in range(len(means))]
        return [
            {"start_ns": at, "end_ns": at + 2 * 10**9, "avg": mean}
            for at, mean in zip(starts, means, strict=True)
        ]

    return {
        "metrics": {
            name: {"series": [{"labels": None, "stats": {"avg": value}, "timeslices": slices(means)}]}
            for name, (value, means) in metrics.items()
        }
    }


TABLE = """model,system,dtype,release,isl,osl,concurrency,tp,ep,ttft_ms,tpot_ms,note
Qwen/Qwen3-32B,h100_sxm,bf16,0.12.0,1000,100,4,2,1,250,12.5,
meta-llama/Llama-3.1-70B,h100_sxm,fp8,0.10.2,1000,100,4,2,1,250,12.5,fp8 KV
"""

LOG = (
    "INFO 11-20 23:19:30 [utils.py:233] non-default args: {'model': 'meta-llama/Llama-3.1-8B', "
    "'max_num_seqs': 64, 'moe_backend': 'triton', 'port': 8001}\n"
    "INFO 11-20 23:19:31 [scheduler.py:238] Chunked prefill is enabled with max_num_batched_tokens=2048.\n"
    "INFO 11-20 23:19:31 [vllm.py:799] Asynchronous scheduling is enabled.\n"
    "(EngineCore pid=99) INFO 11-20 23:19:39 [core.py:105] Initializing a V1 LLM engine (v0.19.0) "
    "with config: model='meta-llama/Llama-3.1-8B', max_seq_len=32768, tensor_parallel_size=1, "
    "enable_prefix_caching=True\n"
    "(EngineCore pid=99) INFO 11-20 23:19:59 [kv_cache_utils.py:1316] GPU KV cache size: 41,408 tokens\n"
)

METRICS = """# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="meta-llama/Llama-3.1-8B"} 12.0
vllm:cache_config_info{block_size="16",enable_prefix_caching="True",num_gpu_blocks="2588"} 1.0
"""
