"""Profiles of LLMServingSim's operators: sums of layers, chunks behind a history, and mixed batches."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from pagesim.costs import IterationShape, Profiled, step_shape
from pagesim.costs.profiles import ANY_BLOCK, Profile, import_llmservingsim
from pagesim.costs.profiles.llmservingsim import HEAD, LAYER, ONCE
from pagesim.errors import PagesimError
from pagesim.hardware import gpu
from pagesim.models import model

LLAMA, RTX = model("llama-3.1-8b"), gpu("rtx-4090")
CHUNKS, BEFORE, BATCHES, MEANS = (16, 256, 1024), (0, 1024, 4096), (1, 8, 64), (64, 512, 4096)


def chunk_us(tokens: int, before: int) -> float:
    return 9 + 1e-4 * tokens * (before + (tokens + 1) / 2)


def decode_us(batch: int, mean: int) -> float:
    return 8 + 0.01 * batch * mean


def beside_us(batch: int, mean: int) -> float:
    """What decoding adds to a chunk: another kernel computes it, and no launch is added."""
    return 0.03 * batch * mean


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return files whose times follow simple rules."""
    (tmp_path / "meta.yaml").write_text("vllm_version: 0.19.0\ngpu: a test\nvariant: bf16\n")
    files = tmp_path / "tp1"
    files.mkdir()
    dense = [f"{name},{tokens},{10 + tokens}" for name in (*LAYER, *ONCE) for tokens in (1, 8, 64, 512)]
    heads = [f"{name},{each},{100 + each}" for name in HEAD for each in (1, 16, 256)]
    attention = [f"0,0,{n},{k},{decode_us(n, k)}" for n, k in product(BATCHES, MEANS)]
    attention += [f"{c},{h},0,0,{chunk_us(c, h)}" for c, h in product(CHUNKS, BEFORE)]
    attention += [
        f"{c},{h},{n},{k},{chunk_us(c, h) + beside_us(n, k)}"
        for c, h, n, k in product(CHUNKS, BEFORE, BATCHES, MEANS)
    ]
    for name, head, rows in (
        ("dense", "layer,tokens", dense),
        ("per_sequence", "layer,sequences", heads),
        ("attention", "prefill_chunk,kv_prefill,n_decode,kv_decode", attention),
    ):
        (files / f"{name}.csv").write_text("\n".join([f"{head},time_us", *rows]) + "\n")
    return tmp_path


def imported(folder: Path) -> Profile:
    return import_llmservingsim(folder, model=LLAMA, gpu=RTX, name="x", source="a test")


def test_it_adds_up_a_models_layers_with_both_of_a_layers_norms(folder: Path) -> None:
    profile = imported(folder)
    # Eight operators in each of 32 layers, the embedding and the last norm.
    assert profile.terms.linear(64) == pytest.approx((32 * 8 + 2) * 74e-6)
    assert profile.terms.head(16) == pytest.approx(2 * 116e-6)
    assert profile.terms.decode[ANY_BLOCK](8, 512) == pytest.approx(32e-6 * decode_us(8, 512))
    assert profile.terms.prefill[ANY_BLOCK](256, 1024 + 257 / 2) == pytest.approx(
        32e-6 * chunk_us(256, 1024), rel=1e-5
    )
    assert profile.sources["decode"] == "a test, vLLM 0.19.0"
    assert profile.origins["swap_in"] == "datasheet"
    assert profile.block_sizes == (ANY_BLOCK,)


def test_a_mixed_batch_takes_what_was_measured_of_one_and_not_the_sum(folder: Path) -> None:
    profile = imported(folder)
    cost = Profiled(profile, LLAMA, kv_dtype="bf16")
    # 8 sequences of 512 decode beside 256 tokens of a prompt.
    pairs = 256 * 257 // 2
    shape = IterationShape(264, 264, 8 * 512 + 256, 8 * 512, pairs, 0, 0, 0, 8, 9)
    attention = cost.parts(shape)
    both = attention["prompt attention"] + attention["decode attention"]
    assert both == pytest.approx(32e6 * (chunk_us(256, 0) + beside_us(8, 512)), rel=1e-4)
    assert cost.iteration(shape) == sum(attention.values())
    alone = cost.parts(step_shape(8, 8 * 512))["decode attention"]
    assert alone == pytest.approx(32e6 * decode_us(8, 512), rel=1e-4), "alone it takes what it took alone"


def test_mixed_batches_have_an_error_of_their_own_beside_that_of_a_sum(folder: Path) -> None:
    profile = imported(folder)
    assert profile.errors["decode_mixed"].points > 10
    assert profile.errors["decode_mixed"].worst < 1e-6, "what was measured here is a sum"
    assert "added, are wrong by" in profile.notes[-1]


def test_several_prompts_attend_to_fewer_keys_than_one_of_as_many_tokens(folder: Path) -> None:
    prefill = imported(folder).terms.prefill[ANY_BLOCK]
    one, four = 1024 * 1025 // 2, 4 * 256 * 257 // 2
    assert prefill(1024, four / 1024) == pytest.approx(32e-6 * (9 + 1e-4 * four), rel=0.1)
    assert prefill(1024, four / 1024) < prefill(1024, one / 1024)
    assert prefill(0, 0) == 0


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        ("dense.csv", "o_proj", "moe", "holds the operator 'moe'"),
        ("dense.csv", "act_fn,1,11", "act_fn,1,0", "act_fn of 1 tokens took 0.0 us"),
        ("per_sequence.csv", "sampler", "lm_head", "holds no row of sampler"),
        ("per_sequence.csv", "sampler,", "sampler,9", "at which all of lm_head, sampler were timed"),
        ("attention.csv", "kv_prefill", "history", "has no column kv_prefill"),
        ("attention.csv", "16,0,0,0,", "0,0,0,0,", "a row of 0 tokens behind 0 and 0 sequences"),
    ],
)
def test_a_file_that_is_no_such_table_is_refused(file, old, new, says, folder: Path) -> None:
    broken = folder / "tp1" / file
    broken.write_text(broken.read_text().replace(old, new))
    with pytest.raises(PagesimError, match=says):
        imported(folder)


def test_experts_are_refused(folder: Path) -> None:
    with pytest.raises(PagesimError, match="has experts"):
        import_llmservingsim(folder, model=model("mixtral-8x7b"), gpu=RTX, name="x")


@pytest.mark.parametrize(
    ("hardware", "name", "tp"), [("RTX4090", "rtx-4090", 1), ("RTXPRO6000", "rtx-pro-6000", 2)]
)
def test_the_published_tables_are_as_wrong_as_the_page_says(hardware, name, tp, shared: Path) -> None:
    folder = shared / "data" / "seconds" / "perf" / hardware / "meta-llama" / "Llama-3.1-8B" / "bf16"
    profile = import_llmservingsim(folder, model=LLAMA, gpu=gpu(name), tp=tp, name="x")
    bars = {"linear": 0.03, "head": 0.015, "decode": 0.05, "prefill": 0.045, "decode_mixed": 0.12}
    for term, bar in bars.items():
        assert profile.errors[term].points >= 8
        assert profile.errors[term].mean < bar, term
