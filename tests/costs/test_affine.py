"""The affine cost model: exact on the picosecond."""

from __future__ import annotations

import pytest

from pagesim.costs import Affine, IterationShape
from pagesim.costs.parse import Target, parse_cost
from pagesim.errors import PagesimError
from pagesim.hardware import gpu
from pagesim.models import model
from pagesim.sim.clock import span_of, steps_before

NOTHING = IterationShape(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


def test_an_iteration_is_the_sum_of_its_parts() -> None:
    cost = Affine(0.024, 1e-4, 8.2e-7, 1e-3)
    shape = NOTHING._replace(batched_tokens=48, tokens=48, context_tokens=1000)
    assert cost.iteration(shape) == 24_000_000_000 + 48 * 100_000_000 + 1000 * 820_000
    assert cost.iteration(shape._replace(blocks_out=3)) == cost.iteration(shape) + 3 * 10**9
    assert cost.parts(shape._replace(blocks_out=3, blocks_in=4)) == {
        "step": 24_000_000_000,
        "tokens": 4_800_000_000,
        "context": 820_000_000,
        "swaps": 7 * 10**9,
    }


def test_an_iteration_that_only_swaps_takes_the_transfer_alone() -> None:
    assert Affine(0.024, 1e-4, 8.2e-7, 1e-3).iteration(NOTHING._replace(blocks_out=5)) == 5 * 10**9


@pytest.mark.parametrize("increment", [0, 1, 7, 10**6])
@pytest.mark.parametrize("first", [1, 13, 10**9])
def test_the_steps_before_an_instant_are_those_that_start_before_it(first: int, increment: int) -> None:
    for span in [-5, 0, 1, 2, first - 1, first, first + 1, 5 * first + 10 * increment, 10**12 + 17]:
        if span > 10**7 * first:
            continue
        steps = steps_before(first, increment, span)
        assert span_of(first, increment, steps) >= span
        assert steps == 0 or span_of(first, increment, steps - 1) < span


@pytest.mark.parametrize(
    "numbers", [(-1, 0, 0), (0, float("nan"), 0), (0, 0, float("inf")), (1, 1, 1, -1), (0, 0, 1)]
)
def test_coefficients_that_make_no_time_are_refused(numbers: tuple[float, ...]) -> None:
    with pytest.raises(PagesimError, match="cost affine"):
        Affine(*numbers)


@pytest.mark.parametrize(("text", "block_s"), [("affine:0.5,0.25,0.125", 0), ("affine:0.5,0.25,0.125,2", 2)])
def test_three_numbers_are_read_and_a_fourth_where_there_is_one(text: str, block_s: int) -> None:
    cost = parse_cost(text, Target(model("opt-13b"), gpu("a100-40gb"), tp=1, block_size=16, kv_dtype="fp16"))
    shape = NOTHING._replace(batched_tokens=3, tokens=3, context_tokens=4, blocks_out=1)
    assert cost.iteration(shape) == (0.5 + 3 * 0.25 + 4 * 0.125 + block_s) * 1e12
