"""The gallery: every byte of a GPU is counted once, while requests wait for blocks and for nothing else."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from pagesim.errors import PagesimError
from pagesim.experiments import gallery as of
from pagesim.experiments.loads import LOADS
from pagesim.hardware import gpu
from pagesim.models import model
from pagesim.results.gpu_memory import STACKED, gallery_bars

STORED = Path(__file__).parents[2] / "docs" / "pictures" / "gallery.csv"


def stored() -> list[dict[str, str]]:
    with STORED.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def keeps_states(name: str) -> bool:
    return any(layer.kind == "state" for layer in model(name).cache_layers)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs be short: what is counted is the same."""
    monkeypatch.setattr(of, "WARM_UP", 800)
    monkeypatch.setattr(of, "LOOKED_AT", 100)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    ("name", "load"),
    [("llama-3.1-8b", "conversations"), ("gemma3-27b", "conversations"), ("falcon-h1-7b", "chats")],
)
def test_every_byte_of_the_gpu_has_one_name_while_requests_wait(name: str, load: str) -> None:
    found = of.full(name, load, "h100")
    assert tuple(found.bytes) == of.PARTS
    assert sum(found.bytes.values()) == gpu("h100").memory_bytes
    assert min(found.bytes.values()) >= 0
    assert found.waiting > 1
    assert (found.bytes["state"] > 0) == keeps_states(name)
    cache = sum(found.bytes[entry] for entry in (*of.ENTRIES, *of.FREE))
    assert found.bytes["free"] + found.bytes["cached"] < 0.1 * cache


@pytest.mark.usefixtures("short")
def test_a_load_that_does_not_fill_the_cache_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of, "CROWD", 0.5)
    with pytest.raises(PagesimError, match="the cache of gemma3-27b on h100 is not full"):
        of.full("gemma3-27b", "conversations", "h100")


def test_the_stored_table_counts_every_byte_of_every_gpu() -> None:
    rows = stored()
    assert [(row["model"], row["load"]) for row in rows] == [
        (name, load) for name in of.MODELS for load in LOADS
    ]
    for row in rows:
        assert sum(int(row[name]) for name in row if name.endswith("_bytes")) == gpu(row["gpu"]).memory_bytes
        assert float(row["waiting"]) > 0
        assert float(row["running"]) < int(row["max_num_seqs"])
        assert int(row["max_num_seqs"]) <= int(row["num_blocks"]) or not keeps_states(row["model"])


SHORTER = {name: "chats" if name == "nemotron-h-8b" else "conversations" for name in of.MODELS}
"""The load of each model whose requests need fewer iterations."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "row", [row for row in stored() if SHORTER[row["model"]] == row["load"]], ids=lambda row: row["model"]
)
def test_the_stored_table_is_what_runs_find_now(row: dict[str, str]) -> None:
    found = of.full(row["model"], row["load"], row["gpu"])
    assert {name: str(value) for name, value in found.row().items()} == row


def test_a_bar_is_drawn_of_every_part_and_as_long_as_the_memory() -> None:
    assert sorted(name for names in STACKED.values() for name in names) == sorted(of.PARTS)
    parts = {name: (place + 1) * 2**30 for place, name in enumerate(of.PARTS)}
    memories = [
        of.FullMemory("gemma3-27b", "h100", gpus, load, 10, 1024, 5.0, 5.0, 100, parts)
        for load in LOADS
        for gpus in (1, 2)
    ]
    figure = gallery_bars(memories, "h100")
    chats, conversations = figure.axes
    labels = [label.get_text() for label in chats.get_yticklabels()]
    assert labels == ["gemma3-27b", "gemma3-27b\n1 of 2 GPUs"]
    for axes in (chats, conversations):
        ends = [patch.get_x() + patch.get_width() for patch in axes.patches]
        assert len(ends) == 2 * len(STACKED)
        assert max(ends) == pytest.approx(sum(range(1, len(of.PARTS) + 1)))
