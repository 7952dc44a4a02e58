"""``pagesim ablate engines``: four tables, the figure and its numbers."""

from __future__ import annotations

import csv
from pathlib import Path

LOAD = ("--trace", "fixed:8192,512", "--num-requests", "80", "--model", "llama-3.1-8b", "--gpu", "h100")
COST = ("--cost", "auto")


def test_it_prints_a_table_for_each_of_the_terms_and_stores_their_numbers(succeeds, tmp_path: Path) -> None:
    out = tmp_path / "o"
    said = succeeds("ablate", "engines", *LOAD, *COST, "--policies", "vllm-v1,orca-max", "--out", out).out
    for title in ("The same KV bytes for all", "Each engine sizes its own cache"):
        assert said.count(title) == 2
    assert {file.name for file in out.iterdir()} == {"engines.csv", "engines.png", "engines.svg"}
    with (out / "engines.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["policy"], row["sizing"], row["loop"]) for row in rows[:3]] == [
        ("vllm-v1", "same", "none"),
        ("orca-max", "same", "none"),
        ("vllm-v1", "same", "own"),
    ]
    assert float(rows[1]["unused_reservation_percent"]) > 0


def test_a_policy_that_is_unknown_is_refused(refused) -> None:
    assert "policy is 'nothing'" in refused(
        "ablate", "engines", *LOAD, *COST, "--policies", "vllm-v1,nothing"
    )
