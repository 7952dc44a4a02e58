"""What is measured: the points of a grid, fewer of them, and batches of contexts of one length."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

from pagesim.device.calibration.points import Grid, Point
from pagesim.device.live.batch import columns_alike

GRID = Grid(
    tokens=(1, 2, 4, 8),
    sequences=(1, 2, 3),
    batches=(1, 8),
    contexts=(16, 64),
    prompts=((1, 30),),
    chunks=((4, 100),),
    blocks=(1,),
    iterations=(2,),
    most_context=200,
)


def test_a_quick_grid_has_every_second_size_and_the_last():
    quick = GRID.quick()
    assert (quick.tokens, quick.sequences, quick.batches) == ((1, 4, 8), (1, 3), (1, 8))
    assert (quick.prompts, quick.most_context) == (((1, 30),), 200)


def test_points_are_those_that_the_model_and_the_bound_on_context_allow():
    points = list(GRID.points([16, 32], longest=64, on_gpu=False))
    decode = [(p.block_size, p.size, p.context) for p in points if p.term == "decode"]
    # Eight contexts of 64 are more than 200 tokens together.
    assert decode == [(b, *each) for b in (16, 32) for each in ((1, 16), (1, 64), (8, 16))]
    assert [p for p in points if p.term == "prefill"] == [
        Point("prefill", block_size, 30, 1, 30) for block_size in (16, 32)
    ], "a chunk behind 100 tokens is longer than any sequence"
    assert [p.size for p in points if p.term == "write"] == [1, 2, 4, 8], "the block size plays no part"
    assert not [p for p in points if p.term == "launch"]


def test_a_batch_has_the_last_tokens_of_each_context():
    columns = columns_alike([1, 1, 2, 3], 5, np.zeros((4, 1), np.int32))
    assert columns.decodes == 2
    assert columns.positions.tolist() == [4, 4, 3, 4, 2, 3, 4]
    assert columns.lengths.tolist() == [5] * 4
    assert set(columns.slots.tolist()) == {-1}
