"""Block plans of released models beside a table that vLLM 0.33.0's own planner made, by GPU."""

from __future__ import annotations

import csv
from dataclasses import replace
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

MODELS = sorted(path.name for path in OPEN.iterdir() if path.is_dir()) if OPEN.is_dir() else []
UNLISTED = "minimax-m3-nvfp4"
"""Of this model the table leaves out the list of which layers have which dtype: its weights are estimated."""


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
def test_the_table_has_every_row() -> None:
    assert (len(rows()), len({row["model"] for row in rows()})) == (274, 34)


@pytest.mark.skipif(not OPEN.is_dir(), reason="the table of released models is not there")
@pytest.mark.parametrize("model", MODELS)
def test_every_row_of_a_model_comes_out(model: str) -> None:
    for row in [row for row in rows() if row["model"] == model]:
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
"""Layer files of models, as one would write them where a config is refused."""


@pytest.mark.skipif(not OPEN.is_dir(), reason="the table of released models is not there")
@pytest.mark.parametrize("model", LISTED)
def test_a_layer_file_gives_the_engines_blocks(model: str, tmp_path: Path) -> None:
    file = tmp_path / "model.toml"
    file.write_text(f"max_model_len = 32768\n{LISTED[model]}\n")
    on_hopper = [row for row in rows() if row["model"] == model and row["gpu"] == "h100" and not row["flags"]]
    assert len(on_hopper) == 4
    for row in on_hopper:
        assert planned(row, from_layers(file)) == told(row)


@pytest.mark.skipif(not OPEN.is_dir(), reason="the table of released models is not there")
@pytest.mark.parametrize("model", MODELS)
def test_parameters_are_those_of_the_engines_classes(model: str) -> None:
    for row in rows():
        if row["model"] == model and row["total_params"]:
            spec = released(model)
            padding = -spec.vocab % 64 * spec.hidden * (1 if spec.tied else 2)
            assert spec.parameters + padding == int(row["total_params"])
            assert spec.active_parameters + padding == int(row["active_params"])
            assert spec.weights_are == ("estimated" if model == UNLISTED else "exact")


@pytest.mark.skipif(not OPEN.is_dir(), reason="the table of released models is not there")
@pytest.mark.parametrize("model", [name for name in MODELS if name != UNLISTED])
def test_weights_on_a_gpu_are_those_that_the_engine_loads_to_the_byte(model: str) -> None:
    for row in rows():
        if row["model"] == model and row["weights_bytes_per_gpu"]:
            spec, tp = released(model), int(row["tp"])
            if row["flags"]:  # which all keep the tower from being made
                spec = replace(spec, tower=0, tower_whole=0)
            on = gpu(GPUS.get(row["gpu"], row["gpu"]))
            ours = spec.weight_bytes_per_gpu(tp) + expert_padding(spec, on, tp, range(spec.layers))
            assert ours == int(row["weights_bytes_per_gpu"]), (row["gpu"], tp)
