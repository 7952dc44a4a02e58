"""Two pools share memory out as SGLang's do."""

from __future__ import annotations

import pytest

from pagesim.errors import PagesimError
from pagesim.models import model
from pagesim.sizing import plan_pools


def test_the_pools_of_gpt_oss_share_out_its_cache_by_the_ratio() -> None:
    plan = plan_pools(model("gpt-oss-20b"), block_size=1, ratio=0.8)
    assert plan is not None
    # 12 layers each, of 8 heads of 64 elements, keys and values in 2 bytes.
    assert (plan.full_bytes, plan.window_bytes) == (24576, 24576)
    assert plan.window == 127
    assert plan.blocks_in(10_000_000_000) == int(10_000_000_000 // (24576 + 0.8 * 24576))
    assert plan.holding(1001).window_blocks == 800


def test_pages_of_both_pools_are_whole() -> None:
    plan = plan_pools(model("gpt-oss-20b"), block_size=64, ratio=0.8)
    assert plan is not None
    blocks = plan.blocks_in(1_000_000_000)
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
