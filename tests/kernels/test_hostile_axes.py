"""The hostile grid's own parts: which values meet, its oracle, and that it sees what is wrong."""

from __future__ import annotations

from itertools import combinations, product
from math import inf, nan

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pagesim.kernels import plain  # noqa: E402
from tests.kernels.hostile import dense  # noqa: E402
from tests.kernels.hostile.axes import AXES, LIES, allowed, problem_of  # noqa: E402
from tests.kernels.hostile.covering import covering  # noqa: E402
from tests.kernels.hostile.kernels import KERNELS  # noqa: E402
from tests.kernels.hostile.problems import lay_out  # noqa: E402


@pytest.fixture(scope="module")
def grid():
    """Every kernel's cases."""
    return {name: list(kernel.cases()) for name, kernel in KERNELS.items()}


def test_there_are_at_least_600_cases(grid):
    assert sum(map(len, grid.values())) >= 600


@pytest.mark.parametrize("name", KERNELS)
def test_every_two_values_meet(name, grid):
    axes = KERNELS[name].all_axes
    met = {pair for case in grid[name] for pair in combinations(case.items(), 2)}
    for one, other in combinations(axes, 2):
        for a, b in product(axes[one], axes[other]):
            assert ((one, a), (other, b)) in met or not allowed({one: a, other: b}, axes)


def test_decode_meets_every_block_size_with_every_head_size_and_layout(grid):
    met = {(case["block"], case["head_dim"], case["layout"]) for case in grid["decode"]}
    assert met == set(
        product(*(KERNELS["decode"].all_axes[axis] for axis in ("block", "head_dim", "layout")))
    )


def test_what_is_not_allowed_is_no_case_and_all_else_meets():
    axes = {"a": "12", "b": "xy", "c": "pqr"}
    cases = list(covering(axes, ["a"], lambda case: not (case.get("a") == "1" and case.get("b") == "y")))
    assert len(cases) < 12  # of all combinations
    met = {pair for case in cases for pair in combinations(case.values(), 2)}
    assert met == {*product("12", "xy"), *product("12", "pqr"), *product("xy", "pqr")} - {("1", "y")}


def case_of(**values):
    """Return the case of the first value of every axis but these."""
    return {**{axis: next(iter(named)) for axis, named in AXES.items()}, **values}


def test_the_oracle_is_attention_in_plain_python():
    problem = problem_of(case_of(contexts="3b+5, 0", block="4", heads="2x4"), AXES, seed=1)
    (keys, values), none = problem.contexts()
    rows = dense.attention(problem.q[:1], keys, values, 0.3)[0]
    for head in (0, 3, 4, 7):
        blocks = (
            [[token.tolist()] for token in keys[:, head // 4]],
            [[v.tolist()] for v in values[:, head // 4]],
        )
        query = problem.q[0, head].tolist()
        expected = plain.paged_decode(query, *blocks, range(len(keys)), len(keys), 0.3)
        assert rows[head].tolist() == pytest.approx(expected, abs=1e-12)
    assert (dense.attention(problem.q[1:], *none, 0.3) == 0).all()


def test_a_query_sees_its_own_token_and_those_before():
    q, keys, values = torch.randn(3, 1, 8), torch.randn(2, 5, 1, 8).double().unbind()[0], torch.randn(5, 1, 8)
    whole = dense.attention(q, keys, values.double(), 1.0)
    for row in range(3):
        alone = dense.attention(q[row : row + 1], keys[: 3 + row], values[: 3 + row].double(), 1.0)
        torch.testing.assert_close(whole[row], alone[0], atol=1e-12, rtol=0)


def test_caches_lie_as_the_layouts_say():
    numbers = torch.randn(3, 4, 2, 80).half()
    assert lay_out(numbers, "NHD")[1, 3, 0, 7] == lay_out(numbers, "HND")[1, 0, 3, 7] == numbers[1, 3, 0, 7]


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


@pytest.mark.parametrize(("axis", "value"), [(axis, value) for axis in LIES for value in LIES[axis]])
def test_a_problem_is_the_same_however_it_lies_in_memory(axis, value):
    case = case_of(contexts="3b+5, 0", block="4", layout="HND", heads="2x4")
    problem, other = problem_of(case, AXES, seed=2), problem_of({**case, axis: value}, AXES, seed=2)
    for name in ("q", "keys", "values", "table", "lengths", "out"):
        one, two = getattr(problem, name), getattr(other, name)
        torch.testing.assert_close(one, two, atol=0, rtol=0, equal_nan=True)
        there = getattr(other.to(torch.device("cpu")), name)
        assert (there.stride(), there.storage_offset()) == (two.stride(), two.storage_offset())


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


def blocks_of(problem, block):
    lengths = problem.lengths.tolist()
    return [row[: -(-length // block)].tolist() for row, length in zip(problem.table, lengths, strict=True)]


def test_a_block_may_stand_in_a_table_three_times():
    case = case_of(contexts="3b+5, 0", block="16", repeated="three times")
    (first, second, third, last), none = blocks_of(problem_of(case, AXES, seed=6), 16)
    assert first == second == third != last
    assert none == []


def test_a_block_may_stand_in_all_tables():
    case = case_of(contexts="300, 17", block="16", repeated="by all")
    long, short = blocks_of(problem_of(case, AXES, seed=6), 16)
    assert long[0] == short[0]
    assert len({*long, *short}) == 19 + 2 - 1
