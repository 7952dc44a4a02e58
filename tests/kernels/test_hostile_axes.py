"""The hostile grid's own parts: which values meet, its oracle, and that it sees what is wrong."""

from __future__ import annotations

from itertools import combinations, product
from math import inf, nan

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.kernels.hostile import dense  # noqa: E402
from tests.kernels.hostile.axes import AXES, allowed, problem_of  # noqa: E402
from tests.kernels.hostile.covering import covering  # noqa: E402
from tests.kernels.hostile.kernels import KERNELS  # noqa: E402


@pytest.fixture(scope="module")
def grid():
    """Every kernel's cases."""
    return {name: list(kernel.cases()) for name, kernel in KERNELS.items()}


@pytest.mark.parametrize("name", KERNELS)
def test_every_two_values_meet(name, grid):
    axes = KERNELS[name].all_axes
    met = {pair for case in grid[name] for pair in combinations(case.items(), 2)}
    for one, other in combinations(axes, 2):
        for a, b in product(axes[one], axes[other]):
            assert ((one, a), (other, b)) in met or not allowed({one: a, other: b}, axes)


def test_what_is_not_allowed_is_no_case_and_all_else_meets():
    axes = {"a": "12", "b": "xy", "c": "pqr"}
    cases = list(covering(axes, ["a"], lambda case: not (case.get("a") == "1" and case.get("b") == "y")))
    assert len(cases) < 12  # of all combinations
    met = {pair for case in cases for pair in combinations(case.values(), 2)}
    assert met == {*product("12", "xy"), *product("12", "pqr"), *product("xy", "pqr")} - {("1", "y")}


def case_of(**values):
    """Return the case of the first value of every axis but these."""
    return {**{axis: next(iter(named)) for axis, named in AXES.items()}, **values}


@pytest.mark.parametrize("window", [None, 3])
def test_the_oracle_of_variants_is_their_formula(window):
    """Of each query by hand: capped scores of the tokens in its window, and a sink beside them."""
    q, keys, values = torch.randn(2, 2, 8), torch.randn(6, 1, 8).double(), torch.randn(6, 1, 4).double()
    sinks = torch.tensor([0.3, -torch.inf])
    got = dense.attention(q, keys, values, 0.5, window=window, softcap=2.0, sinks=sinks)
    for row, head in product(range(2), range(2)):
        end = 5 + row
        tokens = slice(0 if window is None else end - window, end)
        scores = 2.0 * torch.tanh(keys[tokens, 0] @ q[row, head].double() * 0.5 / 2.0)
        total = scores.exp().sum() + sinks[head].double().exp()
        torch.testing.assert_close(got[row, head], scores.exp() @ values[tokens, 0] / total)


def exact(problem):
    scale = problem.head_dim**-0.5
    contexts = zip(problem.q.split(1), problem.contexts(), strict=True)
    return problem.out.copy_(torch.cat([dense.attention(q, *context, scale) for q, context in contexts]))


def test_the_grid_sees_what_is_wrong():
    case = case_of(contexts="b-1, b, b+1", block="16", heads="2x4", result="within more")
    problem = problem_of(case, AXES, seed=3)
    right = exact(problem)
    assert problem.excess(right) < 0.2  # rounded to float16
    assert problem.excess(right.clone()) == inf  # not where it was to be
    for wrong in (right.flip(1), right.roll(1, 0), right * 1.02):
        problem.out.copy_(wrong.clone())
        assert problem.excess(problem.out) > 1
    problem.out[1, 2, 3] = nan
    assert problem.excess(problem.out) == inf
    exact(problem)
    problem.out._base[0, 0, 0] = 0.0
    assert problem.excess(problem.out) == inf


def test_the_grid_sees_a_token_too_many_and_one_too_few():
    case = case_of(contexts="b-1, b, b+1", block="16", heads="2x4")
    problem = problem_of(case, AXES, seed=4)
    for shorter in (0, 1):
        contexts = [(keys[shorter:], values[shorter:]) for keys, values in problem.contexts()]
        rows = [
            dense.attention(q, *context, problem.head_dim**-0.5)
            for q, context in zip(problem.q.split(1), contexts, strict=True)
        ]
        problem.out.copy_(torch.cat(rows))
        assert (problem.excess(problem.out) > 1) == bool(shorter)


def test_unused_slots_are_poisoned_and_used_ones_are_not():
    problem = problem_of(case_of(contexts="b-1, b, b+1", block="16", poison="inf"), AXES, seed=5)
    tokens = problem.keys.isfinite().all(dim=-1).all(dim=-1).sum()
    assert tokens == 15 + 16 + 17
    assert (problem.keys.isinf() | problem.keys.isfinite()).all()
    assert (problem.table[:, 2:] == 2**31 - 1).all()
