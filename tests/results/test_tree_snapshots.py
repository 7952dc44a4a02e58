"""The radix tree at an instant: its nodes are those that the memory counts, and say who uses them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pagesim as ps
from pagesim.api import run, trace_of
from pagesim.errors import PagesimError
from pagesim.results.result import end_of
from pagesim.results.tree_snapshots import NO_NODE, TreeNode, tree_at, trees_of
from pagesim.setup.scenario import Scenario
from pagesim.sim.clock import to_tick_column

TURNS = Path(__file__).resolve().parents[1] / "golden" / "sglang" / "turns.csv"
SMALL = {"trace": str(TURNS), "model": "tiny", "cost": "affine:0.01,1e-5,1e-7", "num_blocks": 12000}


def stored(**options: Any) -> ps.Result:
    scenario = Scenario(**{"policy": "sglang", **SMALL, **options})
    return run(scenario, trace_of(scenario))


@pytest.fixture(scope="module")
def conversations() -> ps.Result:
    return stored()


WINDOWED = {"model": str(TURNS.with_name("window256.toml")), "max_model_len": 8192}


@pytest.mark.parametrize(
    "options", [{}, {"block_size": 16, "num_blocks": 600}, WINDOWED], ids=["tokens", "pages", "windows"]
)
def test_the_nodes_have_the_tokens_that_the_memory_counted(options: dict[str, Any]) -> None:
    # Without overlap an iteration is carried out, and noted, when it is decided.
    result = stored(disable_overlap_schedule=True, **options)
    table = result.tree
    assert table is not None
    planned = table[table["iterations"] == 1]
    rows = planned.iloc[:: len(planned) // 40]
    trees = trees_of(result, to_tick_column(rows["clock"].to_numpy()).tolist())
    assert len(trees.taken) == len(rows)
    for snapshot, (_, row) in zip(trees.taken, rows.iterrows(), strict=True):
        nodes = dict(zip(TreeNode._fields, snapshot.nodes.T, strict=True))
        tokens, held = nodes["end"] - nodes["start"], nodes["locks"] > 0
        assert (tokens[held].sum(), tokens[~held].sum()) == (row["protected"], row["evictable"])


def test_a_node_follows_its_parent_and_was_not_used_before_it_was_inserted(conversations: ps.Result) -> None:
    nodes = tree_at(conversations, end_of(conversations) / 2)
    assert len(nodes) > 10
    inner = nodes[nodes["parent"] != NO_NODE]
    assert (inner["start"].to_numpy() == nodes["end"].to_numpy()[inner["parent"]]).all()
    assert (nodes["start"][nodes["parent"] == NO_NODE] == 0).all()
    assert (nodes["used_s"] >= nodes["inserted_s"]).all()
    assert (nodes["used_s"] <= nodes.attrs["clock_s"]).all()
    assert (inner["used_s"].to_numpy() <= nodes["used_s"].to_numpy()[inner["parent"]]).all()


def test_the_holders_of_a_node_are_running(conversations: ps.Result) -> None:
    nodes = tree_at(conversations, end_of(conversations) / 2)
    requests = conversations.requests.set_index("request_id")
    clock = nodes.attrs["clock_s"]
    named = {name for names in nodes["holders"] for name in names}
    assert named
    for name in named:
        request = requests.loc[int(name)]
        assert request["arrival_s"] <= clock <= request["finish_s"]
    assert (nodes["holders"].map(len) > 0).equals(nodes["state"] == "protected")


def test_fast_forward_shows_the_same_tree_as_stepping(conversations: ps.Result) -> None:
    stepping = stored(fast_forward=False)
    for share in (0.2, 0.5, 0.8):
        at = end_of(conversations) * share
        one, other = tree_at(conversations, at), tree_at(stepping, at)
        assert one.equals(other)
        assert one.attrs == other.attrs


def test_an_idle_engine_keeps_its_tree(conversations: ps.Result) -> None:
    last = tree_at(conversations, end_of(conversations))
    assert last.attrs["iteration"] == -1
    assert set(last["state"]) == {"evictable"}
    assert 0 < last["tokens"].sum() <= last.attrs["capacity"]


def test_what_has_no_tree_is_refused_with_the_reason(conversations: ps.Result) -> None:
    paged = stored(policy="vllm-v1", num_blocks=700)
    with pytest.raises(PagesimError, match="policy vllm-v1 caches no prefixes in a radix tree"):
        tree_at(paged, 1.0)
    with pytest.raises(PagesimError, match="at is 1e\\+06 s; the run lasts from 0 to"):
        tree_at(conversations, 1e6)
    simulated = ps.simulate(trace_of(Scenario(policy="sglang", **SMALL)), policy="sglang", num_blocks=12000)
    with pytest.raises(PagesimError, match="its trace was given as an object"):
        tree_at(simulated, 1.0)
