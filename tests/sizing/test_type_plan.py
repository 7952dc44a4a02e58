"""Pages of layer types: how large they are, and how types share memory."""

from __future__ import annotations

from typing import Any

import pytest

from pagesim.errors import CapacityError, PagesimError
from pagesim.models import model
from pagesim.models.layers import FullLayer, StateLayer, WindowLayer
from pagesim.sizing import TypePlan, plan_types


def planned(name: str, layout: Any = "large-pages", **options: Any) -> TypePlan:
    how = {"max_model_len": 8192, "in_flight_tokens": 2048, **options}
    return plan_types(model(name).cache_layers, layout, **how)


def small_pages(plan: TypePlan) -> list[int]:
    return [plan.bytes_per_block // each.page_bytes for each in plan.types]


@pytest.mark.parametrize(
    ("name", "layers", "in_a_large_page"),
    [("gemma3-27b", [52, 10], [5, 26]), ("gpt-oss-20b", [12, 12], [1, 1]), ("llama-2-7b", [32], [1])],
)
def test_a_large_page_is_cut_evenly_for_every_type(name, layers, in_a_large_page):
    plan = planned(name)
    assert [len(each.places) for each in plan.types] == layers
    assert small_pages(plan) == in_a_large_page


def test_a_page_of_a_type_has_sixteen_tokens_of_all_its_layers():
    window, full = planned("gemma3-27b").types
    layer = 2 * 16 * 128 * 2
    assert (window.block_size, window.page_bytes, full.page_bytes) == (16, 16 * 52 * layer, 16 * 10 * layer)
    assert planned("gemma3-27b", block_size=32).types[1].page_bytes == 2 * full.page_bytes
    assert planned("gemma3-27b", tp=2).types[1].page_bytes == full.page_bytes // 2


def test_layers_of_one_rule_that_keep_different_bytes_are_different_types():
    layers = [FullLayer(8, 64), WindowLayer(8, 64, window=9), FullLayer(4, 64), WindowLayer(8, 64, window=7)]
    plan = plan_types([*layers, layers[0]], "pools", max_model_len=100, in_flight_tokens=10)
    assert [each.places for each in plan.types] == [(0, 4), (1,), (2,), (3,)]


def test_a_state_is_a_page_as_long_as_the_longest_request():
    state = StateLayer(conv=(3, 10), state=(4, 25), state_dtype="fp32")
    plan = plan_types([state, FullLayer(1, 5), state], "large-pages", max_model_len=100, in_flight_tokens=10)
    states, full = plan.types
    assert (states.block_size, states.most_pages, states.page_bytes) == (100, 1, 2 * (60 + 400))
    assert (full.most_pages, full.page_bytes, plan.block_size) == (7, 16 * 20, 16)


def test_pools_are_as_large_as_one_longest_request_takes_of_each():
    plan = planned("gemma3-27b", "pools").holding(1000)
    needs = [each.most_pages * each.page_bytes for each in plan.types]
    shares = [own * each.page_bytes for own, each in zip(plan.pools, plan.types, strict=True)]
    rest = 1000 * plan.bytes_per_block - sum(shares)
    assert 0 <= rest < sum(each.page_bytes for each in plan.types)
    assert shares[0] / shares[1] == pytest.approx(needs[0] / needs[1], rel=0.01)


@pytest.mark.parametrize("layout", ["large-pages", "pools"])
def test_a_cache_starts_if_it_holds_one_longest_request(layout):
    plan = planned("gemma3-27b", layout, max_model_len=50_000)
    fewest = next(blocks for blocks in range(1, 10_000) if plan.holding(blocks).longest == 50_000)
    plan.holding(fewest).check_start()
    shorter = plan.holding(fewest - 1)
    with pytest.raises(CapacityError, match=f"lower max_model_len to at most {shorter.longest}"):
        shorter.check_start()
    assert 0 < shorter.longest < 50_000


def test_a_cache_without_room_for_a_token_needs_more_memory():
    with pytest.raises(CapacityError, match="have for it: give the cache more memory"):
        planned("gemma3-27b").holding(1).check_start()


@pytest.mark.parametrize("name", ["block_size", "max_model_len", "in_flight_tokens"])
def test_sizes_are_at_least_one(name):
    with pytest.raises(PagesimError, match=f"{name} is 0; it must be at least 1"):
        planned("gemma3-27b", **{name: 0})
