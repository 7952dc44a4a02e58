"""``pagesim reproduce``: the paper's figures from the command line."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

CHEAP = ("reproduce", "table1", "fig2", "fig18a", "--quick", "--jobs", "1")
"""A table without a replay, a figure with some, and one that is not drawn."""


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir()) if file.is_file()}


def test_it_draws_figures_and_writes_their_numbers_and_the_document(succeeds, tmp_path):
    out = succeeds(*CHEAP, "--out", tmp_path / "o").out
    assert set(files(tmp_path / "o")) == {
        *("fig2.csv", "fig2.png", "fig2.svg", "table1.csv", "table1.png", "table1.svg", "fig18a.csv"),
        *("reproduction.md", "setting.json"),
    }
    with (tmp_path / "o" / "fig2.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    assert list(rows[0]) == ["figure", "series", "x", "paper", "certainty", "ours", "error"]
    assert len(rows) == 16
    for row in rows:
        assert float(row["error"]) == pytest.approx(float(row["ours"]) - float(row["paper"]), abs=1e-3)
    assert "Orca (Max), token states" in " ".join(out.split())
    assert "not drawn: needs kernels timed on a GPU" in " ".join(out.split())


@pytest.mark.slow
def test_it_gives_the_same_bytes_again_from_its_files_and_anew(succeeds, tmp_path):
    for name in ("a", "a", "b"):
        succeeds(*CHEAP, "--out", tmp_path / name)
        if name == "a":
            kept = {
                file.name: file.stat().st_mtime_ns for file in (tmp_path / "a" / "replays" / "runs").iterdir()
            }
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert len(kept) == 4
    assert kept == {
        file.name: file.stat().st_mtime_ns for file in (tmp_path / "a" / "replays" / "runs").iterdir()
    }


@pytest.mark.slow
def test_the_document_puts_what_misses_first(succeeds, tmp_path):
    succeeds(*CHEAP, "--out", tmp_path / "o", "--document", tmp_path / "d.md")
    text = (tmp_path / "d.md").read_text()
    titles = [line for line in text.splitlines() if line.startswith("## ")]
    assert titles[0] == "## What misses its bar"
    # Nothing was promised for 45 s, so something does miss.
    assert "**fig2** Orca (" in text
    assert "](o/fig2.png)" in text
    assert str(tmp_path) not in text
    assert not (tmp_path / "o" / "reproduction.md").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("fig20",), "there is no figure 'fig20'; there are fig2, table1, fig11"),
        (("fig2", "--jobs", "0"), "jobs is 0; it must be at least 1, or -1 for one a core"),
        (
            ("fig2", "--jobs", "1", "--trace-sharegpt", "none.csv"),
            "none.csv: there is no such file or workload",
        ),
        (("fig2", "--jobs", "1", "--cost", "magic"), "cost is 'magic'"),
        (("fig19a", "--cost", "roofline"), "'roofline', which knows no block sizes"),
    ],
)
def test_what_is_off_is_said_in_a_sentence(arguments, sentence, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert sentence in refused("reproduce", *arguments, "--quick", "--out", tmp_path / "o")


def test_a_folder_holds_figures_of_one_setting(succeeds, refused, tmp_path):
    succeeds("reproduce", "table1", "--quick", "--out", tmp_path)
    sentence = refused("reproduce", "table1", "--out", tmp_path)
    assert "holds figures of another setting (bundled length models, imported costs, quick)" in sentence


@pytest.mark.slow
def test_two_processes_give_the_same_bytes_as_one(succeeds, tmp_path):
    succeeds(*CHEAP, "--out", tmp_path / "one")
    succeeds(*CHEAP[:-1], "2", "--out", tmp_path / "two")
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_the_letters_of_the_papers_numbers_are_explained(succeeds, tmp_path):
    said = succeeds("reproduce", "fig19a", "--quick", "--jobs", "1", "--out", tmp_path).out
    assert re.search(r" V +", said)
    assert "V: text of the paper" in said
    assert "F: read off a curve by eye, ±15 %" in said
    assert "A: " not in said
