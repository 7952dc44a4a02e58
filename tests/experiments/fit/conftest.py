"""Servers whose coefficients are known: logs of them, with noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pagesim.costs import CostModel, Target, parse_cost
from pagesim.experiments.fit.iterations import replay
from pagesim.experiments.recorded.recording import RecordedRun
from pagesim.hardware import gpu
from pagesim.models import model
from pagesim.setup.engine_config import EngineConfig
from pagesim.setup.system import System

SYSTEM = System(
    policy="vllm-v1",
    vllm_version="0.19.0",
    model="llama-3.1-8b",
    gpu="h100",
    max_num_seqs=256,
    max_num_batched_tokens=8192,
)

STEP_S, TOKEN_S, CONTEXT_S = 7e-3, 5e-5, 2e-8
AFFINE = f"affine:{STEP_S},{TOKEN_S},{CONTEXT_S}"


def cost_of(text: str, system: System = SYSTEM) -> CostModel:
    """Return a cost model for the system."""
    return parse_cost(
        text,
        Target(
            model=model(system.model),
            gpu=gpu(system.gpu),
            tp=1,
            block_size=16,
            kv_dtype=EngineConfig(system).kv_dtype,
        ),
    )


Served = Callable[..., RecordedRun]


def served(
    concurrency: int | None,
    cost: CostModel,
    *,
    system: System = SYSTEM,
    requests: int = 300,
    noise: float = 0.03,
    seed: int = 0,
    rate: float = 4.0,
    front_end_s: float = 0.0,
    lengths: tuple[int, int] | None = None,
) -> RecordedRun:
    """Return what clients of a simulated server measured: two times a request, a normal error on each."""
    draw = np.random.default_rng((seed, concurrency or 0))
    prompt = np.clip(draw.lognormal(6, 1, requests), 16, 4000).astype(np.int64)
    output = np.clip(draw.lognormal(5.2, 0.7, requests), 16, 1500).astype(np.int64)
    if lengths is not None:
        prompt, output = (np.full(requests, each) for each in lengths)
    arrival = np.zeros(requests) if concurrency else np.cumsum(draw.exponential(1 / rate, requests))
    name = f"{concurrency} at once" if concurrency else f"{rate:g}/s"
    nothing = np.zeros(requests)
    asked = RecordedRun(name, arrival, prompt, output, nothing, nothing, max_concurrency=concurrency)
    run = replay(asked, system, cost)
    arrival, began, ended = (run.at(event) for event in ("arrival", "first_token", "finish"))
    sent, ttft, decode = arrival / 1e12, (began - arrival) / 1e12, (ended - began) / 1e12
    first = front_end_s + ttft * (1 + noise * draw.standard_normal(requests))
    last = first + decode * (1 + noise * draw.standard_normal(requests))
    return replace(asked, arrival_s=sent, ttft_s=first, e2e_s=last)


@pytest.fixture(scope="session")
def affine_loads() -> list[RecordedRun]:
    """Return logs of an affine server at three concurrencies."""
    return [served(concurrency, cost_of(AFFINE)) for concurrency in (4, 16, 48)]


def bench_json(load: RecordedRun, *, noise: float = 0.0, seed: int = 0) -> dict[str, Any]:
    """Return a load as ``vllm bench serve --save-detailed`` writes it, with an error on each gap."""
    draw = np.random.default_rng(seed)
    gaps = []
    for seconds, tokens in zip(load.last_s - load.first_s, load.output_tokens.tolist(), strict=True):
        off = noise * draw.standard_normal(tokens - 1)
        gaps.append((seconds / max(1, tokens - 1) * (1 + off)).tolist())
    decode = np.array([sum(each) for each in gaps])
    several = load.output_tokens > 1
    return {
        "model_id": "meta-llama/Llama-3.1-8B-Instruct",
        "num_prompts": len(load),
        "request_rate": "inf" if load.max_concurrency else 4.0,
        "max_concurrency": load.max_concurrency,
        "completed": len(load),
        "duration": float((load.first_s + decode).max()),
        "mean_ttft_ms": float(1e3 * load.ttft_s.mean()),
        "mean_tpot_ms": float(1e3 * (decode / np.maximum(1, load.output_tokens - 1))[several].mean()),
        "input_lens": load.prompt_tokens.tolist(),
        "output_lens": load.output_tokens.tolist(),
        "start_times": (1000.5 + load.arrival_s).tolist(),
        "ttfts": load.ttft_s.tolist(),
        "itls": gaps,
        "errors": [""] * len(load),
    }
