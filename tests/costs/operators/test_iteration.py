"""An iteration of a model is the sum of its operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pagesim.costs import Profiled, step_shape
from pagesim.costs.engines import EngineTime
from pagesim.costs.operators.aiconfigurator import read_system
from pagesim.costs.operators.assemble import imported_profile, operator_profile
from pagesim.costs.operators.dtypes import dtypes
from pagesim.costs.operators.iteration import Operators
from pagesim.costs.operators.products import elementwise, products
from pagesim.costs.operators.tables import Chip, OperatorTables, chip_of
from pagesim.costs.profiles import ANY_BLOCK, Terms, load_profile
from pagesim.errors import PagesimError
from pagesim.hardware import gpu
from pagesim.models import ModelSpec, model, models
from pagesim.models.experts import ExpertDivision
from pagesim.models.layers import FullLayer, WindowLayer
from pagesim.sim.clock import to_ticks
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
    fp8 = dtypes(LLAMA.with_weights("fp8"))
    assert (fp8.attention, fp8.mlp) == ("fp8", "fp8")
    assert dtypes(LLAMA, "fp8_per_token_head").cache == "fp8"


NEAR = {"rel": 0.006}
"""Stored steps are 0.1 % off, numbers of a profile have four or five digits."""


def terms_of(chip: Chip, spec: ModelSpec, **options: Any) -> Terms:
    return Operators(chip, spec, **options).terms()


@pytest.mark.parametrize("tokens", [1, 64, 1000, 4096])
def test_linear_layers_are_the_sum_of_their_products_and_what_goes_through_memory(chip: Chip, tokens: int):
    found = Operators(chip, LLAMA, tp=2)
    terms = found.terms()
    shapes = [(3072, 4096), (4096, 2048), (14336, 4096), (4096, 7168)]
    products_s = 32 * sum(gemm_ms(tokens, n, k) for n, k in shapes) / 1e3
    elements = 32 * (2 * 4 * 4096 + 3 * 7168) + 2 * 4096
    memory_s = (3 * 32 + 1) * 3e-6 + tokens * elements * 2 / (0.8 * 3.35e12)
    assert terms.linear(tokens) == pytest.approx(products_s + memory_s, **NEAR)
    # The LM head is wider than any product that was timed: it goes with its width.
    head = gemm_ms(tokens, 16384, 4096) / 1e3 * 64128 / 16384
    assert terms.head(tokens) == pytest.approx(head, **NEAR)
    assert terms.experts is None
    assert found.missing == {}
    assert found.used["linear"].release == "vllm 1.2.0"


def test_queries_and_keys_are_normed_as_wide_as_a_gpu_has_them():
    # MiniMax-M2.5: 48 query heads and 8 of keys, of width 128; over 16 GPUs each has a key head of its own.
    assert elementwise(model("minimax-m2.5"), 8).wide == (6 + 1) * 128
    assert elementwise(model("minimax-m2.5"), 16).wide == (3 + 1) * 128


def test_attention_and_all_reduces_are_those_of_all_layers(chip: Chip):
    terms = terms_of(chip, LLAMA, tp=2)
    decode, prompts = terms.decode[ANY_BLOCK], terms.prefill[ANY_BLOCK]
    for batch, context in [(10, 2000), (1, 100), (256, 16_384), (300, 40_000)]:
        assert decode(batch, context) == pytest.approx(32 * decode_ms(batch, context, 4) / 1e3, **NEAR)
    assert prompts(2000, 500.5) == pytest.approx(32 * prompt_ms(2, 1000, 16) / 1e3, **NEAR)
    assert terms.write(1000) == 0  # in the time of attention
    assert terms.all_reduce is not None
    assert terms.all_reduce_eager is not None
    assert terms.all_reduce(64) == pytest.approx(64 * (0.004 + 1e-8 * 64 * 4096) / 1e3, **NEAR)
    assert terms.all_reduce_eager(64) == pytest.approx(64 * (0.02 + 0.016 + 1e-8 * 64 * 4096) / 1e3, **NEAR)
    assert terms_of(chip, LLAMA).all_reduce is None


def test_an_iteration_takes_the_sum_of_its_terms(chip: Chip):
    profile = operator_profile(chip, LLAMA, tp=2)
    cost = Profiled(profile, LLAMA, tp=2, block_size=32, kv_dtype="bf16", engine=EngineTime())
    terms = profile.terms
    assert terms.all_reduce is not None
    assert terms.all_reduce_eager is not None
    decode = terms.linear(16) + terms.head(16) + terms.decode[ANY_BLOCK](16, 1000) + terms.all_reduce(16)
    assert cost.iteration(step_shape(16, 16_000)) == pytest.approx(to_ticks(decode), rel=1e-6)
    prompt = terms.linear(2048) + terms.head(1) + terms.prefill[ANY_BLOCK](2048, 1024.5)
    whole = prompt + terms.all_reduce_eager(2048)
    assert cost.iteration(step_shape(0, 0, prompt=2048)) == pytest.approx(to_ticks(whole), rel=1e-6)


def test_windows_are_a_term_of_their_own_over_what_is_within_reach(chip: Chip):
    full, window = FullLayer(8, 128), WindowLayer(8, 128, 512)
    spec = replace(LLAMA, name="windows", cached=(full, *(window,) * 3) * 8)
    found = Operators(chip, spec)
    terms = found.terms()
    assert set(terms.reached) == {"window:512"}
    within = terms.reached["window:512"]
    assert terms.decode[ANY_BLOCK](4, 8000) == pytest.approx(8 * decode_ms(4, 8000, 8) / 1e3, **NEAR)
    assert within.decode(4, 512) == pytest.approx(24 * decode_ms(4, 512, 8) / 1e3, **NEAR)
    assert within.decode(4, 100) == pytest.approx(24 * decode_ms(4, 100, 8) / 1e3, **NEAR)
    # Prompts within a window were not timed: of 2048 tokens' pairs a window of 512 has 43.7 %.
    share = (512 * 513 / 2 + 1536 * 512) / (2048 * 2049 / 2)
    whole = 24 * prompt_ms(1, 2048, 32) / 1e3
    assert within.prefill(2048, 1024.5) == pytest.approx(share * whole, rel=0.01)
    assert any("within 512 tokens was not timed" in note for note in found.notes)


def test_experts_are_a_term_of_their_own(chip: Chip):
    spec = model("qwen3-30b-a3b")
    found = Operators(chip, spec, tp=2)
    terms = found.terms()
    assert terms.experts is not None
    assert terms.experts(64) == pytest.approx(48 * 0.01e-3 * 8, **NEAR)
    # Straight in the logarithms of both: 96 tokens take the root of 1.5 more.
    assert terms.experts(96) == pytest.approx(48 * 0.01e-3 * 96**0.5, **NEAR)
    assert any("power_law_1.2" in note for note in found.notes)
    # Data-parallel ranks of one GPU each divide every expert by two, and compute all tokens of both.
    ranks = terms_of(chip, replace(spec, expert_division=ExpertDivision(2)))
    assert ranks.experts is not None
    assert ranks.experts(32) == pytest.approx(terms.experts(64), **NEAR)


def test_a_norm_over_all_heads_sums_its_squares_up_over_gpus(chip: Chip):
    plain, wide = LLAMA, replace(LLAMA, name="wide", wide_qk_norm=True)
    without, of_all = (terms_of(chip, spec, tp=2) for spec in (plain, wide))
    assert without.all_reduce is not None
    assert of_all.all_reduce is not None
    more = of_all.all_reduce(64) - without.all_reduce(64)
    assert more == pytest.approx(32 * (0.004 + 1e-8 * 64 * 4) / 1e3, rel=0.02)
    # Two kernels a layer; of queries and keys of 16 and 4 heads.
    kernels = 32 * (2 * 3e-6 + 64 * 3 * 20 * 128 * 2 / (0.8 * 3.35e12))
    assert of_all.linear(64) - without.linear(64) == pytest.approx(kernels, rel=0.02)


def test_a_profile_says_where_each_term_comes_from_and_how_wrong_it_is(
    tables: OperatorTables, tmp_path: Path
):
    tables.gpu = "h100"
    profile = imported_profile(tables, LLAMA, tp=2, weight_dtype="bf16")
    assert profile.name == "llama-3.1-8b-h100-tp2-bf16"
    assert profile.sources["linear"] == "gemm bfloat16, vllm 1.2.0"
    assert profile.sources["all_reduce_eager"] == "all_reduce vllm_graph, vllm 1.2.0"
    assert profile.machine["release"] == "vllm 1.2.0"
    assert "© NVIDIA, Apache-2.0, changed" in profile.machine["source"]
    assert {term for term, origin in profile.origins.items() if origin == "datasheet"} == {
        *("copy", "swap_out", "swap_in")
    }
    assert set(profile.errors) == {"linear", "head", "decode", "prefill", "all_reduce"}
    assert profile.errors["linear"].mean < 0.002  # these products are linear in every size
    assert profile.terms.overhead is None
    # Eight prompts of 4096 tokens were timed, and no more tokens at once.
    assert profile.ranges["prefill"].most == 32_768
    assert (profile.ranges["decode"].most, profile.ranges["decode"].most_context) == (256, 16_384)
    assert profile.block_sizes == (ANY_BLOCK,)
    profile.save(tmp_path / "p.json")
    assert load_profile(tmp_path / "p.json") == profile
    with pytest.raises(PagesimError, match="expert_parallel_size is 3; it must divide the 4 GPUs"):
        imported_profile(tables, model("qwen3-30b-a3b"), tp=4, moe_ep=3)


def test_where_nothing_was_timed_it_is_the_datasheets_and_said(store: Path):
    for folder in ("gemm", "attention", "comm", "moe"):
        for file in (store / "data" / SYSTEM / folder).rglob("*.parquet"):
            if folder != "gemm":
                file.unlink()
    bare = Chip(gpu("h100"), read_system(SYSTEM, tables=store))
    spec = model("qwen3-30b-a3b")
    profile = operator_profile(bare, spec, tp=2)
    # Without a table of experts the datasheet has them among the linear layers, once.
    assert profile.terms.experts is None
    lacking = {term for term, origin in profile.origins.items() if origin == "datasheet"}
    assert lacking >= {"linear", "decode", "prefill", "all_reduce"}
    assert any(
        note.startswith("all_reduce: all-reduces among 2 h100 were not timed") for note in profile.notes
    )
    # 48 layers read 2·2·128 elements of two bytes a token of context on each GPU, at 65 % of 3.35 TB/s.
    read = 48 * 2 * 2 * 128 * 2 * 10_000 / (0.65 * 3.35e12)
    assert profile.terms.decode[ANY_BLOCK](10, 1000) == pytest.approx(read)


@pytest.mark.parametrize("on", ["a100-80gb", "b200"])
def test_any_model_has_costs_that_rise_with_its_work(on: str):
    measured = chip_of(gpu(on))
    assert measured is not None
    for spec in models():
        if not spec.has_weights:
            continue
        profile = operator_profile(measured, spec, kv_dtype="fp8")
        cost = Profiled(profile, spec, kv_dtype="fp8", engine=EngineTime())
        decode = [cost.iteration(step_shape(batch, batch * 500)) for batch in (1, 8, 64, 256)]
        # Tables of attention jump a little over the number of sequences.
        assert all(more > 0.9 * less for less, more in pairwise(decode)), spec.name
        prompts = [cost.iteration(step_shape(0, 0, prompt=tokens)) for tokens in (64, 512, 2048, 8192)]
        assert prompts == sorted(prompts), spec.name


def test_a_step_of_a_known_model_takes_about_what_its_weights_do():
    """Llama-3.1-8B on an H100 reads 16 GB at 3.35 TB/s: 4.8 ms at best, and servers take some 6 to 8."""
    measured = chip_of(gpu("h100"))
    assert measured is not None
    cost = Profiled(operator_profile(measured, LLAMA), LLAMA, kv_dtype="bf16", engine=EngineTime())
    assert 4.8e9 < cost.iteration(step_shape(1, 500)) < 8e9
