"""Swaps in the bench: what arrives is compared; iterations that swap are timed without, before, beside."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pagesim.kernels.bench import iteration  # noqa: E402
from pagesim.kernels.bench import session as session_module  # noqa: E402
from pagesim.kernels.bench.grid import Grid  # noqa: E402
from pagesim.kernels.bench.rows import STRATEGIES, Point  # noqa: E402
from pagesim.kernels.bench.run import run_points  # noqa: E402
from pagesim.kernels.swap import CopyEach, LayerSwap  # noqa: E402
from pagesim.kernels.timing import Timing  # noqa: E402

SWAP = {"strategy": "copy-each", "direction": "out", "host_blocks": "neighbours"}
SIZE = {"pieces": 2, "piece_bytes": 64, "blocks": 3}
DECODE = {
    "batch": 1, "context": 16, "block_size": 16, "q_heads": 2, "kv_heads": 1, "head_size": 64,
    "dtype": "fp32", "layout": "NHD",
}  # fmt: skip
ITERATION = {**DECODE, "batch": 2, "n": 32, "k": 16, "pieces": 4, "piece_bytes": 16 * 64 * 4, "blocks": 2}
BY_LAYER = Point("swap", "swap-by-layer", {**SWAP, **ITERATION})


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(session_module.Session, "copy_gb_per_s", 10.0)
    monkeypatch.setattr(session_module.Session, "peak_tflop_per_s", 1.0)
    monkeypatch.setattr(session_module, "LINK_BYTES", 1 << 16)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.slow_but("scattered-out")
@pytest.mark.parametrize("direction", ["out", "in"])
@pytest.mark.parametrize("host_blocks", ["neighbours", "scattered"])
def test_every_strategy_is_measured_against_one_large_copy(direction, host_blocks):
    shapes = {("pieces", "piece_bytes", "blocks"): ((2, 64, 3), (1, 4096, 4)), "direction": (direction,)}
    grid = Grid("swap", ("swap",), {**shapes, "host_blocks": (host_blocks,), "strategy": STRATEGIES})
    rows = run_points(grid.points(), "cpu", seconds=1e-6).rows
    for row in rows:
        if row["strategy"] == "copy-batch":
            assert row["status"] == "unavailable"
            assert row["error"] == "strategy copy-batch: batched copies need a CUDA GPU"
        else:
            assert row["error"] is None
            assert row["reference"] == f"pinned-copy-{direction}"
    moved = [row["bytes_moved"] for row in rows if row["status"] == "ok"]
    assert moved == [384] * 2 + [16384] * 2


@pytest.mark.parametrize("direction", ["out", "in"])
def test_a_swap_that_moves_the_wrong_bytes_fails(direction, monkeypatch):
    move = CopyEach.move

    def wrong(self, direction, blocks, pieces):
        blocks.device = blocks.device[::-1].copy()
        move(self, direction, blocks, pieces)

    monkeypatch.setattr(CopyEach, "move", wrong)
    (row,) = run_points(
        [Point("swap", "swap", {**SWAP, **SIZE, "direction": direction})], "cpu", seconds=1e-6
    ).rows
    assert row["status"] == "failed"
    assert row["error"].startswith("WrongResult: ")


@pytest.mark.parametrize("direction", ["out", "in"])
@pytest.mark.parametrize("strategy", ["copy-each", "gather"])
def test_an_iteration_is_timed_without_its_swap_with_it_in_front_and_by_layer(strategy, direction):
    point = replace(
        BY_LAYER, parameters={**BY_LAYER.parameters, "strategy": strategy, "direction": direction}
    )
    (row,) = run_points([point], "cpu", seconds=1e-6).rows
    assert row["error"] is None
    assert row["bytes_moved"] == 2 * 4 * 4096
    assert min(row["alone_s"], row["in_front_s"], row["swap_s"], row["median_s"]) > 0
    assert row["reference"] == f"pinned-copy-{direction}"
    assert row["max_error"] == 0


def test_what_each_of_the_times_is_of(monkeypatch):
    done = []
    move, attend = CopyEach.move, iteration.paged_attention

    def moved(self, direction, blocks, pieces):
        done.append(f"{pieces.start}:{pieces.stop}")
        move(self, direction, blocks, pieces)

    def attended(*given, **options):
        done.append("layer")
        return attend(*given, **options)

    class Clock:
        def time(self, calls, budget_s):
            done.clear()
            calls[0]()
            timed.append(list(done))
            return Timing(1.0, 1.0, 1.0, 0.0, 1, "cpu")

    timed = []
    monkeypatch.setattr(CopyEach, "move", moved)
    monkeypatch.setattr(iteration, "paged_attention", attended)
    monkeypatch.setattr(iteration, "CpuClock", Clock)
    run_points([BY_LAYER], "cpu", seconds=1e-6)
    alone, in_front, alone_swap, layered = timed
    assert alone == ["layer", "layer"]
    assert in_front == ["0:4", "layer", "layer"]
    assert alone_swap == ["0:4"]
    assert sorted(layered) == ["0:2", "2:4", "layer", "layer"]


def test_an_iteration_whose_layers_do_not_swap_fails(monkeypatch):
    monkeypatch.setattr(LayerSwap, "_start", lambda self, layers: None)
    monkeypatch.setattr(LayerSwap, "join", lambda self, layer: None)
    monkeypatch.setattr(LayerSwap, "wait", lambda self: None)
    (row,) = run_points([BY_LAYER], "cpu", seconds=1e-6).rows
    assert (row["status"], row["error"].split(":")[0]) == ("failed", "WrongResult")


@pytest.mark.parametrize("odd", [{"pieces": 3}, {"piece_bytes": 64}])
def test_pieces_must_be_the_keys_and_values_of_layers(odd):
    point = replace(BY_LAYER, parameters={**BY_LAYER.parameters, **odd})
    (row,) = run_points([point], "cpu", seconds=1e-6).rows
    assert row["status"] == "failed"
    assert "keys and values of layers are an even number of 4096" in row["error"]
