"""``pagesim ablate offload`` and ``tier-size``: what they show and store, or refuse in one sentence."""

from __future__ import annotations

import csv

import pytest

OFFLOAD = ("ablate", "offload", "--models", "llama-3.1-8b", "--contexts", "128,32768")


def test_a_map_says_where_loading_is_faster_and_of_what_links_are(succeeds, tmp_path):
    done = succeeds(
        *(*OFFLOAD, "--tier", "host:64GiB", "--tier", "tape:1TiB:0.01GB/s"),
        *("--hit-distances", "1GiB,65GiB,2TiB", "--out", tmp_path / "out"),
    )
    assert "host: loading is faster for prefixes of 32,768 tokens on llama-3.1-8b, tp 1" in done.out
    assert "tape: loading is faster for prefixes of no length on llama-3.1-8b, tp 1" in done.out
    places = next(line for line in done.out.split("Where a hit is found")[1].splitlines() if "llama" in line)
    assert places.split()[-3:] == ["device", "tape", "lost"]
    assert "note: links of host: PCIe 5.0 x16" in done.err
    assert "note: links of tape: given by --tier tape:1TiB:0.01GB/s" in done.err
    with (tmp_path / "out" / "offload.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["tier"], row["tokens"]) for row in rows] == [
        ("host", "128"),
        ("host", "32768"),
        ("tape", "128"),
        ("tape", "32768"),
    ]
    assert (tmp_path / "out" / "offload.png").is_file()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--tier", "host"), "tier is 'host'; it has 0 capacities"),
        (("--models", "llama-3.1-8b:two"), "models is 'llama-3.1-8b:two'; each must be NAME or NAME:TENSOR"),
        (("--contexts", "0"), "contexts is '0'; each must be at least 1 token"),
        (("--sequences", "-1"), "sequences is -1"),
        (("--hit-distances", "far"), "hit_distances is 'far'; it must be a number with a unit of bytes"),
    ],
)
def test_a_map_of_what_cannot_be_is_refused(refused, given, said):
    assert said in refused(*OFFLOAD, *given)


TIER_SIZE = ("ablate", "tier-size", "--model", "tiny", "--num-blocks", "120", "--num-requests", "6")


def test_a_tier_that_holds_all_reaches_the_traces_own_hit_rate(succeeds, conversations, tmp_path):
    """Without one each conversation evicts the other; with one only what is new is computed."""
    done = succeeds(
        *(*TIER_SIZE, "--trace", conversations, "--sizes", "0,1"),
        *("--kv-offloading-link", "100000GB/s", "--out", tmp_path / "out"),
    )
    assert "working set: " in done.out
    with (tmp_path / "out" / "tier_size.csv").open(newline="") as file:
        none, whole = csv.DictReader(file)
    assert float(none["tier_pct"]) == 0
    assert float(none["hit_pct"]) < 45
    assert float(whole["hit_pct"]) == pytest.approx(50.0)
    assert float(whole["bound_pct"]) == pytest.approx(50.0)
    assert (tmp_path / "out" / "tier_size.png").is_file()


@pytest.mark.parametrize("sizes", ["big", "-1", "0,,1"])
def test_sizes_that_are_none_are_refused(refused, conversations, sizes):
    said = refused(*TIER_SIZE, "--trace", conversations, "--sizes", sizes)
    assert said == f"sizes is {sizes!r}; GiB from 0 on are needed, separated by commas"
