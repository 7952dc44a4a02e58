"""``pagesim plan --saturate``: a table, a figure and a file of where all memory of a GPU goes."""

from __future__ import annotations

import csv

import pytest

from pagesim.experiments import gallery as of


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of, "WARM_UP", 800)
    monkeypatch.setattr(of, "LOOKED_AT", 100)


def test_it_prints_a_table_a_load_and_stores_the_figure_and_its_numbers(succeeds, tmp_path) -> None:
    said = succeeds(
        "plan", "--saturate", "--models", "gemma3-27b", "--jobs", "1", "--out", tmp_path / "o"
    ).out
    assert "GiB of each h100, chats" in said
    assert "GiB of each h100, conversations" in said
    assert {file.name for file in (tmp_path / "o").iterdir()} == {"gallery.csv", "gallery.png", "gallery.svg"}
    with (tmp_path / "o" / "gallery.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["load"] for row in rows] == ["chats", "conversations"]


def test_json_holds_the_same(succeeds) -> None:
    chats, conversations = succeeds(
        "plan", "--saturate", "--models", "gemma3-27b", "--jobs", "1", "--json"
    ).json
    assert chats["running"] > conversations["running"] > 1
    assert chats["tensor_parallel_size"] == 1


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--models", "nope"), "no model is named 'nope'"),
        (("--gpu", "nope"), "no GPU is named 'nope'"),
        (("--models", "deepseek-v3"), "the smallest tensor_parallel_size that fits is 16"),
        (("--max-model-len", "9"), "max_model_len is not for --saturate"),
        (("--jobs", "0"), "jobs is 0"),
    ],
)
def test_what_it_cannot_do_is_said_in_a_sentence(refused, flags, sentence) -> None:
    assert sentence in refused("plan", "--saturate", "--jobs", "1", *flags)
