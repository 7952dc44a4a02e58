"""A profile is what operators make of a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pagesim.costs import Profiled, step_shape
from pagesim.costs.engines import EngineTime
from pagesim.costs.operators import Store, Tables
from pagesim.costs.operators.assemble import import_operators, operator_profile
from pagesim.costs.operators.dtypes import dtypes
from pagesim.costs.profiles import ANY_BLOCK, load_profile
from pagesim.costs.specs import gpu, model
from pagesim.costs.specs.layers import FullLayer, WindowLayer
from pagesim.errors import PagesimError
from pagesim.sim.clock import to_ticks
from tests.costs.operators.conftest import SYSTEM, decode_ms, gemm_ms, prompt_ms, write_store

LLAMA, H100 = model("llama-3.1-8b"), gpu("h100")
NONE = EngineTime()


def test_an_iteration_takes_the_sum_of_its_operators(tables: Tables):
    profile = operator_profile(tables, LLAMA, H100, dtypes(LLAMA), tp=2, name="x")
    cost = Profiled(profile, LLAMA, tp=2, block_size=32, kv_dtype="bf16", engine=NONE)
    shapes = [(3072, 4096), (4096, 2048), (14336, 4096), (4096, 7168)]

    def computed(tokens: int, sampled: int) -> float:
        products = 32 * sum(gemm_ms(tokens, n, k) for n, k in shapes) / 1e3
        elements = 32 * (2 * 4 * 4096 + 3 * 7168) + 2 * 4096
        memory = (3 * 32 + 1) * 3e-6 + tokens * elements * 2 / (0.8 * 2e12)
        return products + memory + gemm_ms(sampled, 16384, 4096) / 1e3 * 64128 / 16384

    def reduced(tokens: int, ms: float) -> float:
        return 64 * (ms + 1e-8 * tokens * 4096) / 1e3

    decode = computed(16, 16) + 32 * decode_ms(16, 1000, 4) / 1e3 + reduced(16, 0.004)
    assert cost.iteration(step_shape(16, 16_000)) == pytest.approx(to_ticks(decode), rel=0.005)
    prompt = computed(2048, 1) + 32 * prompt_ms(1, 2048, 16) / 1e3 + reduced(2048, 0.036)
    assert cost.iteration(step_shape(0, 0, prompt=2048)) == pytest.approx(to_ticks(prompt), rel=0.005)


def test_a_gpu_without_a_datasheet_is_refused(tables: Tables):
    with pytest.raises(PagesimError, match="system is 'x1_sxm'; no datasheet here is of its GPU"):
        import_operators(tables, LLAMA)


def test_a_profile_says_where_each_term_comes_from_and_how_wrong_it_is(tmp_path: Path):
    tables = Tables(Store("h100_sxm", tables=write_store(tmp_path, "h100_sxm")))
    profile = import_operators(tables, LLAMA, tp=2, kv_dtype="bf16")
    assert profile.name == "llama-3.1-8b-h100-tp2"
    assert profile.sources["linear"] == "gemm_perf 1.2.0"
    assert profile.sources["all_reduce_eager"] == "custom_allreduce_perf 1.2.0"
    assert profile.machine["release"] == "vllm 1.2.0"
    assert "© NVIDIA, Apache-2.0, changed" in profile.machine["source"]
    assert {term for term, origin in profile.origins.items() if origin == "datasheet"} == {
        *("copy", "swap_out", "swap_in")
    }
    assert set(profile.errors) == {"linear", "head", "decode", "prefill", "all_reduce"}
    assert profile.errors["linear"].points > 50
    assert profile.terms.overhead is None
    # Eight prompts of 4096 tokens were timed, and no more tokens at once.
    assert profile.ranges["prefill"].most == 32_768
    assert (profile.ranges["decode"].most, profile.ranges["decode"].most_context) == (256, 16_384)
    assert profile.block_sizes == (ANY_BLOCK,)
    profile.save(tmp_path / "p.json")
    assert load_profile(tmp_path / "p.json") == profile


def test_what_the_tables_lack_is_the_datasheets_and_said(tables: Tables):
    fp8 = LLAMA.with_weights("fp8")
    profile = operator_profile(tables, fp8, H100, dtypes(fp8, "fp8"), kv_dtype="fp8", name="x")
    with pytest.raises(PagesimError, match="is of weights in fp8, not bf16"):
        Profiled(profile, LLAMA, kv_dtype="fp8")
    lacking = {term for term, origin in profile.origins.items() if origin == "datasheet"}
    assert {"linear", "decode", "prefill"} <= lacking
    assert any(
        "linear: the table of products has none of fp8; it is the datasheet's" in n for n in profile.notes
    )
    assert set(profile.sources) == {"head"}
    spec = model("qwen3-30b-a3b")
    both = operator_profile(tables, spec, H100, dtypes(spec), tp=4, name="x")
    # Without a table of its experts the datasheet has them among the linear layers, once.
    assert both.terms.experts is None
    assert both.origins["linear"] == "datasheet"
    window = replace(LLAMA, name="w", cached=(FullLayer(8, 128), WindowLayer(8, 128, 512)) * 16)
    with pytest.raises(PagesimError, match=r"within 512.*there is no profile of them; choose cost roofline"):
        operator_profile(tables, window, H100, dtypes(window), name="x")


def test_a_table_of_another_release_is_said(store: Path):
    tables = Tables(Store(SYSTEM, version="1.1.0", tables=store))
    profile = operator_profile(tables, LLAMA, H100, dtypes(LLAMA), name="x")
    assert any("gemm_perf is of 1.2.0 and not 1.1.0: there is no older one" in note for note in profile.notes)
