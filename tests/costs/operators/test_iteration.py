"""An iteration of a model is the sum of its operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagesim.costs.base import AttentionSpan
from pagesim.costs.operators import Store, Tables
from pagesim.costs.operators.dtypes import dtypes, in_types
from pagesim.costs.operators.gemm import Gemm, launched_by_graphs
from pagesim.costs.operators.grids import Grid
from pagesim.costs.operators.iteration import operators
from pagesim.costs.operators.products import products
from pagesim.costs.operators.sums import knots, risen
from pagesim.errors import PagesimError
from pagesim.models import ModelSpec, model
from pagesim.models.layers import FullLayer, WindowLayer
from tests.costs.operators.conftest import SYSTEM, decode_ms, gemm_ms, prompt_ms

LLAMA = model("llama-3.1-8b")

Put = Callable[[str, list[dict[str, Any]]], Path]


def of_layer(spec: ModelSpec, tp: int = 1) -> dict[str, tuple[int, int, int]]:
    found = products(spec, tp, dtypes(spec), latent=True)
    assert len({each.name for each in found}) == len(found)
    return {each.name: (each.n, each.k, each.layers) for each in found}


def test_a_dense_layer_has_four_products_that_gpus_divide():
    assert of_layer(LLAMA) == {
        "qkv": (6144, 4096, 32),
        "out": (4096, 4096, 32),
        "gate up": (28672, 4096, 32),
        "down": (4096, 14336, 32),
    }
    # 16 GPUs share 8 KV heads: each has one whole.
    assert of_layer(LLAMA, 16) == {
        "qkv": (512, 4096, 32),
        "out": (4096, 256, 32),
        "gate up": (1792, 4096, 32),
        "down": (4096, 896, 32),
    }
    with pytest.raises(PagesimError, match="tp is 3"):
        of_layer(LLAMA, 3)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-14b", "opt-13b", "gemma3-12b", "qwen3-next-80b"])
def test_products_have_as_many_weights_as_the_model(name: str):
    spec = model(name)
    counted = sum(n * k * layers for n, k, layers in of_layer(spec).values())
    table = spec.vocab * (spec.embedding or spec.hidden)
    experts = spec.expert_bytes_per_gpu(1) // 2
    tables = table * (1 if spec.tied else 2) + spec.position_rows * spec.hidden
    tower = spec.tower + spec.tower_whole
    # Norms, biases and a convolution are no products.
    assert counted == pytest.approx(spec.parameters - tables - experts - tower, rel=0.002)


def test_latent_attention_has_products_of_its_own_unless_a_module_was_timed():
    spec = model("deepseek-v3")
    types = dtypes(spec)
    with_them = {each.name for each in products(spec, 8, types, latent=True)}
    without = {each.name for each in products(spec, 8, types, latent=False)}
    assert with_them - without == {"latent down", "latent queries", "latent keys and values", "out"}
    assert {each.name: each.layers for each in products(spec, 8, types, latent=False)} == {
        **{"gate up": 3, "down": 3, "router": 58},
        **{"shared gate up": 58, "shared down": 58},
    }


def test_types_are_the_models_own_unless_others_are_named():
    assert set(dtypes(LLAMA)) == {"bfloat16"}
    assert set(dtypes(LLAMA, "fp8")[:-1]) == {"bfloat16"}
    assert dtypes(LLAMA, "fp8").cache == "fp8"
    assert dtypes(model("deepseek-v3"))[2:] == ("fp8_block",) * 3 + ("bfloat16",)
    oss = dtypes(model("gpt-oss-20b"))
    assert (oss.attention, oss.experts) == ("bfloat16", "w4a16_mxfp4")
    fp8 = dtypes(in_types(LLAMA, "fp8", None))
    assert (fp8.attention, fp8.mlp) == ("fp8", "fp8")
    mixed = dtypes(in_types(model("qwen3-30b-a3b"), "int4", "bf16"))
    assert (mixed.attention, mixed.experts) == ("int4_wo", "bfloat16")
    with pytest.raises(PagesimError, match="weight_dtype is 'int3'"):
        in_types(LLAMA, "int3", None)
    with pytest.raises(PagesimError, match="kv_dtype is 'int8'"):
        dtypes(LLAMA, "int8")


@pytest.mark.parametrize("tokens", [1, 64, 1000, 4096])
def test_linear_layers_are_the_sum_of_their_products_and_what_goes_through_memory(
    tables: Tables, tokens: int
):
    found = operators(tables, LLAMA, 2, dtypes(LLAMA))
    assert found.linear is not None
    assert found.head is not None
    shapes = [(3072, 4096), (4096, 2048), (14336, 4096), (4096, 7168)]
    products_s = 32 * sum(gemm_ms(tokens, n, k) for n, k in shapes) / 1e3
    elements = 32 * (2 * 4 * 4096 + 3 * 7168) + 2 * 4096
    memory_s = (3 * 32 + 1) * 3e-6 + tokens * elements * 2 / (0.8 * 2e12)
    assert found.linear(tokens) == pytest.approx(products_s + memory_s, rel=0.005)
    # The LM head is wider than any product that was timed: it goes with its width.
    head = gemm_ms(min(tokens, 4096), 16384, 4096) / 1e3 * 64128 / 16384
    assert found.head(tokens) == pytest.approx(head, rel=0.005)
    assert found.experts is None
    assert found.missing == {}
    assert found.origins["linear"] == "gemm_perf 1.2.0"


def test_attention_and_all_reduces_are_those_of_all_layers(tables: Tables):
    found = operators(tables, LLAMA, 2, dtypes(LLAMA))
    decode, prompts = found.decode[None], found.prompts[None]
    assert decode(10, 2000) == pytest.approx(32 * decode_ms(10, 2000, 4) / 1e3)
    assert prompts(2, 1000) == pytest.approx(32 * prompt_ms(2, 1000, 16) / 1e3)
    assert found.all_reduce is not None
    assert found.all_reduce_eager is not None
    assert found.all_reduce(64) == pytest.approx(64 * (0.004 + 1e-8 * 64 * 4096) / 1e3, rel=0.005)
    assert found.all_reduce_eager(64) == pytest.approx(
        64 * (0.02 + 0.016 + 1e-8 * 64 * 4096) / 1e3, rel=0.005
    )
    assert operators(tables, LLAMA, 1, dtypes(LLAMA)).all_reduce is None


def test_windows_are_a_term_of_their_own_over_what_is_within_reach(tables: Tables):
    full, window = FullLayer(8, 128), WindowLayer(8, 128, 512)
    spec = replace(LLAMA, name="windows", cached=(full, *(window,) * 3) * 8)
    found = operators(tables, spec, 1, dtypes(spec))
    span = AttentionSpan("window", 512)
    assert set(found.decode) == {None, span}
    assert found.decode[None](4, 8000) == pytest.approx(8 * decode_ms(4, 8000, 8) / 1e3)
    assert found.decode[span](4, 512) == pytest.approx(24 * decode_ms(4, 512, 8) / 1e3)
    assert found.decode[span](4, 100) == pytest.approx(24 * decode_ms(4, 100, 8) / 1e3)
    # Prompts within a window were not timed, and a whole prompt's time is not theirs.
    assert found.prompts == {}
    assert "within 512" in found.missing["prefill"]


def test_experts_are_a_term_of_their_own_and_what_is_missing_is_named(tables: Tables):
    spec = model("qwen3-30b-a3b")
    found = operators(tables, spec, 2, dtypes(spec))
    assert found.experts is not None
    assert found.experts(64) == pytest.approx(48 * 0.01e-3 * 8, rel=0.01)
    assert any("power_law_1.2" in note for note in found.notes)
    assert "16 heads over 2" in found.missing["decode"]  # eight queries a KV head; only four were timed
    lacking = operators(tables, spec, 4, dtypes(spec))
    assert lacking.experts is None
    assert "over 4 and 1 GPUs" in lacking.missing["experts"]
    assert "among 4" not in str(lacking.missing)
    assert (
        "none of fp8" in operators(tables, LLAMA, 1, dtypes(in_types(LLAMA, "fp8", None))).missing["linear"]
    )


def test_experts_that_a_version_lacks_are_of_the_next_best(store: Path, put_table: Put):
    spec = model("qwen3-30b-a3b")

    def rows(tp: int, sizes: list[int], milliseconds: float) -> list[dict[str, Any]]:
        shape = {"hidden_size": 2048, "inter_size": 768, "topk": 8, "num_experts": 128, "moe_tp_size": tp}
        rest = {
            "moe_ep_size": 1,
            "distribution": "power_law_1.2",
            "moe_dtype": "bfloat16",
            "kernel_source": "b",
        }
        return [{**shape, **rest, "num_tokens": t, "latency": milliseconds} for t in sizes]

    powers = [1 << each for each in range(12)]
    put_table("moe/vllm/1.1.0/moe_perf", rows(1, powers, 5.0) + rows(2, [64], 5.0))
    put_table("moe/vllm/1.0.0/moe_perf", rows(2, powers, 7.0))

    def of(version: str, tp: int) -> tuple[str, float]:
        found = operators(Tables(Store(SYSTEM, version=version, tables=store)), spec, tp, dtypes(spec))
        assert found.experts is not None
        return found.origins["experts"], round(1e3 * found.experts(64) / 48, 2)

    assert of("1.1.0", 1) == ("moe_perf 1.1.0", 5.0)
    assert of("1.1.0", 2) == ("moe_perf 1.0.0", 7.0)  # one point is no curve
    # Before all of them it is the current version, which has a full set, and not the oldest.
    assert of("0.5.0", 1) == ("moe_perf 1.2.0", 0.16)


def test_a_sum_never_falls_and_is_near_what_it_was_made_of():
    noisy = np.array([1.0, 1.2, 1.1, 1.3, 1.25, 2.0])
    flat = risen(noisy)
    assert (np.diff(flat) >= 0).all()
    assert flat[1] == flat[2] == pytest.approx((1.2 * 1.1) ** 0.5)
    assert (flat[0], flat[5]) == (1.0, 2.0)

    def seconds(size: int) -> float:
        return 1e-3 + 1e-6 * size + 1e-9 * size**1.5

    found = knots(seconds)
    assert 2 < len(found.at) < 40
    for size in (1, 5, 100, 777, 5000, 30_000):
        assert found(size) == pytest.approx(seconds(size), rel=0.006)
    assert found(65_536) > found(32_768)


def test_a_kernel_that_was_timed_as_the_host_launches_it_is_what_another_takes():
    sizes = np.array([1, 64, 4096])
    widths = np.array([256, 8192])
    device = 1e-6 + 1e-15 * np.multiply.outer(sizes, np.outer(widths, widths)).astype(float)
    kernels = np.zeros(device.shape, np.int64)
    other = Gemm(Grid((sizes, widths, widths), device, kernels))
    timed = Gemm(Grid((sizes, widths, widths), np.maximum(device, 60e-6), kernels))
    mended, changed = launched_by_graphs(timed, other)
    assert changed
    assert mended(1, 256, 256) == other(1, 256, 256)
    assert mended(4096, 8192, 8192) == timed(4096, 8192, 8192) > 120e-6
    assert not launched_by_graphs(other, timed)[1]


def of_experts(tokens: int, dtype: str, kernel: str, ms: float) -> dict[str, Any]:
    return {
        **{"hidden_size": 2048, "inter_size": 768, "topk": 8, "num_experts": 128, "moe_tp_size": 1},
        **{"moe_ep_size": 1, "distribution": "balanced", "moe_dtype": dtype, "num_tokens": tokens},
        **{"kernel_source": kernel, "latency": ms},
    }


SIZES = [1 << each for each in range(12)]


def test_the_kernel_of_experts_can_be_chosen(store: Path, put_table: Put):
    rows = [
        of_experts(tokens, "nvfp4", kernel, ms)
        for tokens in SIZES
        for kernel, ms in (("vllm_fused_moe", 3.0), ("vllm_x_flashinfer_trtllm_y", 1.0))
    ]
    put_table("moe/vllm/1.2.0/moe_perf", rows)
    spec = model("qwen3-30b-a3b").with_weights("nvfp4")

    def seconds(kernel: str | None) -> float:
        found = operators(Tables(Store(SYSTEM, tables=store)), spec, 1, dtypes(spec), moe_backend=kernel)
        assert found.experts is not None
        return found.experts(64) / spec.layers

    assert seconds("triton") == pytest.approx(3e-3)
    assert seconds("flashinfer_trtllm") == pytest.approx(1e-3)
    lacking = operators(Tables(Store(SYSTEM, tables=store)), spec, 1, dtypes(spec), moe_backend="marlin")
    assert "by marlin" in lacking.missing["experts"]
    with pytest.raises(PagesimError, match="moe_backend is 'cutlass'; it must be one of triton"):
        seconds("cutlass")


def test_experts_that_an_engine_lacks_are_anothers_if_both_run_one_librarys_kernel(
    store: Path, put_table: Put
):
    spec = model("qwen3-30b-a3b").with_weights("mxfp4_mxfp8")
    asked = "w4a8_mxfp4_mxfp8"
    put_table("moe/other/0.5/moe_perf", [of_experts(each, asked, "own_kernel", 9.0) for each in SIZES])
    put_table("moe/sglang/0.5/moe_perf", [of_experts(each, asked, "sglang_own", 9.0) for each in SIZES])
    none = operators(Tables(Store(SYSTEM, tables=store)), spec, 1, dtypes(spec))
    assert none.experts is None, "a kernel of another engine's own is not this engine's"
    put_table(
        "moe/sglang/0.6/moe_perf", [of_experts(each, asked, "flashinfer_trtllm", 2.0) for each in SIZES]
    )
    found = operators(Tables(Store(SYSTEM, tables=store)), spec, 1, dtypes(spec))
    assert found.experts is not None
    assert found.experts(64) / spec.layers == pytest.approx(2e-3)
    assert found.origins["experts"] == "moe_perf sglang 0.6"
    assert any("of sglang 0.6: the engine's own lacks these" in note for note in found.notes)


def test_a_norm_over_all_heads_sums_its_squares_up_over_gpus(tables: Tables):
    plain, wide = LLAMA, replace(LLAMA, name="wide", wide_qk_norm=True)
    sums = [operators(tables, spec, 2, dtypes(spec)) for spec in (plain, wide)]
    assert sums[0].all_reduce is not None
    assert sums[1].all_reduce is not None
    assert sums[0].linear is not None
    assert sums[1].linear is not None
    more = sums[1].all_reduce(64) - sums[0].all_reduce(64)
    assert more == pytest.approx(32 * (0.004 + 1e-8 * 64 * 4) / 1e3, rel=0.02)
    # Two kernels a layer; of queries and keys of 16 and 4 heads.
    kernels = 32 * (2 * 3e-6 + 64 * 3 * 20 * 128 * 2 / (0.8 * 2e12))
    assert sums[1].linear(64) - sums[0].linear(64) == pytest.approx(kernels, rel=0.02)
    alone = operators(tables, wide, 1, dtypes(wide))
    assert alone.all_reduce is None
