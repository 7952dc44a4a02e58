"""The roofline of layers of several kinds: windows, chunks, picked tokens, states and experts, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pagesim as ps
from pagesim.costs import (
    Assuming,
    AttentionSpan,
    Efficiency,
    EngineTime,
    IterationShape,
    Profiled,
    ReadsSpans,
    Roofline,
)
from pagesim.costs.attended import attended, states
from pagesim.costs.profiles import analytic_profile, bundled_profile, rescale
from pagesim.costs.profiles.bounds import Bounds
from pagesim.errors import PagesimError
from pagesim.hardware import gpu
from pagesim.models import ModelSpec, model
from pagesim.models.layers import (
    ChunkLayer,
    FullLayer,
    IndexerLayer,
    LatentLayer,
    StateLayer,
    WindowLayer,
)
from pagesim.models.parts import LatentAttention, MixtureOfExperts
from pagesim.scheduling.attention_spans import LastTokens
from pagesim.sim.clock import TICKS_PER_SECOND

NOTHING = IterationShape(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
IDEAL = Efficiency(flops=1, hbm=1, kv=1, link=1, prompts=1, experts=1, experts_hbm=1, launch_s=0)
FREE = EngineTime(graphs_to=1 << 20)
H100 = gpu("h100")
FULL = FullLayer(8, 128)
KV_BYTES = 2 * 8 * 128 * 2
"""Of a token of ``FULL``, and of a layer of windows or chunks that is as wide."""


def of_layers(*cached, **others) -> ModelSpec:
    sizes = (max(1, len(cached)), 256, 512, 8, 8, 128, 1000, 1 << 20)
    return ModelSpec("made-up", *sizes, "made up", cached=cached, **others)


def attention_s(spec: ModelSpec, **shape) -> float:
    """Return the seconds of attention and states: those of an iteration less the linear layers'."""
    cost = Roofline(spec, H100, efficiency=IDEAL, engine=FREE)
    parts = cost.parts(NOTHING._replace(**shape))
    assert cost.iteration(NOTHING._replace(**shape)) == pytest.approx(sum(parts.values()), abs=4)
    return sum(ticks for name, ticks in parts.items() if name != "linear layers") / TICKS_PER_SECOND


def test_a_window_is_read_and_not_what_lies_before_it():
    # Sequences of 100 and 5000 tokens: within a window of 1024 stand 100 and 1024.
    spec = of_layers(FULL, WindowLayer(8, 128, 1024), WindowLayer(8, 128, 1024))
    got = attention_s(spec, tokens=2, decoding=2, decode_context=5100, reached=(1124,))
    assert got == pytest.approx((5100 + 2 * 1124) * KV_BYTES / H100.hbm_bytes_per_s, rel=1e-3)


def test_a_window_grows_with_the_sequence_that_is_shorter_alone():
    cost = Roofline(of_layers(FULL, WindowLayer(8, 128, 1024)), H100, efficiency=IDEAL, engine=FREE)
    a_token = cost.decode_reached(1, 1, [(1, 1, 9)])[1] // 2
    assert cost.spans == (AttentionSpan("window", 1024),)
    # The one of 100 tokens grows by itself in the window for 924 more steps: 925 with the first.
    window = LastTokens(1024)
    for base in (100, 5000):
        window.enter(base)
    ahead = window.at(0)
    assert ahead == (1124, 1, 925)
    first, increment, steps = cost.decode_reached(2, 5100, [ahead])
    assert steps == 925
    assert increment == a_token * 2 + a_token
    for step in (0, 1, 500, 924, 925):
        shape = NOTHING._replace(
            tokens=2,
            decoding=2,
            sampled=2,
            decode_context=5100 + 2 * step,
            reached=(min(100 + step, 1024) + 1024,),
        )
        assert (cost.iteration(shape) == first + increment * step) == (step < steps)


def test_each_width_of_window_is_a_reach_of_its_own():
    spec = of_layers(WindowLayer(8, 128, 128), WindowLayer(8, 128, 1024), FULL, WindowLayer(8, 128, 128))
    cost = Roofline(spec, H100, efficiency=IDEAL, engine=FREE)
    assert cost.spans == (AttentionSpan("window", 128), AttentionSpan("window", 1024))
    got = attention_s(spec, tokens=1, decoding=1, decode_context=3000, reached=(128, 1024))
    assert got == pytest.approx((3000 + 2 * 128 + 1024) * KV_BYTES / H100.hbm_bytes_per_s, rel=1e-3)


def test_a_chunk_layer_reads_the_tokens_since_its_chunk_began():
    got = attention_s(
        of_layers(FULL, ChunkLayer(8, 128, 8192)), tokens=1, decoding=1, decode_context=9000, reached=(808,)
    )
    assert got == pytest.approx((9000 + 808) * KV_BYTES / H100.hbm_bytes_per_s, rel=1e-3)


def test_a_prompt_attends_within_the_window():
    spec = of_layers(FULL, WindowLayer(8, 128, 10))
    pairs, within = 1000 * 1001 // 2, 10 * 11 // 2 + 990 * 10
    got = attention_s(spec, tokens=1000, query_key_pairs=pairs, reached_pairs=(within,), computed_prompts=1)
    assert got == pytest.approx((pairs + within) * 4 * 8 * 128 / H100.fp16_flops, rel=1e-3)


def test_a_state_is_read_and_written_once_a_sequence_whatever_the_context():
    # In bf16 8 heads of 64 × 16, and 3 tokens of 64 channels.
    spec = of_layers(FULL, StateLayer((3, 64), (8, 64, 16)))
    state = 2 * (8 * 64 * 16 + 3 * 64)
    short, long = (
        attention_s(spec, tokens=5, decoding=5, decode_context=context) for context in (50, 50_000)
    )
    kv = KV_BYTES / H100.hbm_bytes_per_s
    assert short == pytest.approx(5 * 2 * state / H100.hbm_bytes_per_s + 50 * kv, rel=1e-3)
    assert long - short == pytest.approx(49_950 * kv, rel=1e-3)


def test_states_are_computed_with_for_each_token_of_a_prompt_and_moved_once():
    spec = of_layers(FULL, StateLayer((3, 64), (8, 64, 16)))
    once = 2 * 2 * (8 * 64 * 16 + 3 * 64) / H100.hbm_bytes_per_s
    got = attention_s(spec, tokens=700, computed_prompts=2)
    assert got == pytest.approx(2 * once + 6 * 8 * 64 * 16 * 700 / H100.fp16_flops, rel=1e-3)


def sparse(topk: int) -> ModelSpec:
    mla = LatentAttention(512, 64, 128, 128, index_heads=64, index_head_dim=128, index_topk=topk)
    return of_layers(LatentLayer(576, 656), IndexerLayer(132), mla=mla)


def test_an_indexer_looks_at_all_tokens_and_latent_vectors_are_read_of_those_it_picks():
    got = attention_s(sparse(2048), tokens=1, decoding=1, decode_context=100_000, reached=(2048,))
    assert got == pytest.approx((100_000 * 132 + 2048 * 656) / H100.hbm_bytes_per_s, rel=0.02)


def test_latent_vectors_are_attended_to_as_they_are_and_in_whole_prompts_by_keys_and_values():
    # 64 index heads of width 128; 8 heads, for which a vector of 512 is key and value, and 64 more are key.
    indexer, absorbed = 2 * 64 * 128, 2 * 8 * (512 + 64 + 512)
    assert attended(sparse(2048), "bf16", 1) == {
        None: (132, indexer, indexer),
        AttentionSpan("sparse", 2048): (656, absorbed, absorbed),
    }
    # Nothing is picked: prompts have keys of 128 and 64, and values of 128.
    whole = 2 * 8 * (128 + 64 + 128)
    assert attended(sparse(0), "bf16", 1) == {None: (788, indexer + absorbed, indexer + whole)}


def test_where_it_is_not_known_how_many_it_picks_all_are_read_and_a_note_says_so():
    cost = Roofline(sparse(0), H100, efficiency=IDEAL, engine=FREE)
    assert cost.spans is None
    got = attention_s(sparse(0), tokens=1, decoding=1, decode_context=100_000)
    assert got == pytest.approx(100_000 * (132 + 656) / H100.hbm_bytes_per_s, rel=0.02)
    assert any("index_topk" in note for note in cost.notes)
    assert not any("index_topk" in note for note in Roofline(model("deepseek-v3.2"), H100, tp=8).notes)


def test_a_model_of_windows_alone_takes_no_longer_once_they_are_full():
    cost = Roofline(of_layers(WindowLayer(8, 128, 8)), H100)
    assert cost.decode_reached(3, 3000, [(24, 0, 99)])[1:] == (0, 99)


@given(st.integers(1, 3000), st.lists(st.integers(1, 9000), min_size=1, max_size=20))
def test_a_window_is_never_slower_than_attention_to_all_tokens(window, lengths):
    layers = (FULL,) * 5
    full = Roofline(of_layers(*layers), H100)
    windows = Roofline(of_layers(FULL, *(WindowLayer(8, 128, window),) * 4), H100)
    read = sum(min(length, window) for length in lengths)
    shape = NOTHING._replace(tokens=len(lengths), decoding=len(lengths), decode_context=sum(lengths))
    # Both round a token of context to whole ticks, the second one twice.
    slack = sum(lengths)
    assert windows.iteration(shape._replace(reached=(read,))) <= full.iteration(shape) + slack
    assert windows.iteration(shape) == pytest.approx(full.iteration(shape), abs=slack)


# Experts


def test_experts_are_read_as_far_as_tokens_are_expected_to_visit_them():
    moe = MixtureOfExperts(4, 1, 8)
    # One token visits one of four; two visit 7/4 in the mean: 1 with probability 1/4, else 2.
    assert [4 * moe.touched(tokens) for tokens in (0, 1, 2)] == pytest.approx([0, 1, 7 / 4])
    assert moe.touched(100) == pytest.approx(1)
    spec = of_layers(FULL, moe=MixtureOfExperts(64, 2, 128))
    cost = Roofline(spec, H100, efficiency=IDEAL, engine=FREE)
    expert = 2 * 3 * 256 * 128  # three matrices in bf16
    # The table of tokens, padded to 1024 rows, is looked up in; the head's 24 rows of padding are not read.
    dense = spec.weight_bytes - 64 * expert - 2 * (1024 + 24) * 256
    activations = 8 * 256 * 2
    for tokens, touched in ((1, 2), (2, 2 + 2 * 62 / 64)):
        got = cost.iteration(NOTHING._replace(tokens=tokens, sampled=tokens)) / TICKS_PER_SECOND
        want = dense + touched * expert + tokens * activations
        assert got == pytest.approx(want / H100.hbm_bytes_per_s, rel=1e-5)


def test_a_large_batch_reads_all_experts_and_none_more():
    spec = model("mixtral-8x7b")
    cost = Roofline(spec, gpu("h200"), efficiency=IDEAL, engine=FREE)
    weights = cost.parts(NOTHING._replace(tokens=64))["linear layers"] / TICKS_PER_SECOND
    tables = 2 * 2 * 32_000 * 4096  # tokens', and the LM head's
    read = spec.weight_bytes - tables + 64 * 8 * spec.layers * spec.hidden * 2
    assert weights == pytest.approx(read / gpu("h200").hbm_bytes_per_s, rel=1e-6)


def test_experts_of_a_type_of_their_own_are_read_in_it():
    moe = MixtureOfExperts(64, 2, 128)
    spec = of_layers(FULL, moe=moe).with_weights("mxfp4")
    assert spec.expert_bytes_per_gpu(1) == 64 * 3 * 256 * 128 * 4.25 / 8
    assert spec.expert_bytes_per_gpu(4) == spec.expert_bytes_per_gpu(1) / 4
    assert model("llama-3-8b").expert_bytes_per_gpu(1) == 0


def test_an_analytic_profile_reads_experts_likewise():
    spec = model("mixtral-8x7b")
    bounds = Bounds(spec, H100)
    assert bounds.linear(1) < 0.31 * bounds.linear(64)
    profiled = Profiled(analytic_profile(H100, spec), spec)
    assert any("uniformly" in note for note in profiled.notes)
    assert Profiled(analytic_profile(H100, model("llama-3-8b")), model("llama-3-8b")).notes == ()


# What is said and refused


def test_plain_models_ask_for_nothing_and_assume_nothing():
    for name in ("opt-13b", "llama-3-8b", "qwen3-32b"):
        cost = Roofline(model(name), H100)
        assert isinstance(cost, ReadsSpans)
        assert isinstance(cost, Assuming)
        assert cost.spans is None
        assert len(cost.notes) == 1, "how far it was off"
    assert Roofline(model("deepseek-v3"), H100).spans is None


def test_layers_that_no_term_describes_are_refused_by_profiles():
    spec = model("gemma3-27b")
    with pytest.raises(PagesimError, match=r"gemma3-27b are 10 full, 52 window 1024; choose cost roofline"):
        Profiled(analytic_profile(H100, spec), spec)
    profile, of = bundled_profile("llama-2-7b-a100-tp1"), model("llama-2-7b")
    with pytest.raises(PagesimError, match="knows attention to all tokens only"):
        rescale(profile, of, gpu("a100-80gb"), model=spec, gpu=H100, name="x")


TRACE = ps.make_trace("fixed:900,150", arrivals="all-at-once", num_requests=6)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("gemma3-27b", {}, []),
        ("gpt-oss-20b", {}, ["mxfp4 weights of gpt-oss-20b (experts)", "4 of 32 experts uniformly"]),
        ("llama4-scout", {"tensor_parallel_size": 4}, ["1 of 16 experts", "chunk layers"]),
        (
            "qwen3-next-80b",
            {"gpu": "h200", "tensor_parallel_size": 2},
            ["10 of 512 experts", "recurrent layers"],
        ),
        (
            "deepseek-v3.2",
            {"gpu": "h200", "tensor_parallel_size": 8},
            ["fp8_block weights", "8 of 256 experts"],
        ),
    ],
)
def test_models_run_under_vllm_v1_and_say_what_was_assumed(name, options, says):
    system = {"model": name, "gpu": "h100", "cost": "roofline", "max_model_len": 4096, **options}
    forward = ps.simulate(TRACE, "vllm-v1", **system)
    stepping = ps.simulate(TRACE, "vllm-v1", **system, fast_forward=False)
    assert forward.requests.equals(stepping.requests)
    found = [note for note in forward.notes if note.startswith("cost roofline takes")]
    assert len(found) == len(says)
    assert all(part in note for part, note in zip(says, found, strict=True))


def test_a_scheduler_that_cannot_tell_what_is_within_reach_is_charged_for_all_and_a_note_says_so():
    spec = model("mistral-7b-v0.1")
    result = ps.simulate(TRACE, "vllm-sosp", model=spec.name, gpu="h100", cost="roofline")
    assert any("within the span" in note for note in result.notes)
    cost = Roofline(replace(spec, cached=()), H100)
    first, increment, _ = cost.decode(6, 5400)
    other = Roofline(spec, H100).decode(6, 5400)
    assert other[:2] == (first, increment)


def test_states_are_divided_by_heads() -> None:
    """Qwen3-Next 80B: 36 of 48 layers with 32 heads of 128 × 128 numbers, on four GPUs."""
    assert states(model("qwen3-next-80b"), 4)[1] == 36 * 32 * 128 * 128 / 4
