"""The roofline cost model: what bounds an iteration, and by how much."""

from __future__ import annotations

import pytest

from pagesim.costs import (
    Efficiency,
    EngineTime,
    IterationShape,
    Roofline,
    engine_time,
    parse_cost,
    step_shape,
)
from pagesim.errors import PagesimError
from pagesim.hardware import gpu
from pagesim.models import model
from pagesim.sim.clock import TICKS_PER_SECOND, to_ticks

NOTHING = IterationShape(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
IDEAL = Efficiency(flops=1, hbm=1, kv=1, link=1)
FREE = EngineTime()
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
    )
    operations = tokens * OPT.linear_flops_per_token + pairs * OPT.attention_flops_per_pair
    assert got == pytest.approx(operations / A100.fp16_flops, rel=1e-3)


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
    copied = seconds(
        cost, batched_tokens=4, tokens=4, context_tokens=400, decode_context=400, blocks_copied=50
    )
    assert copied - plain == pytest.approx(50 * 2 * block / A100.hbm_bytes_per_s, rel=1e-6)


def test_tensor_parallelism_divides_the_work_and_pays_for_its_all_reduces() -> None:
    big = model("opt-66b")
    four, eight = (
        decode(Roofline(big, gpu("a100-80gb"), tp=tp, efficiency=IDEAL, engine=FREE), 8, 8000)
        for tp in (4, 8)
    )
    assert eight < four
    latency = 2 * big.layers * gpu("a100-80gb").peer.latency_s
    assert eight > four / 2 + latency / 2


def test_the_default_lands_near_a_step_of_the_papers_engine() -> None:
    # The paper's own runs are matched by 24 ms + 0.1 ms a token + 0.82 µs a token of context.
    got = decode(Roofline(OPT, A100, engine=engine_time("vllm-sosp")), 30, 12_000)
    assert got == pytest.approx(0.024 + 30 * 1e-4 + 12_000 * 8.2e-7, rel=0.15)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("roofline:speed=2", "takes flops, hbm, kv, link, overhead_s, sequence_s, not 'speed'"),
        ("roofline:hbm=1.5", "at most 1"),
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
        parse_cost(text, model=OPT, gpu=A100, tp=1, block_size=16, kv_dtype="fp16")


def test_efficiencies_are_named_in_the_text() -> None:
    cost = parse_cost("roofline:overhead_s=0.01", model=OPT, gpu=A100, tp=1, block_size=16, kv_dtype="fp16")
    assert cost.decode(1, 10)[0] - Roofline(OPT, A100).decode(1, 10)[0] == pytest.approx(7e9)


def test_the_engine_takes_its_time_an_iteration_and_a_sequence() -> None:
    engine, shape = EngineTime(2e-3, 1e-4), step_shape(3, 90, prompt=10)
    bare, whole = (Roofline(OPT, A100, engine=each) for each in (FREE, engine))
    assert whole.iteration(shape) - bare.iteration(shape) == to_ticks(2e-3) + 4 * to_ticks(1e-4)
    assert whole.decode(3, 90)[0] - bare.decode(3, 90)[0] == to_ticks(2e-3) + 3 * to_ticks(1e-4)
    assert whole.parts(shape)["overhead"] == to_ticks(2e-3) + 4 * to_ticks(1e-4)
    assert bare.parts(shape)["overhead"] == 0
    moving = IterationShape(0, 0, 0, 0, 0, 5, 0, 0, 0, 0)
    assert whole.iteration(moving) == bare.iteration(moving), "a swap alone is no iteration of the model"


def test_an_engines_number_is_given_by_hand_one_by_one() -> None:
    own = EngineTime(2e-3, 1e-4, "measured")

    def of(text: str) -> int:
        target = {"model": OPT, "gpu": A100, "tp": 1, "block_size": 16, "kv_dtype": "fp16"}
        return parse_cost(text, **target, engine=own).decode(10, 100)[0]

    assert of("roofline:sequence_s=0") == of("roofline") - 10 * to_ticks(1e-4)
    assert of("roofline:overhead_s=0") == of("roofline") - to_ticks(2e-3)
