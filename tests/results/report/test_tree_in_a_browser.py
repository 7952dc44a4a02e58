"""The radix tree on the page, in a real browser: what is drawn, pointed at and read is what was stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pagesim.results.report import write_report
from pagesim.results.report.trees import MOST_NODES
from pagesim.results.tree_snapshots import NO_NODE, tree_at
from tests.results.report.reading import stored

TURNS = Path(__file__).resolve().parents[2] / "golden" / "sglang" / "turns.csv"
TREE: dict[str, Any] = {
    **{"trace": str(TURNS), "model": "tiny", "cost": "affine:0.01,1e-5,1e-7", "num_blocks": 12000},
    **{"rate": None, "num_requests": None, "max_model_len": None},
}
SEEN = "pagesimReport.tree"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a page about a result that has a tree, beside it."""
    folder = tmp_path_factory.mktemp("trees")
    write_report([stored(folder / "tree", policy="sglang", **TREE)], folder / "report.html", instants=60)
    return folder / "report.html"


def test_the_page_draws_the_nodes_of_the_tree_at_the_instant_of_its_slider(standing: Any, page: Path) -> None:
    import pagesim as ps

    result = ps.load(page.parent / "tree")
    for slot in (10, 30, 50):
        standing.choose("tree-time", str(slot))
        at = standing.run(f"{SEEN}.tree.data.instants[{slot}]")
        nodes = tree_at(result, at)
        assert standing.run(f"Array.from({SEEN}.tree.end)") == nodes["end"].tolist()
        assert standing.run(f"Array.from({SEEN}.tree.parent)") == nodes["parent"].tolist()
        assert standing.run(f"{SEEN}.boxes.length") == len(nodes) <= MOST_NODES
        requests = standing.run(
            f"Array.from({SEEN}.tree.parent.keys()).map((node) => {SEEN}.tree.holders.get(node) || [])"
        )
        assert [sorted(names) for names in requests] == [sorted(names) for names in nodes["holders"]]
    assert not standing.complaints
    assert not standing.requests


def test_widths_are_tokens_and_a_node_stands_below_its_parent(standing: Any) -> None:
    standing.choose("tree-time", "30")
    boxes = standing.run(f"{SEEN}.boxes")
    parents = standing.run(f"Array.from({SEEN}.tree.parent)")
    behind = standing.run(f"{SEEN}.tree.behind")
    place = {int(node): (x, y, w) for node, x, y, w in boxes}
    whole = sum(behind[node] for node in place if parents[node] == NO_NODE)
    width = standing.run("document.getElementById('tree-view').clientWidth")
    for node, (x, y, w) in place.items():
        assert w == pytest.approx(width * behind[node] / whole)
        if parents[node] != NO_NODE:
            above = place[parents[node]]
            assert y > above[1]
            assert above[0] - 1e-6 <= x <= x + w <= above[0] + above[2] + 1e-6


def test_a_keyboard_user_reads_what_a_pointer_sees(standing: Any) -> None:
    standing.choose("tree-time", "30")
    standing.run("document.getElementById('tree-canvas').focus()")
    standing.press("ArrowDown")
    read = standing.run("document.getElementById('tree-readout').textContent")
    assert "tokens, 0 to" in read
    standing.run("document.getElementById('tree').scrollIntoView()")
    left, top = standing.run(
        "(({ left, top }) => [left, top])(document.getElementById('tree-canvas').getBoundingClientRect())"
    )
    standing.point(left + 4, top + 8)
    assert standing.run("document.getElementById('tip').textContent.length") > 40
    assert standing.run("document.getElementById('tree-readout').textContent") == read
    standing.press("ArrowRight")
    assert standing.run("document.getElementById('tree-readout').textContent") != read


def test_the_nodes_are_coloured_by_state_or_by_last_use_and_the_key_says_so(standing: Any) -> None:
    keys = []
    for value in ("recency", "state"):
        standing.run(f'document.querySelector(\'input[name="tree-colour"][value="{value}"]\').click()')
        keys.append(standing.run("document.getElementById('tree-key').textContent"))
    assert "used less than 5 s ago" in keys[0]
    assert "protected" in keys[1]


def test_a_page_of_no_tree_shows_no_section_of_it(browser: Any, tmp_path: Path) -> None:
    paged = stored(
        tmp_path / "paged", **{**TREE, "trace": "fixed:100,20", "num_requests": 5, "num_blocks": 700}
    )
    write_report([paged], tmp_path / "paged.html", instants=5)
    browser.open(tmp_path / "paged.html")
    assert browser.run(
        "document.getElementById('tree').hidden && document.getElementById('tree-link').hidden"
    )
    assert not browser.complaints
