"""``pagesim bench simulator``: rows that say what a replay costs, and counts that hold on any machine."""

from __future__ import annotations

import json

import pytest

from pagesim.speed import Point, bare_timeout_s, base_row, compared, measure


def row(cost: float, **changes: object) -> dict[str, object]:
    point = {"policy": "a", "load": "light", "requests": 10, "trace": "t", "prefix_caching": False}
    system = {"model": "opt-13b", "block_size": 0}
    return {**point, **system, "timeouts_per_request": cost, **changes}


def test_a_row_adds_up():
    got = measure(Point("vllm-sosp", "saturated", 300))
    assert got["timeouts_per_request"] == pytest.approx(got["cpu_s"] / got["bare_timeout_us"] * 1e6 / 300)
    assert got["timeouts_per_request"] == pytest.approx(
        got["timeouts_per_decision"] * got["decisions_per_request"]
    )
    assert got["requests_per_s"] == pytest.approx(300 / got["cpu_s"])
    assert 1 < got["decisions_per_request"] < 2.5
    assert got["peak_rss_mb"] > 20


def test_a_bare_timeout_takes_a_time_of_its_own():
    assert 1e-8 < bare_timeout_s(10_000) < 1e-4


def test_the_base_is_found_by_what_was_replayed_and_not_by_its_place():
    base = [row(10.0, requests=20), row(20.0), row(5.0, load="overload")]
    new = compared([row(30.0), row(7.0, policy="b"), row(5.0, prefix_caching=True)], base)
    assert [each["against"] for each in new] == [1.5, None, None]


def test_a_row_from_before_rows_had_a_model_is_of_the_default_one():
    old = {name: value for name, value in row(20.0).items() if name not in ("model", "block_size")}
    new = compared([row(30.0), row(30.0, model="llama-2-7b"), row(30.0, block_size=32)], [base_row(old)])
    assert [each["against"] for each in new] == [1.5, None, None]


def test_another_model_and_cost_are_measured(succeeds):
    arguments = ("--policies", "vllm-v1", "--loads", "light", "--sizes", "20", "--prefix-caching", "--json")
    system = ("--model", "llama-3.1-8b", "--gpu", "h100", "--cost", "roofline", "--block-size", "64")
    (got,) = succeeds("bench", "simulator", *arguments, *system).json["rows"]
    assert (got["model"], got["block_size"], got["prefix_caching"]) == ("llama-3.1-8b", 64, True)


def test_rows_are_stored_drawn_and_compared_with(succeeds, tmp_path):
    arguments = ("bench", "simulator", "--policies", "orca-max", "--loads", "light", "--sizes", "50,100")
    outcome = succeeds(*arguments, "--out", tmp_path / "s")
    assert "orca-max" in outcome.out
    assert sorted(file.name for file in (tmp_path / "s").iterdir()) == [
        "simulator.json", "simulator.png", "simulator.svg",
    ]  # fmt: skip
    rows = json.loads((tmp_path / "s" / "simulator.json").read_text())["rows"]
    assert [each["requests"] for each in rows] == [50, 100]
    again = succeeds(*arguments, "--against", tmp_path / "s" / "simulator.json", "--json").json["rows"]
    assert all(0.01 < each["against"] < 100 for each in again)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--policies", "vllm-v9"), "policies holds 'vllm-v9'"),
        (("--sizes", "ten"), "sizes holds 'ten'"),
        (("--loads", "absurd"), "load is 'absurd'; it must be one of light, saturated, overload, recorded"),
        (("--sizes", "0"), "requests is 0"),
    ],
)
def test_what_cannot_be_measured_is_refused(flags, said, refused):
    assert refused("bench", "simulator", *flags).startswith(said)


def test_a_file_that_is_no_base_is_refused(refused, tmp_path):
    (tmp_path / "base.json").write_text("[]")
    arguments = ("bench", "simulator", "--sizes", "5", "--against", tmp_path / "base.json")
    assert "is not what `pagesim bench simulator --out` stores" in refused(*arguments)


def test_a_replay_that_fails_is_said_with_its_reason(refused):
    sentence = refused(
        "bench", "simulator", "--policies", "vllm-sosp", "--sizes", "5", "--trace", "nowhere.csv"
    )
    assert sentence.startswith("vllm-sosp, light, 5 requests: ")
    assert "nowhere.csv" in sentence
