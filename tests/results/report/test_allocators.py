"""The page of `pagesim demo`: its colours, counted pixel by pixel, are the ledger at every instant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pagesim as ps
from pagesim.api import run, trace_of
from pagesim.results.report import write_allocators_page
from pagesim.setup.scenario import Scenario

POLICIES = {"contiguous max-length": "contiguous-max", "buddy": "orca-pow2", "paged": "vllm-sosp"}

BLOCKS, BLOCK_SIZE, INSTANTS = 250, 16, 60

COLOURS = {
    "used": (0x00, 0x72, 0xB2),
    "reserved": (0x56, 0xB4, 0xE9),
    "internal": (0xD5, 0x5E, 0x00),
    "external": (0xCC, 0x79, 0xA7),
    "cached": (0x00, 0x9E, 0x73),
    "free": (0xE8, 0xE8, 0xE8),
}

COUNTED = """(() => pagesimReport.map.panes.map(({ canvas }) => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height), counts = {};
    for (let i = 0; i < data.length; i += 4) {
        const colour = data.slice(i, i + 4).join();
        counts[colour] = (counts[colour] || 0) + 1;
    }
    return counts;
}))()"""
"""How many pixels of each map have each colour."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the folders of one load under three allocators, with every iteration's ledger."""
    folder = tmp_path_factory.mktemp("allocators")
    folders = {}
    for name, policy in POLICIES.items():
        chosen = Scenario(
            trace="sharegpt", rate=3.0, num_requests=60, num_blocks=BLOCKS, max_model_len=1024, policy=policy
        )
        folders[name] = run(chosen, trace_of(chosen), steps="iterations").save(folder / policy)
    return folders


@pytest.fixture(scope="module")
def page(results: dict[str, Path]) -> Path:
    out = results["paged"].parent / "page.html"
    write_allocators_page(results, out, window=(0.0, 40.0), instants=INSTANTS)
    return out


def slots_by_colour(pixels: dict[str, int]) -> dict[str, int]:
    """Return how many slots have each colour, of a map on which all are squares of one size."""
    there = {name: pixels.pop(",".join(map(str, (*colour, 255))), 0) for name, colour in COLOURS.items()}
    assert set(pixels) <= {"0,0,0,0"}, "nothing else is drawn"
    side = (sum(there.values()) / (BLOCKS * BLOCK_SIZE)) ** 0.5
    assert side == int(side) >= 1
    assert all(count % side**2 == 0 for count in there.values())
    return {name: count // int(side) ** 2 for name, count in there.items()}


def ledger_at(steps: Any, due: float) -> dict[str, int]:
    """Return the ledger of the first iteration at or after an instant; all is free while nothing runs."""
    row = int(np.searchsorted(steps["clock"].to_numpy(), due - 1e-9))
    ended = 0.0 if row == 0 else steps["start"].iloc[row - 1] + steps["step_s"].iloc[row - 1]
    if row == len(steps) or ended + 1e-6 < steps["clock"].iloc[row]:
        assert ended <= due + 1e-6
        return {**dict.fromkeys(COLOURS, 0), "free": BLOCKS * BLOCK_SIZE}
    ledger = steps.iloc[row]
    return {
        **{name: int(ledger[name]) for name in ("used", "reserved", "external", "cached", "free")},
        "internal": int(ledger["unused_reservation"] + ledger["rounding"]),
    }


def test_the_colours_are_the_ledger_of_the_iteration_at_every_instant(standing, results):
    steps = [ps.load(folder).steps for folder in results.values()]
    seen = [dict.fromkeys(COLOURS, 0) for _ in steps]
    for slot in range(INSTANTS):
        standing.choose("time", str(slot))
        due = standing.run("pagesimReport.data.instants[pagesimReport.map.slot]")
        assert due == pytest.approx(40.0 * slot / (INSTANTS - 1), abs=1e-6)
        for pixels, own, most in zip(standing.run(COUNTED), steps, seen, strict=True):
            slots = slots_by_colour(pixels)
            assert sum(slots.values()) == BLOCKS * BLOCK_SIZE
            assert slots == ledger_at(own, due)
            for name, count in slots.items():
                most[name] = max(most[name], count)
    assert seen[0]["internal"] > BLOCKS * BLOCK_SIZE / 2, "a maximum is reserved that few outputs have"
    assert seen[1]["external"] > 0
    assert seen[2]["internal"] < 16 * 60, "less than a block each"
    # Chromium says that the test reads pixels often.
    assert [said for said in standing.complaints if "getImageData" not in said] == []
    assert standing.requests == []
    standing.complaints.clear()


def test_the_table_beneath_is_the_results_fragmentation(standing, results):
    rows = standing.run(
        "Array.from(document.querySelectorAll('#fragmented tbody tr'), (row) =>"
        " Array.from(row.cells, (cell) => cell.innerText.trim()))"
    )
    tables = [ps.load(folder).fragmentation() for folder in results.values()]
    assert [row[0] for row in rows] == list(tables[0].index)
    for row in rows:
        shares = [100 * share for table in tables for share in table.loc[row[0]]]
        assert [float(cell) for cell in row[1:]] == pytest.approx(shares, abs=5.1e-3)


def test_it_plays_and_names_the_colours(standing):
    assert standing.run("Array.from(document.querySelectorAll('.pane h3'), (h) => h.innerText)") == list(
        POLICIES
    )
    key = standing.run("Array.from(document.querySelectorAll('#key span'), (span) => span.innerText)")
    assert key == ["used", "reserved", "internal fragmentation", "external fragmentation", "free"]
    standing.choose("time", "5")
    standing.run("document.getElementById('play').click()")
    standing.wait(f"pagesimReport.map.slot === {INSTANTS - 1}")
    assert standing.complaints == []
