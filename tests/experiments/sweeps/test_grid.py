"""A grid becomes scenarios: which, in what order, and what is refused before anything runs."""

from __future__ import annotations

import tomllib

import pytest

import pagesim as ps
from pagesim.experiments.sweeps.grid import Sweep, grid_toml, parse_axes
from pagesim.setup.system import checked


def points(*names, **plan):
    return [tuple(getattr(s, name) for name in names) for s in checked(Sweep, plan).scenarios()]


def test_points_come_in_the_grids_order_and_seeds_innermost():
    grid = {"rate": [2.0, 1.0], "policy": ["vllm-sosp", "orca-max"]}
    assert points("rate", "policy", "seed", grid=grid, seeds=2, seed=7) == [
        *[(2.0, "vllm-sosp", 7), (2.0, "vllm-sosp", 8), (2.0, "orca-max", 7), (2.0, "orca-max", 8)],
        *[(1.0, "vllm-sosp", 7), (1.0, "vllm-sosp", 8), (1.0, "orca-max", 7), (1.0, "orca-max", 8)],
    ]


def test_without_a_grid_there_is_one_point():
    assert points("policy", "rate", rate=2.0) == [("vllm-v1", 2.0)]


def test_a_policy_that_cannot_use_an_option_has_one_point_for_all_its_values():
    grid = {"policy": ["vllm-sosp", "vllm-v1"], "enable_prefix_caching": [False, True]}
    assert points("policy", "enable_prefix_caching", grid=grid) == [
        ("vllm-sosp", None),
        ("vllm-v1", False),
        ("vllm-v1", True),
    ]


def test_a_value_that_a_policy_cannot_use_is_left_out_where_it_can_use_another():
    grid = {"policy": ["vllm-v0", "vllm-v1"], "vllm_version": ["0.2.0", "0.11.2"]}
    assert points("policy", "vllm_version", grid=grid) == [("vllm-v0", "0.2.0"), ("vllm-v1", "0.11.2")]


def test_policies_with_blocks_of_their_own_get_the_same_memory():
    grid = {"policy": ["vllm-sosp", "token-granular"], "block_size": [8, 16]}
    assert points("policy", "block_size", "num_blocks", grid=grid, num_blocks=100) == [
        ("vllm-sosp", 8, 100),
        ("vllm-sosp", 16, 100),
        ("token-granular", None, 800),
        ("token-granular", None, 1600),
    ]


def test_seeds_may_be_an_axis():
    assert points("seed", grid={"seed": [5, 3]}) == [(5,), (3,)]


def test_texts_of_flags_are_read_as_the_option_is_typed():
    texts = [
        "rate=0.5, 1",
        "block-size=8",
        "cost=roofline;affine:0.02,1e-4,8e-7",
        "enable_prefix_caching=true,false",
    ]
    assert parse_axes(texts) == {
        "rate": [0.5, 1.0],
        "block_size": [8],
        "cost": ["roofline", "affine:0.02,1e-4,8e-7"],
        "enable_prefix_caching": [True, False],
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rate", "grid is 'rate'; it must be OPTION=VALUE,VALUE"),
        ("rate=", "grid is 'rate='; it must be"),
        ("rate=1,,2", "grid is 'rate=1,,2'; it must be"),
        ("=1", "grid is '=1'; it must be"),
        ("rat=1", "grid: there is no option rat; did you mean rate?"),
        ("rate=fast", "grid: rate is 'fast': input should be a valid number"),
        ("rate=-1", "grid: rate is '-1': input should be greater than 0"),
    ],
)
def test_a_flag_that_is_no_axis_is_named(text, said):
    with pytest.raises(ps.PagesimError) as caught:
        parse_axes([text])
    assert str(caught.value).startswith(said)


def test_an_axis_that_is_given_twice_is_named():
    with pytest.raises(ps.PagesimError, match="grid: rate is given twice"):
        parse_axes(["rate=1", "rate=2"])


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"grid": {"rate": []}}, "grid: rate has no values"),
        ({"grid": {"rate": [1.0, 1.0]}}, "grid: rate has the value 1.0 twice"),
        ({"grid": {"rate": ["1"]}}, "grid: rate is '1': input should be a valid number"),
        ({"grid": {"polcy": ["orca-max"]}}, "grid: there is no option polcy; did you mean policy?"),
        ({"grid": {"steps": [True, False]}}, "grid: steps cannot vary"),
        ({"grid": {"seed": [1, 2]}, "seeds": 3}, "grid: seed cannot vary while seeds is 3"),
        ({"grid": {"policy": ["vllm"]}}, "policy is 'vllm'; it must be one of"),
        ({"seed": 2**32 - 1, "seeds": 2}, "seed is 4294967295 and seeds is 2; the last seed may be"),
        (
            {"grid": {"rate": list(range(1, 1001)), "n": list(range(1, 1001))}, "seeds": 2},
            "the grid has 2000000 runs; the bound is 1000000",
        ),
    ],
)
def test_a_grid_that_is_off_is_named(plan, said):
    with pytest.raises(ps.PagesimError) as caught:
        checked(Sweep, plan).scenarios()
    assert str(caught.value).startswith(said)


def test_a_point_whose_options_do_not_go_together_is_named_and_nothing_runs(tmp_path):
    out = tmp_path / "out"
    grid = {"rate": [1.0], "preemption": ["default", "swap"]}
    with pytest.raises(ps.PagesimError, match=r"^rate=1.0, preemption=swap: preemption swap is not for"):
        ps.sweep(grid=grid, policy="virtual-contiguous", num_requests=5, out=out)
    assert list((out / "runs").iterdir()) == list((out / "traces").iterdir()) == []


def test_a_trace_that_cannot_be_made_ends_the_sweep_before_anything_runs(tmp_path):
    with pytest.raises(ps.PagesimError, match="has no arrivals to cut"):
        ps.sweep("fixed:10,10", grid={"block_size": [8, 16]}, duration=5.0, out=tmp_path / "out")
    assert list((tmp_path / "out" / "runs").iterdir()) == []


def test_the_file_of_a_sweep_makes_it_again():
    plan = checked(Sweep, {"grid": {"rate": [1, 2.5], "policy": ["orca-max"]}, "seeds": 3, "trace": "alpaca"})
    again = checked(Sweep, tomllib.loads(grid_toml(plan)), strict=True)
    assert again.scenarios() == plan.scenarios()
