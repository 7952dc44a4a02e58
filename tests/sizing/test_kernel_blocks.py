"""What a GPU's kernels make of blocks: what the planner of vLLM 0.33.0 says on GPUs of each class."""

from __future__ import annotations

import pytest

from pagesim.errors import PagesimError
from pagesim.hardware import gpu, gpus
from pagesim.hardware.gpus import GIB
from pagesim.models.layers import FullLayer, IndexerLayer, LatentLayer, Layer, StateLayer
from pagesim.sizing.block_plan import BlockPlan
from pagesim.sizing.planning import plan_blocks

DELTA = StateLayer((3, 8192), (32, 128, 128), state_dtype="fp32", checkpoint=64)
QWEN_35B = [*[DELTA] * 3, FullLayer(2, 256)] * 10
WIDER = StateLayer((3, 10240), (48, 128, 128), state_dtype="fp32", checkpoint=64)
QWEN_27B = [*[WIDER] * 3, FullLayer(4, 256)] * 16
LATENT = [LatentLayer(576)] * 61
SPARSE = [LatentLayer(576, fp8_bytes=656), IndexerLayer(132)]


def planned(layers: list[Layer], on: str, gib: float = 20, **options: object) -> BlockPlan:
    given = {"max_model_len": 32768, "in_flight_tokens": 4096, "cache_bytes": int(gib * GIB), **options}
    return plan_blocks(layers, capability=gpu(on).capability, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("layers", "on", "tp", "block_size", "states"),
    [
        (QWEN_27B, "h100", 1, 832, 3),
        (QWEN_27B, "b200", 1, 832, 3),
        (QWEN_27B, "rtx-5090", 1, 832, 3),
        (QWEN_27B, "a100-80gb", 2, 784, 2),
        (QWEN_27B, "mi300x", 2, 784, 2),
        (QWEN_35B, "rtx-3090", 4, 528, 2),
    ],
)
def test_a_gated_delta_net_leaves_states_behind_where_flashinfer_has_a_kernel(
    layers, on, tp, block_size, states
):
    plan = planned(layers, on, tp=tp)
    assert {group.block_size for group in plan.groups} == {block_size}
    assert [group.most_blocks for group in plan.groups[:3]] == [states] * 3
    assert {group.checkpoint for group in plan.groups[:3]} == {block_size if states == 3 else None}


def test_a_gated_delta_net_of_other_keys_leaves_no_state_behind_on_blackwell():
    narrow = StateLayer((3, 8192), (32, 128, 64), checkpoint=64)
    for on, most in (("h100", 3), ("b200", 2), ("rtx-5090", 2)):
        assert planned([narrow, FullLayer(2, 256)], on).groups[0].most_blocks == most


@pytest.mark.parametrize(
    ("on", "kv_dtype", "block_size"),
    [
        ("h100", "bf16", 16),  # FLASH_ATTN_MLA
        ("h100", "fp8", 64),  # FLASHMLA
        ("b200", "bf16", 32),  # FLASHINFER_MLA
        ("a100-80gb", "bf16", 16),  # TRITON_MLA
        ("l40s", "fp8", 16),
    ],
)
def test_blocks_of_latent_vectors_are_those_of_the_kernel(on, kv_dtype, block_size):
    assert planned(LATENT, on, kv_dtype=kv_dtype).block_size == block_size


def test_deepseek_v3_on_blackwell_has_the_blocks_that_its_planner_makes():
    plan = planned(LATENT, "b200", tp=4, kv_dtype="fp8")
    assert (plan.most_blocks, plan.bytes_per_block) == (1024, 1_124_352)
    assert (plan.num_blocks, plan.tokens) == (19_099, 611_168)


@pytest.mark.parametrize(
    ("on", "kv_dtype", "latent"),
    [
        ("h100", "bf16", 1152),
        ("h100", "fp8", 656),
        ("b200", "bf16", 1152),
        ("b200", "fp8", 576),
        ("rtx-pro-6000", "bf16", 656),
        ("rtx-pro-6000", "fp8", 656),
    ],
)
def test_sparse_attention_keeps_latent_vectors_in_the_layout_of_its_kernel(on, kv_dtype, latent):
    plan = planned(SPARSE, on, kv_dtype=kv_dtype)
    assert plan.groups[0].pages == (64 * latent, 64 * 132)


@pytest.mark.parametrize(
    ("layers", "on", "kv_dtype", "bytes_per_block", "tokens"),
    [
        (61, "h100", "bf16", 61 * 64 * (1152 + 132), 274_176),  # DeepSeek V3.2
        (61, "h100", "fp8", 61 * 64 * (656 + 132), 446_720),
        (78, "h100", "bf16", 6_409_728, None),  # GLM-5
        (78, "b200", "fp8", 3_534_336, 388_864),
    ],
)
def test_models_of_sparse_attention_have_the_blocks_that_their_planner_makes(
    layers, on, kv_dtype, bytes_per_block, tokens
):
    plan = planned(SPARSE * layers, on, kv_dtype=kv_dtype)
    assert (plan.bytes_per_block, plan.block_size) == (bytes_per_block, 64)
    assert plan.tokens == tokens or tokens is None


def test_sparse_attention_has_no_kernel_before_hopper():
    with pytest.raises(PagesimError, match=r"has compute capability 8\.9, and .* need 9\.0 .*: choose anoth"):
        planned(SPARSE, "l40s")
    assert planned(SPARSE, "h20").num_blocks


def test_the_host_keeps_latent_vectors_of_several_gpus_once_where_they_are_nvidias():
    # kv_offload/cpu/spec.py: num_copies, and _uses_shared_region, which is false under ROCm
    assert [planned(LATENT, on, tp=8).host_copies for on in ("h200", "b200", "mi300x")] == [1, 1, 8]
    assert planned(SPARSE, "h200", tp=8).host_copies == 1
    assert planned([*LATENT, FullLayer(8, 128)], "h200", tp=8, hybrid=False).host_copies == 8


def test_every_gpu_has_the_compute_capability_that_nvidia_lists():
    # https://developer.nvidia.com/cuda-gpus; AMD has none.
    listed = {
        **dict.fromkeys(("a100-40gb", "a100-80gb"), 80),
        "v100": 70,
        **dict.fromkeys(("a10g", "rtx-3060", "rtx-3080", "rtx-3090", "rtx-a5000", "rtx-a6000"), 86),
        **dict.fromkeys(("l4", "l40", "l40s", "rtx-4090", "rtx-4090-d"), 89),
        **dict.fromkeys(("h100", "h100-nvl", "h100-pcie", "h200", "gh200", "h20", "h20-3e"), 90),
        **dict.fromkeys(("b200", "gb200"), 100),
        **dict.fromkeys(("b300", "gb300"), 103),
        **dict.fromkeys(("rtx-5060-ti", "rtx-5070-ti", "rtx-5090", "rtx-pro-6000"), 120),
        "gb10": 121,
        **dict.fromkeys(("mi300x", "mi355x", "r9700"), 0),
    }
    assert {spec.name: spec.capability for spec in gpus()} == listed


def test_a_gpu_that_is_not_known_is_taken_for_a_hopper_gpu():
    how = {"max_model_len": 32768, "in_flight_tokens": 4096, "num_blocks": 100}
    for layers in (QWEN_27B, LATENT, SPARSE):
        assert plan_blocks(layers, **how) == plan_blocks(layers, capability=90, **how)
