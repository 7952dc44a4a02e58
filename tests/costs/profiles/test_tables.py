"""Attention as a table: what was measured comes out as measured, and between the points nothing jumps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pagesim.costs.profiles import ChunkTable, DecodeTable, PrefillTable

DECODE = DecodeTable(
    batches=(1, 8, 64),
    contexts=(128, 1024, 8192),
    seconds=((1e-4, 2e-4, 9e-4), (1.5e-4, 4e-4, 2e-3), (4e-4, 1.5e-3, 1.1e-2)),
)
PROMPTS = PrefillTable(
    lengths=(128, 1024, 4096),
    batches=(1, 4),
    seconds=((4e-5, 1.4e-4), (5e-4, 1.9e-3), (6e-3, 2.4e-2)),
    launch_s=3e-5,
)
LAUNCHES = PrefillTable(
    lengths=(128, 1024, 4096), batches=(1, 4), seconds=((1e-4, 3e-4), (5e-4, 1.9e-3), (6e-3, 2.4e-2))
)
"""Short prompts take a launch that longer ones do not, so a token of theirs takes longer."""


def whole(length: int, prompts: int = 1) -> float:
    return PROMPTS(prompts * length, prompts * length * (length + 1) // 2)


def test_what_was_measured_comes_out_as_measured():
    for batch, row in zip(DECODE.batches, DECODE.seconds, strict=True):
        for context, seconds in zip(DECODE.contexts, row, strict=True):
            assert DECODE(batch, batch * context) == pytest.approx(seconds)
    for length, row in zip(PROMPTS.lengths, PROMPTS.seconds, strict=True):
        for prompts, seconds in zip(PROMPTS.batches, row, strict=True):
            assert whole(length, prompts) == pytest.approx(seconds)


@given(st.integers(1, 200), st.integers(1, 20_000), st.integers(0, 50))
def test_a_line_holds_until_it_says(batch, mean, more):
    context = batch * mean
    fixed, a_token, until = DECODE.line(batch, context)
    if until is not None:
        assert until >= mean
        more = min(more, until - mean)
        after = DECODE.line(batch, batch * (until + 1))
        assert after.until is None or after.until > until
    grown = context + batch * more
    assert DECODE.line(batch, grown) == (fixed, a_token, until)
    assert DECODE(batch, grown) == pytest.approx(fixed + a_token * grown)


CHUNKS = ChunkTable(
    tokens=(16, 256, 2048),
    histories=(0, 1024, 8192),
    seconds=((1e-4, 2e-4, 5e-4), (2e-4, 6e-4, 4e-3), (6e-3, 1.2e-2, 5e-2)),
    launch_s=1e-4,
)


def test_a_chunk_that_was_measured_comes_out_as_measured():
    for tokens, row in zip(CHUNKS.tokens, CHUNKS.seconds, strict=True):
        for history, seconds in zip(CHUNKS.histories, row, strict=True):
            assert CHUNKS(tokens, tokens * history + tokens * (tokens + 1) // 2) == pytest.approx(seconds)


@given(st.integers(1, 5000), st.integers(0, 30_000_000))
def test_more_pairs_never_take_a_chunk_less_nor_less_than_a_launch(tokens, pairs):
    assert CHUNKS.launch_s <= CHUNKS(tokens, pairs) <= CHUNKS(tokens, pairs + tokens) + 1e-12


def test_a_table_of_one_point_is_a_constant():
    table = DecodeTable(batches=(4,), contexts=(100,), seconds=((1e-3,),))
    assert table(1, 7) == table(9, 100_000) == 1e-3


def test_a_chunk_behind_a_history_is_its_part_of_the_longer_prompt():
    # 512 tokens behind 768 attend to 768 + 256.5 keys in the mean, as those of a prompt of 2,048 do.
    chunk = PROMPTS(512, 512 * 768 + 512 * 513 // 2)
    # A launch of four times as much has a smaller share of it.
    assert chunk == pytest.approx(whole(2048) / 4, rel=0.02)
    assert PROMPTS(1, 128) == 3e-5, "no less than a launch"


@given(st.sampled_from([PROMPTS, LAUNCHES]), st.integers(1, 9000), st.integers(0, 30_000))
def test_more_history_never_takes_a_prompt_less(table, tokens, history):
    pairs = tokens * history + tokens * (tokens + 1) // 2
    assert table(tokens, pairs) <= table(tokens, pairs + tokens) + 1e-12


@pytest.mark.parametrize(
    ("batches", "contexts", "seconds", "says"),
    [
        ((2, 1), (1,), ((1.0,), (1.0,)), "sizes must rise"),
        ((1, 2), (1,), ((1.0,),), "needs 2 rows of 1 times"),
        ((1,), (1, 2), ((2.0, 1.0),), "must not fall with the context"),
        ((1,), (1,), ((float("nan"),),), "seconds from 0"),
        ((0,), (1,), ((1.0,),), "greater than or equal to 1"),
    ],
)
def test_a_table_that_makes_no_sense_is_refused(batches, contexts, seconds, says):
    with pytest.raises(ValidationError, match=says):
        DecodeTable(batches=batches, contexts=contexts, seconds=seconds)


@pytest.mark.parametrize(
    ("seconds", "says"),
    [(((1e-3, 9e-4),), "must not fall with the history"), (((1e-5, 1e-3),), "than a launch")],
)
def test_chunks_that_make_no_sense_are_refused(seconds, says):
    with pytest.raises(ValidationError, match=says):
        ChunkTable(tokens=(16,), histories=(0, 64), seconds=seconds, launch_s=1e-4)
