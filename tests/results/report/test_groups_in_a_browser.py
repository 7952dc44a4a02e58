"""KV groups and tiers on the page, in a real browser: their cells, charts and tables are what was stored."""

from __future__ import annotations

from pathlib import Path

import pytest

import pagesim as ps
from pagesim.results.report import write_report
from tests.results.report.reading import ADD_UP, stamp, stored


@pytest.fixture(scope="module")
def hybrid_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a page about a cache of windows, one of states, a plain one and one of pages that differ."""
    folder = tmp_path_factory.mktemp("hybrid")
    common = {"policy": "vllm-v1", "gpu": "h200", "num_blocks": 200, "shared_prefix": "600:0.7"}
    folders = [
        stored(folder / "windows", model="gpt-oss-20b", **common),
        stored(folder / "states", model="jamba-1.5-mini", tensor_parallel_size=2, **common),
        stored(folder / "plain", model="llama-3.1-8b", **common),
        stored(folder / "pages", model="gpt-oss-20b", **{**common, "policy": "jenga"}),
    ]
    write_report(folders, folder / "report.html", instants=120)
    return folder / "report.html"


@pytest.fixture(scope="module")
def tier_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a page about a plain cache and one of windows, each with a tier beside it, and one without."""
    folder = tmp_path_factory.mktemp("tiers")
    common = {"policy": "vllm-v1", "num_blocks": 120, "cost": "affine:0.02,1e-4,1e-6"}
    common |= {"kv_offloading_chunks": 400, "kv_offloading_link": "0.3GB/s", "shared_prefix": "300:0.9"}
    folders = [
        stored(folder / "plain", client_timeout=8.0, **common),
        stored(folder / "windows", model="gpt-oss-20b", gpu="h100", **common),
        stored(folder / "none", policy="vllm-v1"),
    ]
    write_report(folders, folder / "report.html", instants=120)
    return folder / "report.html"


def test_the_cells_of_kv_groups_add_up_to_the_ledger_too(browser, hybrid_page):
    browser.open(hybrid_page)
    browser.choose("right", "1")
    assert browser.run(ADD_UP) == [246, []]
    browser.choose("left", "2")
    assert browser.run(ADD_UP) == [246, []]
    assert browser.complaints == []


def test_the_map_tells_groups_apart_and_names_them(browser, hybrid_page):
    browser.open(hybrid_page)
    browser.choose("right", "1")
    before = stamp(browser)
    browser.run("document.querySelector('input[value=group]').click()")
    assert stamp(browser) != before
    key = browser.run("document.getElementById('key').innerText")
    assert "0 window 128" in key
    assert "7 full" in key
    told = browser.run("""(() => {
        const told = pagesimReport.map.panes.flatMap(({ frames }) =>
            Array.from({ length: frames.device.size }, (_, block) => frames.describe(block).join("; ")));
        return ["group 0 window 128", "tokens attended to", "a recurrent state",
            "bytes internal fragmentation: padding",
            "can still be found (cached)"].filter((words) => !told.some((line) => line.includes(words)));
    })()""")
    assert told == []


def test_kv_groups_have_a_chart_and_a_table_where_there_are_any(browser, hybrid_page, page):
    browser.open(hybrid_page)
    assert browser.run("document.querySelectorAll('#group-charts .main-svg').length > 1")
    rows = browser.run("Array.from(document.querySelectorAll('#groups tbody tr'), (row) => row.innerText)")
    groups = ps.load(hybrid_page.parent / "windows").summary["memory"]["groups"]
    assert len(rows) == 2 * len(groups) + 8
    assert all(
        name.replace(":", " ").replace("-", " ") in row for name, row in zip(groups, rows, strict=False)
    )
    stacks = browser.run(
        "Array.from(document.querySelectorAll('#ledgers .chart'), ({ data }) =>"
        " data[0].x.map((_, i) => data.reduce((sum, { y }) => sum + y[i], 0)))"
    )
    assert len(stacks) == 4
    assert all(abs(total - 100) < 1e-6 for stack in stacks for total in stack)
    browser.open(page)
    assert browser.run("document.getElementById('by-groups').hidden")
    assert browser.run("document.getElementById('by-group').hidden")


@pytest.mark.slow
def test_a_table_says_where_the_memory_went_in_the_words_of_the_field(browser, hybrid_page):
    browser.open(hybrid_page)
    heads, *rows = browser.run(
        "Array.from(document.querySelectorAll('#shares tr'), (row) =>"
        " Array.from(row.cells, (cell) => cell.innerText.replaceAll('\\n', ' ')))"
    )
    for words in (
        "reserved",
        "internal fragmentation",
        "unused reservation",
        "external fragmentation",
        "cached",
    ):
        assert any(words in head for head in heads)
    assert [row[0] for row in rows] == ["vllm-v1 (windows)", "vllm-v1 (states)", "vllm-v1 (plain)", "jenga"]
    for row in rows:
        shares = zip(heads[1:], map(float, row[1:]), strict=True)
        whole = sum(share for head, share in shares if not head.startswith("of which"))
        assert whole == pytest.approx(100, abs=0.5)


def test_the_cells_beside_a_tier_add_up_and_say_who_does_not_run(browser, tier_page):
    browser.open(tier_page)
    browser.choose("right", "1")
    assert browser.run(ADD_UP)[1] == []
    told = browser.run("""(() => {
        const { map } = pagesimReport, told = new Set();
        for (let slot = 0; slot < 120; slot += 1) {
            map.seek(slot);
            for (const { frames } of map.panes) {
                const { size } = frames.device;
                for (let block = 0; block < size; block += 1) told.add(frames.describe(block).join("; "));
            }
        }
        return ["are being loaded", "was aborted, until the batch in flight is over"]
            .filter((words) => ![...told].some((line) => line.includes(words)));
    })()""")
    assert told == []
    key = browser.run("document.getElementById('key').innerText")
    assert "loading (being filled)" in key
    assert "fenced (a batch still writes)" in key
    assert browser.complaints == []


@pytest.mark.slow
def test_tiers_have_a_chart_and_a_row_each_where_there_are_any(browser, tier_page, page):
    browser.open(tier_page)
    rows = browser.run(
        "Array.from(document.querySelectorAll('#tier-table tbody tr'), (row) =>"
        " Array.from(row.cells, (cell) => cell.innerText))"
    )
    assert len(rows) == 2
    for row, name in zip(rows, ("plain", "windows"), strict=True):
        shares = ps.load(tier_page.parent / name).summary["memory"]["tiers"]["host"]["per_second"]
        assert row[1:3] == ["host", "400"]
        assert [float(cell) for cell in row[3:]] == pytest.approx(list(shares.values()), rel=5e-3, abs=1e-6)
    stacks = browser.run(
        "Array.from(document.querySelectorAll('#tier-charts .chart'), ({ data }) =>"
        " data[0].x.map((_, i) => data.reduce((sum, { y }) => sum + y[i], 0)))"
    )
    assert len(stacks) == 2
    assert all(abs(total - 100) < 1e-6 for stack in stacks for total in stack)
    browser.open(page)
    assert browser.run("document.getElementById('by-tiers').hidden")
