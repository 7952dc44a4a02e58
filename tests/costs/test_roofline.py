"""The roofline cost model: what bounds an iteration, and by how much."""

from __future__ import annotations

import pytest

from pagesim.costs import (
    Efficiency,
    EngineTime,
    IterationShape,
    Roofline,
    Target,
    engine_time,
    parse_cost,
    step_shape,
)
from pagesim.errors import PagesimError
from pagesim.hardware import gpu
from pagesim.models import model
from pagesim.sim.clock import TICKS_PER_SECOND, to_ticks

NOTHING = IterationShape(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
IDEAL = Efficiency(flops=1, hbm=1, kv=1, link=1, prompts=1, experts=1, experts_hbm=1, launch_s=0)
FREE = EngineTime(graphs_to=1 << 20)
OPT, A100 = model("opt-13b"), gpu("a100-40gb")


def seconds(cost: Roofline, **shape: int) -> float:
    return cost.iteration(NOTHING._replace(**shape)) / TICKS_PER_SECOND


def decode(cost: Roofline, sequences: int, context: int) -> float:
    return cost.iteration(step_shape(sequences, context)) / TICKS_PER_SECOND


def test_a_small_decode_batch_takes_as_long_as_reading_the_weights_and_the_cache() -> None:
    got = decode(Roofline(OPT, A100, efficiency=IDEAL, engine=FREE), 1, 1000)
    assert got == pytest.approx((OPT.weight_bytes + 1000 * 819_200) / A100.hbm_bytes_per_s, rel=1e-3)


def test_a_long_prompt_is_bound_by_operations() -> None:
    tokens = 2048
    pairs = tokens * (tokens + 1) // 2
    got = seconds(
        Roofline(OPT, A100, efficiency=IDEAL, engine=FREE),
        batched_tokens=tokens,
        tokens=tokens,
        query_key_pairs=pairs,
        sampled=1,
    )
    head = OPT.lm_head_flops_per_token
    operations = tokens * (OPT.linear_flops_per_token - head) + pairs * OPT.attention_flops_per_pair
    # The LM head reads its weights for the one token that is sampled.
    head_s = 50_272 * 5120 * 2 / A100.hbm_bytes_per_s
    assert got == pytest.approx(operations / A100.fp16_flops + head_s, rel=1e-3)


def test_time_never_falls_as_work_is_added() -> None:
    cost = Roofline(OPT, A100)
    times = [decode(cost, batch, 100 * batch) for batch in (1, 2, 8, 32, 128, 256, 512, 1024)]
    assert times == sorted(times)
    assert times[-1] > 2 * times[0]


def test_swaps_cross_the_host_link_and_copies_the_gpus_memory() -> None:
    cost = Roofline(OPT, A100, efficiency=IDEAL, engine=FREE)
    block = 16 * 819_200
    assert seconds(cost, blocks_out=100) == pytest.approx(
        A100.host.latency_s + 100 * block / A100.host.bytes_per_s
    )
    plain = decode(cost, 4, 400)
    copied = seconds(cost, batched_tokens=4, tokens=4, decode_context=400, blocks_copied=50, sampled=4)
    assert copied - plain == pytest.approx(50 * 2 * block / A100.hbm_bytes_per_s, rel=1e-6)
    # PCIe 4.0: 10 us, and 7 blocks at 25 GB/s.
    parts = cost.parts(NOTHING._replace(blocks_out=3, blocks_in=4))
    assert parts["swaps"] / TICKS_PER_SECOND == pytest.approx(10e-6 + 7 * block / 25e9)


def test_tensor_parallelism_divides_the_work_and_pays_for_its_all_reduces() -> None:
    big = model("opt-66b")
    four, eight = (
        decode(Roofline(big, gpu("a100-80gb"), tp=tp, efficiency=IDEAL, engine=FREE), 8, 8000)
        for tp in (4, 8)
    )
    assert eight < four
    latency = 2 * big.layers * 5.657e-6  # of a message of 256 bytes among 8 A100s
    assert eight > four / 2 + latency / 2


def test_the_default_lands_near_a_step_of_the_papers_engine() -> None:
    # The paper's own runs are matched by 24 ms + 0.1 ms a token + 0.82 µs a token of context.
    got = decode(Roofline(OPT, A100, engine=engine_time("vllm-sosp")), 30, 12_000)
    assert got == pytest.approx(0.024 + 30 * 1e-4 + 12_000 * 8.2e-7, rel=0.15)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("roofline:speed=2", "takes flops, hbm, kv, link, prompts, .*, overhead_s, sequence_s, not 'speed'"),
        ("roofline:hbm=1.5", "at most 1"),
        ("roofline:launch_s=2", "launch_s is 2.0; it must be from 0 to 1 s"),
        ("roofline:overhead_s=-1", "overhead_s is -1.0; it must be from 0 to 10 s"),
        ("roofline:sequence_s=2", "sequence_s is 2.0; it must be from 0 to 1 s"),
        ("roofline:hbm=fast", "'fast' is not a number"),
        ("affine:1,2", "3 or 4 numbers"),
        ("affine:1,2,x", "'x' is not a number"),
        ("magic", "roofline"),
    ],
)
def test_a_cost_that_makes_no_sense_is_refused_in_a_sentence(text: str, says: str) -> None:
    with pytest.raises(PagesimError, match=says):
        parse_cost(text, Target(model=OPT, gpu=A100, tp=1, block_size=16, kv_dtype="fp16"))


def test_efficiencies_are_named_in_the_text() -> None:
    cost = parse_cost(
        "roofline:overhead_s=0.01", Target(model=OPT, gpu=A100, tp=1, block_size=16, kv_dtype="fp16")
    )
    assert cost.decode(1, 10)[0] - Roofline(OPT, A100).decode(1, 10)[0] == pytest.approx(7e9)


def test_the_engine_takes_its_time_an_iteration_and_a_sequence() -> None:
    engine, shape = EngineTime(2e-3, 1e-4), step_shape(3, 90, prompt=10)
    bare, whole = (Roofline(OPT, A100, engine=each) for each in (FREE, engine))
    assert whole.iteration(shape) - bare.iteration(shape) == to_ticks(2e-3) + 4 * to_ticks(1e-4)
    assert whole.decode(3, 90)[0] - bare.decode(3, 90)[0] == to_ticks(2e-3) + 3 * to_ticks(1e-4)
    assert whole.parts(shape)["overhead"] == to_ticks(2e-3) + 4 * to_ticks(1e-4)
    assert bare.parts(shape)["overhead"] == 0
    assert bare.parts(shape)["waiting for the host"] == 0
    moving = IterationShape(0, 0, 0, 0, 0, 5, 0, 0, 0, 0)
    assert whole.iteration(moving) == bare.iteration(moving), "a swap alone is no iteration of the model"


def test_an_engines_number_is_given_by_hand_one_by_one() -> None:
    own = EngineTime(2e-3, 1e-4, "measured")

    def of(text: str) -> int:
        target = {"model": OPT, "gpu": A100, "tp": 1, "block_size": 16, "kv_dtype": "fp16"}
        return parse_cost(text, Target(**target, engine=own)).decode(10, 100)[0]

    assert of("roofline:sequence_s=0") == of("roofline") - 10 * to_ticks(1e-4)
    assert of("roofline:overhead_s=0") == of("roofline") - to_ticks(2e-3)


# What the roofline takes at least


def test_each_kernel_of_a_layer_takes_a_launch_however_small_the_model() -> None:
    spec = model("qwen2.5-1.5b")
    with_launches = Roofline(spec, gpu("h100"), engine=FREE)
    without = Roofline(spec, gpu("h100"), engine=FREE, efficiency=Efficiency(launch_s=0))
    # 28 layers of two norms, four products, rotation, activation, residual and two parts of attention, 4 us.
    took = decode(with_launches, 1, 100) - decode(without, 1, 100)
    assert took == pytest.approx(28 * 11 * 4e-6, abs=1e-9)


def test_a_layer_with_experts_launches_five_kernels_more() -> None:
    spec = model("qwen3-30b-a3b")
    one, other = (
        decode(Roofline(spec, gpu("h100"), engine=FREE, efficiency=Efficiency(launch_s=each)), 1, 100)
        for each in (1e-6, 0)
    )
    assert one - other == pytest.approx(48 * (11 + 5) * 1e-6, abs=1e-9)


def test_experts_and_all_else_take_the_longer_of_reading_and_computing_each() -> None:
    # Mixtral: 32 layers of 8 experts of three matrices of 4096 x 14336, of which each token visits 2.
    spec, h200 = model("mixtral-8x7b"), gpu("h200")
    cost = Roofline(spec, h200, efficiency=IDEAL, engine=FREE)
    expert = 3 * 4096 * 14336
    all_else = 32 * (4096 * (4096 * 2 + 1024 * 2) + 4096 * 8)
    tokens = 200  # all experts are read; they are still bound by bytes, and so is all else
    read = 2 * (32 * 8 * expert + all_else) + tokens * 8 * 32 * 4096 * 2
    got = cost.parts(NOTHING._replace(tokens=tokens))["linear layers"] / TICKS_PER_SECOND
    assert got == pytest.approx(read / 4.8e12, rel=1e-3)
    tokens = 4000
    computed = 2 * tokens * (32 * 2 * expert + all_else)
    got = cost.parts(NOTHING._replace(tokens=tokens))["linear layers"] / TICKS_PER_SECOND
    assert got == pytest.approx(computed / 989.4e12, rel=1e-3)


def test_the_head_computes_sampled_tokens_alone() -> None:
    cost = Roofline(model("llama-3.1-8b"), gpu("h100"), efficiency=IDEAL, engine=FREE)
    read = 128_256 * 4096 * 2 / 3.35e12
    for sampled in (1, 100):
        got = cost.parts(NOTHING._replace(tokens=2000, sampled=sampled))["LM head"] / TICKS_PER_SECOND
        assert got == pytest.approx(read, rel=1e-4)
    assert cost.parts(NOTHING._replace(tokens=2000))["LM head"] == 0


@pytest.mark.parametrize(
    ("name", "tp", "tokens", "us"),
    [
        # 64 tokens of 8192 bf16 elements are 1 MiB, and two all-reduces a layer; as the tables have them.
        ("h100", 2, 64, 8.34),
        ("h100", 8, 64, 14.97),
        ("a100-80gb", 4, 64, 18.34),
        ("b200", 8, 64, 17.17),
        ("l40s", 2, 64, 60.25),
        ("l40s", 4, 64, 360.6),
        ("l40s", 8, 64, 582.6),
        # GeForce cards reach one another through the host, however many there are.
        ("rtx-4090", 2, 64, 360.6),
        ("rtx-4090", 8, 64, 360.6),
        ("rtx-pro-6000", 4, 64, 87.66),
        # Half way from 1 to 2 MiB, and twice the largest that was measured.
        ("h100", 4, 96, (12.76 + 18.6) / 2),
        ("h100", 4, 8192, 2 * 329.9),
        # Not among 3: among the next larger number.
        ("h100", 3, 64, 12.76),
    ],
)
def test_all_reduces_are_those_measured_over_the_link(name: str, tp: int, tokens: int, us: float) -> None:
    assert gpu(name).peer.all_reduce_s(tokens * 8192 * 2, tp) == pytest.approx(us * 1e-6, rel=1e-3)


def test_a_model_of_80_layers_waits_for_160_all_reduces() -> None:
    cost = Roofline(model("llama-3.1-70b"), gpu("h100"), tp=8, efficiency=IDEAL, engine=FREE)
    parts = cost.parts(NOTHING._replace(tokens=64, decoding=64, sampled=64))
    assert parts["all-reduces"] / TICKS_PER_SECOND == pytest.approx(160 * 14.97e-6, rel=1e-3)
    # A prompt that no graph launches: 16 us more each.
    bare = Roofline(model("llama-3.1-70b"), gpu("h100"), tp=8, efficiency=IDEAL, engine=EngineTime())
    parts = bare.parts(NOTHING._replace(tokens=64, query_key_pairs=2080, sampled=1))
    assert parts["all-reduces"] / TICKS_PER_SECOND == pytest.approx(160 * (14.97 + 16) * 1e-6, rel=1e-3)


def test_all_reduces_of_a_link_that_nobody_measured_are_those_of_a_ring() -> None:
    # Infinity Fabric: 448 GB/s, 5 us; each of 4 GPUs sends a MiB 3/2 times.
    link = gpu("mi300x").peer
    assert link.all_reduces is None
    assert link.all_reduce_s(1 << 20, 4) == pytest.approx(5e-6 + 1.5 * (1 << 20) / 448e9)
    assert link.all_reduce_s(1 << 20, 4, 0.5) == pytest.approx(5e-6 + 3 * (1 << 20) / 448e9)


def test_a_prompt_that_no_graph_launches_takes_what_the_host_needs() -> None:
    spec = model("llama-3.1-8b")
    shape = step_shape(0, 0, prompt=20)
    eager, graphed = (
        Roofline(spec, gpu("h200"), engine=EngineTime(1e-3, 0, graphs_to=each)) for each in (0, 32)
    )
    # 32 layers of 0.3 ms, and the engine's own millisecond.
    assert eager.iteration(shape) == to_ticks(32 * 0.3e-3 + 1e-3)
    assert graphed.iteration(shape) < eager.iteration(shape)
    parts = eager.parts(shape)
    assert sum(parts.values()) == pytest.approx(eager.iteration(shape), abs=4)
    assert parts["waiting for the host"] > 0


def test_it_says_how_far_it_was_off_by_kind_of_model() -> None:
    for name, kind in (("llama-3.1-8b", "dense models"), ("qwen3-30b-a3b", "models with experts")):
        (note,) = [each for each in Roofline(model(name), gpu("l4")).notes if "not fitted" in each]
        assert kind in note
        assert "either way" not in note


def test_a_geforces_products_reach_twice_the_share_of_a_peak_that_is_held_to_half() -> None:
    spec, tokens = model("llama-3.1-8b"), 2000
    cost = Roofline(spec, gpu("rtx-4090"), engine=FREE, efficiency=Efficiency(flops=0.45, launch_s=0))
    got = cost.parts(NOTHING._replace(tokens=tokens))["linear layers"] / TICKS_PER_SECOND
    # 32 layers of 4096 x (6144 + 4096 + 3 x 14336).
    computed = 2 * tokens * 32 * 4096 * (6144 + 4096 + 3 * 14336)
    assert got == pytest.approx(computed / (0.9 * 165.2e12), rel=1e-3)
