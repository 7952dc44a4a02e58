"""Readers of servers' logs, from which costs are fitted."""

from __future__ import annotations

import json
from pathlib import Path

from target import Target

from pagesim.experiments.fit.reading import one_server
from pagesim.experiments.recorded.find import read_all

FLAGS = {"model": "llama-3.1-8b", "gpu": "h100"}
REQUESTS = 24


def made() -> list[Target]:
    """Return these."""
    return [_client(), _engine()]


def _client() -> Target:
    data = {
        "model_id": "meta-llama/Llama-3.1-8B",
        "completed": REQUESTS,
        "request_rate": "inf",
        "max_concurrency": REQUESTS,
        "duration": 1.3,
        "mean_ttft_ms": 100.0,
        "input_lens": [20] * REQUESTS,
        "output_lens": [5] * REQUESTS,
        "ttfts": [0.1] * REQUESTS,
        "itls": [[0.3] * 4] * REQUESTS,
        "errors": [""] * REQUESTS,
        "start_times": [7.0] * REQUESTS,
    }

    def load(folder: Path) -> None:
        _, loads = one_server(read_all([folder / "c.json"]), FLAGS)
        assert len(loads[0].trace())

    return Target("a client's log", {"c.json": json.dumps(data).encode()}, ("c.json",), load)


def _engine() -> Target:
    rows = [
        {
            "queued_ts": 5.0 + row,
            "first_token_ts": 5.1 + row,
            "last_token_ts": 6.0 + row,
            "input_toks": 40,
            "output_toks": 5,
        }
        for row in range(REQUESTS)
    ]
    meta = {
        "model": "meta-llama/Llama-3.1-8B",
        "vllm_version": "0.19.0",
        "dataset_path": "prompts.jsonl",
        "engine_kwargs": {"tensor_parallel_size": 1, "max_model_len": 4096},
        "kv_cache": {"num_gpu_blocks": 300, "block_size": 16, "enable_prefix_caching": True},
        "hardware": {"device_name": "NVIDIA GeForce RTX 4090"},
        "resolved_config": {"scheduler_config": {"max_num_seqs": 64, "async_scheduling": True}},
    }
    lengths = {"arrival_time_ns": 0, "input_toks": 40, "output_toks": 5}
    prompts = [{**lengths, "input_tok_ids": list(range(row, row + 40))} for row in range(REQUESTS)]
    files = {
        "requests.jsonl": "\n".join(map(json.dumps, rows)),
        "meta.json": json.dumps(meta),
        "prompts.jsonl": "\n".join(map(json.dumps, prompts)),
    }

    def load(folder: Path) -> None:
        _, loads = one_server(read_all([folder / "requests.jsonl"]), {})
        assert len(loads[0].trace())

    return Target(
        "an engine's log", {name: text.encode() for name, text in files.items()}, tuple(files), load
    )
