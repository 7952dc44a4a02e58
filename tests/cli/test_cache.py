"""``pagesim cache``: eviction policies beside the bound, on a trace."""

from __future__ import annotations

import csv

import pytest

import pagesim as ps
from pagesim.testing import check_eviction_policy
from tests.eviction.plugins import Clock

CACHE = ("cache", "--model", "tiny")


def test_policies_stand_beside_the_bound_and_the_working_set(succeeds, conversations, tmp_path):
    done = succeeds(*CACHE, "--trace", conversations, "--out", tmp_path / "out")
    assert "without a limit: 60.00 %" in done.out  # of 2 (1 + 2 + 3 + 4) blocks all but the last of each turn
    assert "working set: " in done.out
    assert "6 blocks" in done.out
    pictures = {f"{stem}.{kind}" for stem in ("cache", "evictions") for kind in ("png", "svg")}
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"cache.csv", *pictures}
    with (tmp_path / "out" / "cache.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    policies = {"lru", "fifo", "lfu", "sieve", "s3fifo", "arc", "gdsf", "belady", "bound"}
    assert {row["policy"] for row in rows} == policies
    largest = max(int(row["capacity_blocks"]) for row in rows)
    assert {float(row["hit_pct"]) for row in rows if int(row["capacity_blocks"]) == largest} == {60.0}


def test_a_capacity_is_in_bytes_of_the_models_cache(succeeds, conversations, tmp_path):
    """With room for four blocks of 512 KiB each conversation pushes the other's last blocks out.

    Of turns a1 b1 a2 b2 a3 b3 a4 b4 the second ones find one block each and fill the cache. Then a3 finds 2
    and evicts b's second block, b3 finds 1 and evicts two of a, a4 finds 1 and evicts all of b: 6 of 20.
    """
    out = tmp_path / "out"
    block = 512 * 2 * 2 * 2 * 64 * 2  # tokens, layers, keys and values, heads, numbers a head, bytes
    succeeds(
        *(*CACHE, "--trace", conversations, "--out", out, "--policies", "lru"),
        *("--capacities", f"{4 * block / 2**20:g}MiB"),
    )
    with (out / "cache.csv").open(newline="") as file:
        lru, bound = csv.DictReader(file)
    assert (lru["capacity_blocks"], lru["hits"], float(lru["hit_pct"])) == ("4", "6", 30.0)
    assert int(bound["hits"]) > 6


def test_a_policy_serves_inside_an_engine_as_well(succeeds, conversations, tmp_path):
    """With room for all every turn finds those before it; the last ones are longer than the model allows."""
    out = tmp_path / "out"
    done = succeeds(
        *(*CACHE, "--trace", conversations, "--out", out, "--policies", "lru,arc,belady"),
        *("--capacities", "1GiB", "--in-engine"),
    )
    assert "in the engine lru finds the most; hit rates differ by " in done.out
    with (out / "cache.csv").open(newline="") as file:
        rows = {row["policy"]: row for row in csv.DictReader(file)}
    assert (rows["belady"]["engine_hit_pct"], rows["bound"]["engine_hit_pct"]) == ("", "")
    share = 100 * (0 + 1 + 2) / (1 + 2 + 3)
    assert float(rows["lru"]["engine_hit_pct"]) == float(rows["arc"]["engine_hit_pct"]) == share
    assert float(rows["lru"]["engine_ttft_s"]) > 0


def test_a_policy_of_ones_own_is_a_class_and_a_call(succeeds, conversations):
    ps.register("eviction", "clock", Clock)
    check_eviction_policy(Clock)
    done = succeeds(*CACHE, "--trace", conversations, "--policies", "lru,clock")
    assert "clock" in done.out


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            ("--trace", "fixed:600,5", "--num-requests", "3"),
            "no prompt of it begins with 512 tokens of an earlier one (--block",
        ),
        (
            ("--capacities", "64"),
            "capacities is '64'; it must be a number with a unit of bytes, such as 64GiB",
        ),
        (("--capacities", "infGiB"), "capacities is 'infGiB'"),
        (("--policies", "best"), "eviction is 'best'; it must be one of lru, fifo, lfu, sieve, s3fifo"),
        (("--block-tokens", "0"), "block_size is 0; it must be at least 1"),
    ],
)
def test_what_cannot_be_compared_is_refused(refused, conversations, given, said):
    assert said in refused(*CACHE, "--trace", conversations, *given)


def test_a_servers_line_names_the_model_and_the_type_of_its_cache(succeeds, conversations, tmp_path):
    """Llama 3.1 8B keeps 32 layers · 2 · 8 heads · 128 numbers of a byte for each of 512 tokens: 32 MiB."""
    line = "vllm serve meta-llama/Llama-3.1-8B-Instruct --kv-cache-dtype fp8 --port 8000"
    given = ("--serve", line, "--gpu", "h100", "--trace", conversations, "--policies", "lru")
    done = succeeds("cache", *given, "--out", tmp_path / "out")
    with (tmp_path / "out" / "cache.csv").open(newline="") as file:
        assert {int(row["block_bytes"]) for row in csv.DictReader(file)} == {32 * 2**20}
    assert "without an effect here: --port" in done.err
