"""Block plans of released models beside a table that vLLM 0.33.0's own planner made, by GPU."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pagesim.errors import PagesimError
from pagesim.hardware import gpu
from pagesim.hardware.gpus import GIB
from pagesim.models import ModelSpec, from_hf_config, from_layers
from pagesim.setup.engine_config import EngineConfig
from pagesim.setup.system import System
from pagesim.sizing import plan_blocks
from pagesim.sizing.division import expert_padding

OPEN = Path(__file__).parents[3] / "shared" / "models" / "open"
GPUS = {"a100": "a100-80gb", **{f"rtx{number}": f"rtx-{number}" for number in (3090, 4090, 5090)}}
KINDS = {
    "window": "SlidingWindow",
    "chunk": "ChunkedLocal",
    "state": "Mamba",
    "full": "Full",
    "latent": "MLA",
}

EQUAL = {
    "deepseek-v3.1-nvfp4": 8,
    "ernie-4.5-21b-a3b": 8,
    "falcon-h1-7b": 4,
    "gemma-3-27b": 12,
    "glm-5": 4,
    "glm-5-nvfp4": 8,
    "gpt-oss-20b": 21,
    "granite-4.0-h-small": 8,
    "kimi-k2.5": 8,
    "kimi-k2.7-code-nvfp4": 4,
    "llama-4-maverick": 4,
    "mimo-7b": 7,
    "minimax-m2.7-nvfp4": 4,
    "mistral-small-3.2-24b": 9,
    "nemotron-3-nano-nvfp4": 8,
    "nemotron-3-ultra": 8,
    "phi-2": 4,
    "qwen2.5-vl-7b": 8,
    "qwen3-vl-2b": 4,
    "qwen3-vl-32b": 4,
    "qwen3.5-122b-a10b": 8,
    "qwen3.5-35b-a3b": 12,
    "qwen3.5-397b-a17b-nvfp4": 4,
    "qwen3.6-35b-a3b-nvfp4": 8,
}
"""Rows of a model, all of which come out. Of the others the layers are not read: Gemma 4, GLM-5.2 and 5.3,
DeepSeek V4, Kimi-Linear, MiniMax-M3, Nemotron-NAS."""


@cache
def rows() -> list[dict[str, str]]:
    with (OPEN / "truth.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@cache
def released(model: str) -> ModelSpec:
    return from_hf_config(OPEN / model / "config.json")


def planned(row: dict[str, str], listed: ModelSpec | None = None) -> dict[str, Any]:
    """Return what the table has of a plan: either the blocks, or why the engine does not start."""
    spec, on = listed or released(row["model"]), GPUS.get(row["gpu"], row["gpu"])
    kv_dtype = "fp8" if (row["kv_dtype"] or row["kv_dtype_flag"]).startswith("fp8") else "bf16"
    if not row["max_model_len"]:
        path = str(OPEN / row["model"] / "config.json")
        how: dict[str, Any] = {"policy": "vllm-v1", "model": path, "kv_cache_dtype": kv_dtype, "gpu": on}
        system = System(**how, tensor_parallel_size=int(row["tp"]))
        if not row["refusal"]:
            return {"refusal": not EngineConfig(system).block.bytes}
        with pytest.raises(PagesimError, match="Triton"):
            assert EngineConfig(system).block.bytes
        return {"refusal": True}
    plan = plan_blocks(
        spec.cache_layers,
        max_model_len=int(row["max_model_len"]),
        in_flight_tokens=2 * int(row["max_num_batched_tokens"]),
        cache_bytes=int(float(row["kv_gib"]) * GIB),
        kv_dtype=kv_dtype,
        tp=int(row["tp"]),
        capability=gpu(on).capability,
        image_prefixes=spec.image_prefixes,
    )
    groups = []
    for each in plan.groups:
        # The table has the bytes of all layers where these differ in a group, or lie side by side.
        alike = len(set(each.pages)) == 1 and row["layout"] != "BLHNC"
        kind, page = (KINDS[each.kind], each.page_bytes) if alike else ("Uniform", each.bytes)
        groups.append(f"{len(each.layers)}x{kind}/b{each.block_size}/p{page}/most{each.most_blocks}")
    found: dict[str, Any] = {
        "groups": " ".join(groups),
        "block_size": plan.block_size,
        "bytes_per_block": plan.bytes_per_block,
    }
    if not plan.starts:
        return {**found, "longest": plan.longest}
    return {
        **found,
        "num_blocks": plan.num_blocks,
        "tokens": plan.tokens,
        "max_concurrency": round(plan.concurrency, 6),
        "scheduler_block": plan.scheduler_block,
        "hash_block": plan.hash_block,
    }


def told(row: dict[str, str]) -> dict[str, Any]:
    """Return the same as the table has it."""
    if not row["max_model_len"]:
        return {"refusal": bool(row["refusal"])}
    found: dict[str, Any] = {name: int(row[name]) for name in ("block_size", "bytes_per_block")}
    found["groups"] = row["groups"]
    if row["refusal"]:
        return {**found, "longest": int(row["refusal"].split()[-1])}
    for name in ("num_blocks", "tokens", "scheduler_block", "hash_block"):
        found[name] = int(row[name])
    return {**found, "max_concurrency": float(row["max_concurrency"])}


@pytest.mark.skipif(not OPEN.is_dir(), reason="the table of released models is not there")
@pytest.mark.parametrize("model", EQUAL)
def test_every_row_of_a_model_that_is_read_comes_out(model: str) -> None:
    of_model = [row for row in rows() if row["model"] == model]
    assert len(of_model) == EQUAL[model]
    for row in of_model:
        assert planned(row) == told(row), (row["gpu"], row["tp"], row["kv_dtype_flag"], row["max_model_len"])


LISTED = {
    "gemma-4-31b": """
        layers = [{ repeat = 10, of = [
            { repeat = 5, kind = "window", kv_heads = 16, head_dim = 256, window = 1024 },
            { kind = "full", kv_heads = 4, head_dim = 512 },
        ] }]""",
    "glm-5.2-fp8": """
        heads = 64
        layers = [
            { repeat = 21, of = [{ kind = "latent", width = 576 }, { kind = "indexer", token_bytes = 132 }] },
            { repeat = 57, kind = "latent", width = 576 },
        ]""",
    "kimi-linear-48b-a3b": """
        heads = 32
        layers = [
            { repeat = 6, of = [
               { repeat = 3, kind = "state", conv = [3, 12288], state = [32, 128, 128], state_dtype = "fp32"},
                { kind = "latent", width = 576 },
            ] },
            { repeat = 2, kind = "state", conv = [3, 12288], state = [32, 128, 128], state_dtype = "fp32"},
            { kind = "latent", width = 576 },
        ]""",
}
"""Layer files of models whose config is refused with the advice to write one."""


@pytest.mark.skipif(not OPEN.is_dir(), reason="the table of released models is not there")
@pytest.mark.parametrize("model", LISTED)
def test_the_layer_file_that_a_refusal_advises_gives_the_engines_blocks(model: str, tmp_path: Path) -> None:
    with pytest.raises(PagesimError, match="list what each layer keeps in a layer file"):
        released(model)
    file = tmp_path / "model.toml"
    file.write_text(f"max_model_len = 32768\n{LISTED[model]}\n")
    on_hopper = [row for row in rows() if row["model"] == model and row["gpu"] == "h100" and not row["flags"]]
    assert len(on_hopper) == 4
    for row in on_hopper:
        assert planned(row, from_layers(file)) == told(row)


WHOLE = {"minimax-m2.7-nvfp4": 0.15, "nemotron-3-nano-nvfp4": 0.09}
"""Per cent of the weights that may be missing: routers of MiniMax M2 in 32 bits, experts on an RTX 5090."""


@pytest.mark.skipif(not OPEN.is_dir(), reason="the table of released models is not there")
@pytest.mark.parametrize("model", EQUAL)
def test_weights_on_a_gpu_are_those_that_the_engine_loads(model: str) -> None:
    for row in rows():
        if row["model"] == model and row["weights_bytes_per_gpu"] and not row["flags"]:
            spec, tp = released(model), int(row["tp"])
            ours = spec.weight_bytes_per_gpu(tp) + expert_padding(
                spec, gpu(GPUS.get(row["gpu"], row["gpu"])), tp
            )
            theirs = int(row["weights_bytes_per_gpu"])
            assert ours == pytest.approx(theirs, rel=WHOLE.get(model, 0.025) / 100), (row["gpu"], tp)
