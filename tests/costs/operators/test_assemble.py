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
from pagesim.costs.operators.iteration import operators
from pagesim.costs.profiles import ANY_BLOCK, load_profile
from pagesim.errors import PagesimError
from pagesim.hardware import gpu
from pagesim.models import model
from pagesim.models.layers import FullLayer, WindowLayer
from pagesim.sim.clock import to_ticks
from tests.costs.operators.conftest import SYSTEM, write_store

LLAMA, H100 = model("llama-3.1-8b"), gpu("h100")
NONE = EngineTime()


def test_an_iteration_takes_the_sum_of_its_operators(tables: Tables):
    profile = operator_profile(tables, LLAMA, H100, dtypes(LLAMA), tp=2, name="x")
    cost = Profiled(profile, LLAMA, tp=2, block_size=32, kv_dtype="bf16", engine=NONE)
    parts = operators(tables, LLAMA, 2, dtypes(LLAMA))

    def seconds(tokens: int, sampled: int) -> float:
        assert parts.linear is not None
        assert parts.head is not None
        return parts.linear(tokens) + parts.head(sampled)

    assert parts.all_reduce is not None
    assert parts.all_reduce_eager is not None
    decode = seconds(16, 16) + parts.decode[None](16, 1000) + parts.all_reduce(16)
    assert cost.iteration(step_shape(16, 16_000)) == pytest.approx(to_ticks(decode), rel=0.005)
    prompt = seconds(2048, 1) + parts.prompts[None](1, 2048) + parts.all_reduce_eager(2048)
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
