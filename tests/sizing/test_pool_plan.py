"""Two pools share memory out as SGLang's do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pagesim.errors import CapacityError, PagesimError
from pagesim.models import model
from pagesim.sizing import plan_pools, plan_states


def test_the_pools_of_gpt_oss_share_out_its_cache_by_the_ratio() -> None:
    plan = plan_pools(model("gpt-oss-20b"), block_size=1, ratio=0.8)
    assert plan is not None
    # 12 layers each, of 8 heads of 64 elements, keys and values in 2 bytes.
    assert (plan.full_bytes, plan.window_bytes) == (24576, 24576)
    assert plan.window == 127
    assert plan.within(10_000_000_000).num_blocks == int(10_000_000_000 // (24576 + 0.8 * 24576))
    assert plan.holding(1001).window_blocks == 800


def test_pages_of_both_pools_are_whole() -> None:
    plan = plan_pools(model("gpt-oss-20b"), block_size=64, ratio=0.8)
    assert plan is not None
    blocks = plan.within(1_000_000_000).num_blocks
    assert blocks == 1_000_000_000 // 44236.8 // 64
    assert plan.holding(7).window_blocks == 5  # of 5.6


def test_a_chunk_is_a_window_as_long() -> None:
    plan = plan_pools(model("llama4-scout"), block_size=1, ratio=0.8)
    assert plan is not None
    assert plan.window == 8192
    assert plan.window_bytes == 3 * plan.full_bytes


@pytest.mark.parametrize("name", ["gemma3-12b", "mistral-7b-v0.1", "llama-3-8b"])
def test_all_layers_of_others_keep_all_tokens_in_one_pool(name: str) -> None:
    assert plan_pools(model(name), block_size=1, ratio=0.8) is None


def test_a_pool_that_holds_no_window_is_refused() -> None:
    plan = plan_pools(model("gpt-oss-20b"), block_size=1, ratio=0.8)
    assert plan is not None
    plan.holding(162).check_start()
    with pytest.raises(PagesimError, match="leaves the pool of layers with a window 128 tokens"):
        plan.holding(160).check_start()


@pytest.mark.parametrize(
    ("name", "tp", "states", "tokens", "running"),
    [
        # What SGLang 0.5.23 made of 55.5 GiB (its own code, run on no GPU).
        ("qwen3-next-80b", 2, 729, 2_554_544, 145),
        ("qwen3-next-80b", 4, 1460, None, 292),
        ("nemotron-h-8b", 1, 275, 1_916_664, 55),
    ],
)
def test_states_get_nine_tenths_of_what_tokens_do(name, tp, states, tokens, running) -> None:
    plan = plan_states(model(name), block_size=1, of_a_request=5, tp=tp).within(int(55.5 * 2**30))
    assert (plan.states, plan.most_running) == (states, running)
    assert tokens in (None, plan.num_blocks)


def test_of_pages_that_are_given_it_is_not_known_how_many_states_there_are_beside_them() -> None:
    plan = plan_states(model("nemotron-h-8b"), block_size=1, of_a_request=1)
    with pytest.raises(PagesimError, match="how many states there is room for beside them is not known"):
        plan.holding(1000).check_start()
    with pytest.raises(CapacityError, match="room for 3 states; a request needs 5"):
        replace(plan, states=3, of_a_request=5).check_start()


def test_states_beside_layers_that_do_not_keep_all_tokens_are_refused() -> None:
    with pytest.raises(PagesimError, match="beside states SGLang is simulated for layers that attend to all"):
        plan_states(model("glm-5.3-flash"), block_size=1, of_a_request=5)
