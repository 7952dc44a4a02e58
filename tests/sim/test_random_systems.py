"""Random systems decide the same with fast-forward and stepping, over counted and over tabled memory."""

from __future__ import annotations

from collections import Counter
from itertools import count, islice

import pytest

from tests.sim.random_systems import check, policy_of

PART = 70

POOLS = ("with a pool of windows", "with a pool of states")
"""Which only systems of SGLang have."""


def check_part(part: int) -> Counter[str]:
    return sum((check(seed) for seed in range(1 + part * PART, 1 + (part + 1) * PART)), Counter())


@pytest.mark.parametrize("part", range(2))
def test_random_systems_decide_the_same_in_all_ways(part: int) -> None:
    found = check_part(part)
    assert found["cases"] > PART / 2
    kinds = [found[name] for name in found if name.startswith("with ") and name not in POOLS]
    assert len(kinds) == 12
    assert min(kinds) > 0, found


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2, 10))
def test_many_random_systems_decide_the_same_in_all_ways(part: int) -> None:
    assert check_part(part)["cases"] > PART / 2


def check_sglang(first: int, last: int) -> Counter[str]:
    seeds = (seed for seed in count(1) if policy_of(seed) == "sglang")
    return sum((check(seed) for seed in islice(seeds, first, last)), Counter())


def test_random_systems_of_sglang_decide_the_same_in_all_ways() -> None:
    found = check_sglang(0, 30)
    assert found["cases"] > 25
    kinds = ("prefix hits", "retracted requests", "drafts", "a pool of windows", "a pool of states")
    assert min(found[f"with {kind}"] for kind in kinds) > 0, found


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_many_random_systems_of_sglang_do(part: int) -> None:
    assert check_sglang(30 + part * 100, 30 + (part + 1) * 100)["cases"] >= 80


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(7237, id="a request that was loaded shares blocks that a copy reads"),
        pytest.param(31092, id="what an aborted request generated is found while a copy reads it"),
        pytest.param(308646, id="the last chunk of a prompt makes room for a load"),
        pytest.param(120921, id="what the device has of a request that waits is evicted beside a copy"),
        pytest.param(5026382, id="a request that is loaded shares blocks with one that was aborted"),
        pytest.param(7367637, id="the only prompt that memory keeps waiting is aborted"),
        pytest.param(7404278, id="a request is aborted before the end, in a batch that ends after it"),
        pytest.param(
            200114, id="a request that found no room waits for a chunk that another begins to store"
        ),
    ],
)
def test_systems_with_a_tier_that_once_differed_decide_the_same(seed: int) -> None:
    assert check(seed)["cases"] == 1


def test_an_abort_after_the_end_of_a_run_is_none_in_any_way() -> None:
    assert check(5035636)["with aborts"] == 1
