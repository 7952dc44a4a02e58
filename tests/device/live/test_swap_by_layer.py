"""Swaps layer by layer in live runs: a layer's blocks have arrived when it reads and writes them."""

from __future__ import annotations

from functools import partial

import pytest

import pagesim as ps

pytest.importorskip("torch", reason="torch is not installed")

from pagesim.device.live import cached_attention, pools
from pagesim.kernels.swap import CopyEach, LayerSwap


@pytest.mark.slow_but("gather")
@pytest.mark.parametrize("swap", ["copy-each", "copy-batch", "gather"])
def test_what_was_taken_comes_back(swap, live, cases, make_trace):
    options, columns, _ = cases["sosp, swap"]
    try:
        live_on = live(make_trace(**columns), options, swap=swap, swap_by_layer=True).summary["live"]
    except ps.PagesimError as error:
        pytest.skip(str(error))
    assert live_on["swap_by_layer"]
    assert live_on["check"]["passed"], live_on["check"]
    assert live_on["check"]["sequences"]["swapped"]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["sosp, two samples", "sosp, beams", "v0"])
def test_blocks_are_copied_when_all_layers_have_arrived(case, live, cases, make_trace):
    options, columns, kinds = cases[case]
    check = live(make_trace(**columns), options, swap_by_layer=True).summary["live"]["check"]
    assert check["passed"], check
    assert kinds <= check["sequences"].keys()


@pytest.fixture
def none_ahead(monkeypatch):
    """Let copies of a layer be put under way when it is joined: the model of these tests has two layers."""
    monkeypatch.setattr(pools, "LayerSwap", partial(LayerSwap, ahead=0))


@pytest.mark.slow_but("1")
@pytest.mark.parametrize("first", [0, 1])
def test_layers_that_do_not_wait_are_found(first, none_ahead, live, cases, make_trace, monkeypatch):
    join = LayerSwap.join

    def up_to_there(self, layer):
        if layer < first:
            join(self, layer)

    monkeypatch.setattr(LayerSwap, "join", up_to_there)
    options, columns, _ = cases["sosp, swap"]
    check = live(make_trace(**columns), options, swap_by_layer=True).summary["live"]["check"]
    assert not check["passed"]


def test_a_layers_blocks_cross_between_the_layer_before_and_itself(
    none_ahead, live, cases, make_trace, monkeypatch
):
    log = []
    write, move = cached_attention.CachedAttention.write, CopyEach.move

    def written(self, layer, keys, values):
        log.append(f"layer {layer}" if self._swap else "")
        write(self, layer, keys, values)

    def moved(self, direction, blocks, pieces):
        log.append(f"{direction} {pieces.start}:{pieces.stop}")
        move(self, direction, blocks, pieces)

    monkeypatch.setattr(cached_attention.CachedAttention, "write", written)
    monkeypatch.setattr(CopyEach, "move", moved)
    options, columns, _ = cases["sosp, swap"]
    result = live(make_trace(**columns), options, swap="copy-each", swap_by_layer=True, check=False)
    steps = result.steps
    moves = (steps["blocks_swapped_out"] > 0).astype(int) + (steps["blocks_swapped_in"] > 0)
    swapping = [place for place, what in enumerate(log) if what == "layer 0"]
    assert len(swapping) == (moves > 0).sum() > 0
    for place, count in zip(swapping, moves[moves > 0], strict=True):
        turn = log[place - count : place + count + 2]
        ways = ["out", "in"] if count == 2 else [turn[0].split()[0]]
        assert turn == [
            *(f"{way} 0:2" for way in ways), "layer 0", *(f"{way} 2:4" for way in ways), "layer 1"
        ]  # fmt: skip
