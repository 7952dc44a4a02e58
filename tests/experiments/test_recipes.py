"""Lines that recipes publish with the capacity of their cache, beside the plans of these lines."""

from __future__ import annotations

import pytest

from tests.pages import module_of

PAGE = module_of("docs/make_plan.py")
RECIPES = PAGE.recipes()
TOLD = 0.1


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: f"{recipe.row['source']} {recipe.published}")
def test_the_plan_of_a_line_has_the_capacity_that_is_published_or_a_cause_is_named(recipe) -> None:
    if recipe.error is not None:
        assert (abs(recipe.error) > TOLD) == bool(recipe.row["cause"]), recipe.error
    if recipe.gib is not None:
        least, most = recipe.from_gib
        assert least <= recipe.published <= most
    if recipe.row["concurrency"]:
        assert f"{recipe.published / recipe.planned.blocks.max_model_len:.2f}" == recipe.row["concurrency"]


def test_a_line_with_context_parallel_decoding_has_so_many_times_the_tokens() -> None:
    # 61 latent layers of 576 numbers of 2 bytes, in blocks of 16 tokens, on each of 8 GPUs.
    block = 61 * 576 * 2 * 16
    alone, divided = (each.planned.blocks for each in RECIPES if "Kimi" in each.row["source"])
    assert alone.bytes_per_block == divided.bytes_per_block == block
    assert divided.tokens == 8 * alone.tokens
    assert RECIPES[0].from_gib == tuple(int(gib * 2**30) // block * 16 for gib in (46.795, 46.805))
