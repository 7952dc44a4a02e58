"""``pagesim tree``: the largest nodes of a stored run's radix tree, or all of them as JSON."""

from __future__ import annotations

from pathlib import Path

import pytest

TURNS = Path(__file__).resolve().parents[1] / "golden" / "sglang" / "turns.csv"
RUN = ("run", "--trace", TURNS, "--model", "tiny", "--cost", "affine:0.01,1e-5,1e-7")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tree")


@pytest.fixture
def stored(succeeds, folder: Path) -> Path:
    out = folder / "out"
    if not out.exists():
        succeeds(*RUN, "--policy", "sglang", "--num-blocks", "12000", "--out", out)
    return out


def test_it_shows_the_largest_nodes_and_how_much_of_the_pool_is_in_the_tree(succeeds, stored: Path) -> None:
    said = succeeds("tree", stored, "--at", "12", "--nodes", "5").out
    assert "% protected" in said
    assert "% evictable" in said
    assert sum(line.strip()[:1].isdigit() for line in said.splitlines()) == 5


def test_json_has_every_node_and_the_instant(succeeds, stored: Path) -> None:
    found = succeeds("tree", stored, "--at", "12", "--json").json
    assert found["clock_s"] >= 12
    assert sum(node["tokens"] for node in found["nodes"]) <= found["capacity"] == 12000
    assert {"holders", "used_s", "hits", "parent"} <= set(found["nodes"][0])


def test_a_run_without_a_tree_and_an_instant_beyond_the_run_are_refused(
    succeeds, refused, stored: Path, folder: Path
) -> None:
    succeeds(*RUN, "--policy", "vllm-v1", "--num-blocks", "700", "--out", folder / "paged")
    assert "caches no prefixes in a radix tree" in refused("tree", folder / "paged")
    assert "the run lasts from 0 to" in refused("tree", stored, "--at", "1e5")
