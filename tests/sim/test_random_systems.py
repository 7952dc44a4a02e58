"""Random systems decide the same with fast-forward and stepping, over counted and over tabled memory."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.sim.random_systems import check

PART = 70


def check_part(part: int) -> Counter[str]:
    return sum((check(seed) for seed in range(1 + part * PART, 1 + (part + 1) * PART)), Counter())


@pytest.mark.parametrize("part", range(2))
def test_random_systems_decide_the_same_in_four_ways(part: int) -> None:
    found = check_part(part)
    assert found["cases"] > PART / 2
    kinds = [found[name] for name in found if name.startswith("with ")]
    assert len(kinds) == 12
    assert min(kinds) > 0, found


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2, 25))
def test_many_random_systems_decide_the_same_in_four_ways(part: int) -> None:
    assert check_part(part)["cases"] > PART / 2


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(7237, id="a request that was loaded shares blocks that a copy reads"),
        pytest.param(31092, id="what an aborted request generated is found while a copy reads it"),
        pytest.param(308646, id="the last chunk of a prompt makes room for a load"),
        pytest.param(120921, id="what the device has of a request that waits is evicted beside a copy"),
        pytest.param(
            200114, id="a request that found no room waits for a chunk that another begins to store"
        ),
    ],
)
def test_systems_with_a_tier_that_once_differed_decide_the_same(seed: int) -> None:
    assert check(seed)["cases"] == 1
