"""The block plan of a system: which options take part in it, and what is in no log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pagesim as ps
from pagesim.api import run
from pagesim.errors import CapacityError, PagesimError
from pagesim.experiments.plan import Plan, plan
from pagesim.hardware import gpu
from pagesim.models import model
from pagesim.setup.block_plans import block_plan, check_serve_line
from pagesim.setup.engine_config import EngineConfig
from pagesim.setup.prepare import prepare
from pagesim.setup.serve import read_serve
from pagesim.setup.system import System, checked
from pagesim.sizing import BlockPlan, capacity, paged_block

LAYOUTS = Path(__file__).parents[1] / "golden" / "layouts"
ONE = ps.Trace(np.zeros(1), np.array([20]), np.array([5]))

WEIGHTS = """max_model_len = 8192
hidden = 256
ffn = 688
vocab = 1024
heads = 4
layers = [
    { repeat = 4, of = [
        { repeat = 3, kind = "window", kv_heads = 2, head_dim = 64, window = 512 },
        { kind = "full", kv_heads = 2, head_dim = 64 },
    ] },
]
"""
"""A model with windows of which the weights are known, too."""


def system(name: str, **options: Any) -> System:
    return System(policy="vllm-v1", model=str(LAYOUTS / f"{name}.toml"), gpu="h100", **options)


def planned(name: str, **options: Any) -> BlockPlan:
    of = system(name, **options)
    return block_plan(EngineConfig(of)).holding(10_000)


@pytest.mark.parametrize(
    ("options", "in_flight"),
    [
        ({}, 2 * 8192),
        ({"async_scheduling": False}, 8192),
        ({"max_num_batched_tokens": 2048}, 2 * 2048),
        ({"max_num_batched_tokens": 2048, "async_scheduling": False}, 2048),
    ],
)
def test_an_iteration_in_flight_is_one_or_two_and_as_large_as_the_server_lets_it_be(options, in_flight):
    window, *_ = planned("gemma3-27b", max_model_len=131072, **options).groups
    assert window.most_blocks == -(-(1023 + in_flight) // 16) + 1


def test_prefix_caching_says_how_states_are_kept():
    assert planned("qwen3-next-80b").state_mode == "align"
    assert planned("qwen3-next-80b", enable_prefix_caching=False).state_mode == "none"


def test_the_hybrid_manager_is_on_unless_it_is_asked_to_be_off():
    def kinds(name: str, off: bool | None) -> set[str]:
        return {group.kind for group in planned(name, disable_hybrid_kv_cache_manager=off).groups}

    assert kinds("gpt-oss-20b", None) == kinds("gpt-oss-20b", False) == {"window", "full"}
    assert kinds("gpt-oss-20b", True) == {"full"}
    assert kinds("llama4-scout", None) == kinds("llama4-scout", False) == {"chunk", "full"}
    assert kinds("llama4-scout", True) == {"full"}


def test_gpus_block_size_and_type_of_the_cache_take_part():
    assert planned("gpt-oss-20b", tensor_parallel_size=2).bytes_per_block == 196_608
    assert planned("gpt-oss-20b", kv_cache_dtype="fp8").bytes_per_block == 196_608
    assert planned("gpt-oss-20b", block_size=32).bytes_per_block == 786_432
    assert planned("deepseek-v3", kv_cache_dtype="fp8").block_size == 64


@pytest.mark.parametrize("version", ["0.11.2", "0.19.0"])
def test_an_older_release_is_planned_where_all_layers_keep_every_token_alike_and_else_refused(version):
    older = {"vllm_version": version, "max_model_len": 2048}
    assert planned("llama3.1-8b", **older).bytes_per_block == 2_097_152
    assert planned("deepseek-v3", **older).block_size == 16
    for name in ("gemma3-27b", "mistral-7b-v0.1", "deepseek-v3.2"):
        with pytest.raises(
            PagesimError, match=f"blocks that vLLM {version} makes of them are in no log of its"
        ):
            planned(name, **older)


def test_the_gpu_decides_what_a_block_is_and_one_without_a_capability_is_noted(monkeypatch):
    def on(name: str) -> System:
        return system("qwen3-next-80b", tensor_parallel_size=2).model_copy(update={"gpu": name})

    def states(of: System) -> int:
        return plan(of, cache_bytes=20 << 30).blocks.groups[0].most_blocks

    assert (states(on("h200")), states(on("a100-80gb"))) == (3, 2)
    unnamed = replace(gpu("a100-80gb"), capability=None)
    monkeypatch.setattr("pagesim.setup.engine_config.gpu", lambda name: unnamed)
    noted = "gpu a100-80gb has no compute capability"
    assert states(on("a100-80gb")) == 3
    assert any(noted in note for note in plan(on("a100-80gb"), cache_bytes=20 << 30).notes)
    memory = {"num_blocks": 2000, "cost": "affine:0.01,0,0"}
    assert any(noted in note for note in run(on("a100-80gb").model_copy(update=memory), ONE).notes)
    nowhere = System(policy="vllm-v1", model=on("h200").model, **memory)
    assert any("no gpu is named, by which vLLM" in note for note in run(nowhere, ONE).notes)
    assert EngineConfig(nowhere).block.bytes == 14_155_776  # as on an H100
    plain = system("llama3.1-8b").model_copy(update={"gpu": "a100-80gb"})
    assert not any(noted in note for note in plan(plain, cache_bytes=20 << 30).notes)


def test_a_retention_interval_is_a_multiple_of_a_block_and_for_windows_and_states():
    for interval in (None, -1, 0, 576, 5760):
        planned("qwen3-next-80b", prefix_cache_retention_interval=interval)
    with pytest.raises(
        PagesimError, match="interval is 100; it must be a multiple of the 576 tokens of a block"
    ):
        planned("qwen3-next-80b", prefix_cache_retention_interval=100)
    planned("llama3.1-8b", prefix_cache_retention_interval=-1)
    with pytest.raises(
        PagesimError, match="is 16, and is for layers with a window or a state; there are none"
    ):
        planned("llama3.1-8b", prefix_cache_retention_interval=16)
    with pytest.raises(PagesimError, match="prefix_cache_retention_interval"):
        planned("qwen3-next-80b", prefix_cache_retention_interval=-2)
    with pytest.raises(PagesimError, match=r"is no option of vLLM 0\.19\.0; leave it out"):
        planned("llama3.1-8b", vllm_version="0.19.0", prefix_cache_retention_interval=0)


def test_a_run_has_the_blocks_of_the_plan_without_the_null_block(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(WEIGHTS)
    of = System(policy="vllm-v1", model=str(file), gpu="l4")
    sized, found = prepare(of, ONE).config.capacity, plan(of)
    assert sized.num_blocks == found.sized.num_blocks - 1
    assert sized.block_bytes == found.blocks.bytes_per_block == 4 * 16 * 2 * 2 * 64 * 2
    assert found.memory == gpu("l4").memory_bytes


def test_a_state_has_no_place_where_a_token_is_a_number_of_bytes():
    with pytest.raises(
        PagesimError, match="keep a state, which is no number of bytes a token; choose policy"
    ):
        capacity(model(str(LAYOUTS / "jamba-1.5-mini.toml")), gpu("h100"), num_blocks=100)


def test_memory_that_is_mapped_in_pages_is_for_layers_that_keep_every_token_alike():
    with pytest.raises(
        PagesimError, match="layers of gemma3-27b differ in what they keep; memory that is mapped"
    ):
        paged_block(model(str(LAYOUTS / "gemma3-27b.toml")), 1 << 21)


def test_an_override_of_the_blocks_takes_part_in_a_plan_and_one_too_small_is_refused():
    def overridden(num_blocks: int | None, **options: Any) -> Plan:
        of = System(policy="vllm-v1", model="llama-3.1-8b", gpu="h100", num_blocks=num_blocks)
        return plan(of.model_copy(update={"max_model_len": 8192, **options}))

    # 600 blocks of 16 tokens, of which a request of 8,192 takes 512.
    assert (overridden(600).tokens, overridden(600).at_once) == (9600, 1)
    assert overridden(600).concurrency == 600 / 512 < overridden(None).concurrency
    with pytest.raises(
        CapacityError,
        match=r"at most 1584 in the 100 KV blocks .* at most 1584, or raise num_blocks \(num_gpu_",
    ) as refused:
        overridden(100)
    assert str(refused.value).endswith("to at least 513")
    assert overridden(513).tokens == 513 * 16
    assert overridden(100, max_model_len=1584).tokens == 1600


def served(line: str) -> tuple[System, bool]:
    read = read_serve(line)
    return checked(System, read.merged_with({"gpu": "h200"})), read.full_graphs


@pytest.mark.parametrize(
    ("name", "size", "step"),
    [
        # as the selectors of 0.33.0 refuse and take it
        ("qwen3-8b", 24, 16),
        ("deepseek-v3.2", 16, 64),
        ("deepseek-v4-flash", 64, 256),
        ("deepseek-v3", 16, 0),
        ("glm-5-fp8", 128, 0),
        ("glm-5.3-flash", 64, 0),
    ],
)
def test_a_served_block_is_a_multiple_of_what_kernels_take(name, size, step):
    line = f"vllm serve {name} -tp 8 --max-model-len 4096 --kv-cache-memory-bytes 20G --block-size {size}"
    of, graphs = served(line)
    if not step:
        check_serve_line(EngineConfig(of), full_graphs=graphs)
        return
    with pytest.raises(PagesimError, match=f"block_size is {size}; .* take multiples of {step}: choose one"):
        check_serve_line(EngineConfig(of), full_graphs=graphs)


def test_a_run_with_an_override_too_small_for_a_longest_request_says_that_the_engine_does_not_start():
    def notes(num_blocks: int) -> str:
        of = System(policy="vllm-v1", model="llama-3.1-8b", max_model_len=8192, num_blocks=num_blocks)
        return "\n".join(run(of.model_copy(update={"cost": "affine:0.01,0,0"}), ONE).notes)

    assert "vLLM does not start so: max_model_len is 8192 tokens, but a request" in notes(512)
    assert "does not start" not in notes(513)


def test_beside_states_no_more_sequences_start_than_there_are_blocks():
    """vLLM 0.33.0: "max_num_seqs (1024) exceeds available Mamba cache blocks (876)"."""
    of = system("qwen3-next-80b", max_model_len=32768)
    memory = {"cache_bytes": 876 * 14_155_776}
    with pytest.raises(
        CapacityError,
        match=r"max_num_seqs is 1024, more than the 876 KV .* at most 876, or give --enforce-eag",
    ):
        plan(of, **memory)
    assert plan(of.model_copy(update={"max_num_seqs": 876}), **memory).blocks.num_blocks == 876
    assert plan(of, **memory, enforce_eager=True).settled["max_num_seqs"] == 1024
    assert plan(of, **memory, full_graphs=False).blocks.num_blocks == 876
    assert plan(of.model_copy(update={"max_cudagraph_capture_size": 0}), **memory)
    # It is for recurrent states alone.
    assert (
        plan(system("gemma3-27b", max_model_len=1024), cache_bytes=876 * 1_310_720).blocks.num_blocks == 876
    )
    given = of.model_copy(update={"num_blocks": 876, "cost": "affine:0.01,0,0"})
    assert any("lower max_num_seqs to at most 876" in note for note in run(given, ONE).notes)


@pytest.mark.parametrize(
    ("name", "on", "what"),
    [
        ("gpt-oss-20b", "a100-80gb", "attention sinks"),  # the planner of 0.33.0 refuses it so
        ("gemma3-27b", "rtx-3090", "images that are attended to both ways"),
        ("deepseek-v3", "a100-80gb", "latent vectors"),
        ("opt-2.7b", "a10g", "heads of 80"),
    ],
)
def test_before_ada_fp8_is_refused_where_layers_need_triton_and_bf16_is_what_helps(name, on, what):
    of = System(policy="vllm-v1", model=name, gpu=on, max_model_len=2048, kv_cache_dtype="fp8")
    said = rf"kv_cache_dtype is fp8, and {on} has compute capability 8\.[06]; {name} has {what}, .*bf16"
    with pytest.raises(PagesimError, match=said):
        assert EngineConfig(of).block.bytes
    assert EngineConfig(of.model_copy(update={"kv_cache_dtype": "bf16"})).block.bytes
    for newer in ("l40s", "h100", "b200", "mi300x"):
        assert EngineConfig(of.model_copy(update={"gpu": newer})).block.bytes


@pytest.mark.parametrize(
    ("name", "on", "what"),
    [
        # as the selectors of 0.33.0 refuse and take it
        ("gemma3-27b", "b200", "images that are attended to both ways"),
        ("gemma-4-26b-a4b", "a100-80gb", "images that are attended to both ways"),
        ("gpt-oss-20b", "h200", "attention sinks"),
        ("gpt-oss-20b", "b200", ""),
        ("qwen3-8b", "a100-80gb", ""),
        ("qwen3.5-27b", "h200", ""),
    ],
)
def test_nvfp4_is_refused_where_flashinfer_does_not_compute_the_layers(name, on, what):
    of = System(policy="vllm-v1", model=name, gpu=on, max_model_len=2048, kv_cache_dtype="nvfp4")
    of = of.model_copy(update={"tensor_parallel_size": 2})
    if not what:
        assert EngineConfig(of).block.bytes
        return
    with pytest.raises(
        PagesimError, match=f"nvfp4, which FlashInfer's kernels alone take; {name} has {what}"
    ):
        assert EngineConfig(of).block.bytes


def test_before_ada_fp8_is_taken_where_flashinfer_has_a_kernel():
    for name in ("qwen3-next-80b", "llama-3.1-8b", "qwen3-8b", "llama4-scout"):
        of = System(policy="vllm-v1", model=name, gpu="a100-80gb", kv_cache_dtype="fp8")
        assert EngineConfig(of).block.bytes
    of = of.model_copy(update={"kv_cache_dtype": "fp8_per_token_head"})
    with pytest.raises(PagesimError, match="a scale of each token and head, for which vLLM has Triton"):
        assert EngineConfig(of).block.bytes
    assert EngineConfig(of.model_copy(update={"kv_cache_dtype": "int8_per_token_head"})).block.bytes
