"""Files of schema 1: curves, formulas and three kinds of tables come out as the tables of schema 2."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pagesim.costs.profiles import Profile, Range, load_profile, schema1
from pagesim.costs.table import Table

CURVE = {"at": [10, 20, 40], "seconds": [1.0, 2.0, 6.0]}
DECODE = {"batches": [1, 5], "contexts": [10, 30], "seconds": [[1.0, 3.0], [5.0, 17.0]]}
PROMPTS = {"lengths": [10, 30], "batches": [1, 5], "seconds": [[1.0, 3.0], [4.0, 8.0]], "launch_s": 0.2}
CHUNKS = {"tokens": [10, 30], "histories": [0, 100], "seconds": [[1.0, 3.0], [2.0, 10.0]], "launch_s": 0.5}
ROUNDS = {"launch_s": 1.0, "sequence_s": 0.1, "context_s": 0.001, "round_s": 0.01, "slots": 16, "kv_heads": 8}


def read(how: Callable[[Any], Any], term: dict[str, Any]) -> Table:
    return Table.model_validate_json(json.dumps(made)) if isinstance(made := how(term), dict) else made


def test_a_formula_of_decoding_without_rounds_is_the_same_everywhere() -> None:
    table = read(schema1.decode, {**ROUNDS, "slots": 0})
    assert table(4, 100) == pytest.approx(1.8)  # 1 + 4·0.1 + 400·0.001
    assert table(300, 50_000) == pytest.approx(15_031.0)
    assert table(1, 1) == pytest.approx(1.101)


@pytest.mark.parametrize(
    ("batch", "mean", "seconds"),
    [
        (1, 128, 2.508),  # one split: 1 + 0.1 + 0.128 + 0.01·128
        (1, 384, 3.404),  # two splits, one round: 1.484 + 0.01·192
        (1, 640, 4.94),  # there is room for two: 1.74 + 0.01·320
        (2, 384, 5.808),  # two sequences fill the slots: 1.2 + 0.768 + 0.01·384
        (8, 384, 20.232),  # 64 programs in four rounds: 1.8 + 3.072 + 0.01·4·384
    ],
)
def test_a_formula_with_rounds_is_the_same_at_its_knots(batch: int, mean: int, seconds: float) -> None:
    assert read(schema1.decode, ROUNDS)(batch, mean) == pytest.approx(seconds, rel=schema1.NEAR)


def test_a_formula_of_prompts_is_the_same_everywhere() -> None:
    term = {"launch_s": 1.0, "token_s": 0.1, "pair_s": 0.001, "key_s": 0.01}
    table = read(schema1.prefill, term)
    assert table(100, 50.5) == pytest.approx(1 + 10 + 5.05 + 0.505)
    assert table(50_000, 60_000.0) == pytest.approx(1 + 5000 + 3e6 + 600)
    assert table(1, 1) == pytest.approx(1.111)


@pytest.mark.parametrize(
    ("tokens", "pairs", "seconds"),
    [
        (20, 110, 1.5),  # two prompts of ten: 1 + 0.25·2
        (30, 165, 2.0),  # three prompts of ten
        (30, 465, 4.0),  # one of thirty
        (30, 240, 2.5),  # a quarter of the way in the length, from 2 to 4
        (10, 155, 4 / 3),  # ten tokens of a prompt of thirty: a third of 4
        (90, 495, 5.0),  # nine prompts of ten: 1 + 2·2, beyond the last number
        (1, 1, 0.2),  # no less than a launch
        (0, 1, 0.0),
    ],
)
def test_a_table_of_whole_prompts(tokens: int, pairs: int, seconds: float) -> None:
    table = read(schema1.prefill, PROMPTS)
    assert table(tokens, pairs / max(1, tokens)) == pytest.approx(seconds, rel=schema1.NEAR)


@pytest.mark.parametrize(
    ("tokens", "pairs", "seconds"),
    [
        (10, 305, 1.5),  # behind 25 tokens: 1 + 0.25·2
        (30, 915, 3.2),  # behind 15: 2 + 0.15·8
        (14, 427, 1.84),  # a fifth of the way from 1.5 to 3.2
        (10, 33, 0.8),  # fewer keys than without a history: 0.5 + 0.5·3.3/5.5
    ],
)
def test_a_table_of_chunks(tokens: int, pairs: int, seconds: float) -> None:
    assert read(schema1.prefill, CHUNKS)(tokens, pairs / tokens) == pytest.approx(seconds, rel=schema1.NEAR)


@pytest.mark.parametrize(
    ("tokens", "keys", "seconds"),
    [
        (20, 5.5, 8.0),  # two prompts of ten
        (20, 10.5, 3.0),  # one of twenty
        (20, 15.5, 3.0),  # two thirds of one of thirty are 2.4, and one of twenty takes more
        (10, 15.5, 4.0),  # a third of it is 1.2, and one of ten takes more
        (1, 15.5, 0.4),  # a tenth of one of ten
    ],
)
def test_a_part_of_a_prompt_takes_no_less_than_whole_ones(tokens: int, keys: float, seconds: float) -> None:
    term = {"lengths": [10, 20, 30], "batches": [1, 2], "seconds": [[4.0, 8.0], [3.0, 6.0], [3.6, 7.2]]}
    assert read(schema1.prefill, term)(tokens, keys) == pytest.approx(seconds, rel=schema1.NEAR)


def test_tables_that_were_not_measured_from_one_on_and_know_no_launch() -> None:
    prompts = read(schema1.prefill, {"lengths": [10], "batches": [2, 4], "seconds": [[1.0, 3.0]]})
    # A prompt of ten is half of two; forty tokens are four.
    assert [prompts(tokens, 5.5) for tokens in (10, 20, 40)] == pytest.approx([0.5, 1.0, 3.0])
    chunks = read(schema1.prefill, {"tokens": [9], "histories": [0, 10], "seconds": [[0.5, 1.0]]})
    # Five keys without a history; one of five takes its share, as there is no launch.
    assert [chunks(9, keys) for keys in (1, 5, 10, 15)] == pytest.approx([0.1, 0.5, 0.75, 1.0])


def test_a_file_of_schema_1_is_read_and_stored_as_schema_2(analytic: Profile, tmp_path: Path) -> None:
    content = json.loads(analytic.model_dump_json(by_alias=True))
    blocks = {"16": {"at": [1, 101], "seconds": [0.001, 0.101]}}
    content |= {"schema": 1, "ranges": {"linear": {"least": 1, "most": 64, "most_context": 0}}}
    content["terms"] |= {
        "linear": CURVE, "head": CURVE, "decode": {"16": DECODE}, "prefill": {"16": CHUNKS},
        "copy": blocks, "swap_out": blocks, "swap_in": blocks,
        "overhead": {"at": [0, 1], "seconds": [1.0, 1.5]},
        "reached": {"window:128": {"decode": DECODE, "prefill": PROMPTS}},
        "states": {"decode": CURVE, "prefill": CURVE},
    }  # fmt: skip
    content["origins"] |= dict.fromkeys(("overhead", "reached", "states"), "imported")
    (tmp_path / "old.json").write_text(json.dumps(content))
    old = load_profile(tmp_path / "old.json")
    assert old.schema_ == 2
    assert old.ranges["linear"] == Range(least=1, most=64)
    terms = old.terms
    assert (terms.linear(12), terms.head(12)) == pytest.approx((1.2, 1.2))
    assert (terms.swap_in[16](51), terms.decode[16](2, 15)) == pytest.approx((0.051, 3.125))
    assert terms.overhead is not None
    assert terms.states is not None
    assert (terms.overhead(1), terms.overhead(3)) == pytest.approx((1.5, 2.5))
    assert terms.reached["window:128"].prefill(30, 5.5) == pytest.approx(2.0)
    assert terms.states.decode(25) == pytest.approx(3.0)
    old.save(tmp_path / "new.json")
    assert json.loads((tmp_path / "new.json").read_text())["schema"] == 2
    assert load_profile(tmp_path / "new.json") == old
