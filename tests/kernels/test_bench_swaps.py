"""Swaps in the bench: what arrives is compared, and its rate is that of one large copy at most."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pagesim.kernels.bench import session as session_module  # noqa: E402
from pagesim.kernels.bench.grid import Grid  # noqa: E402
from pagesim.kernels.bench.rows import STRATEGIES, Point  # noqa: E402
from pagesim.kernels.bench.run import run_points  # noqa: E402
from pagesim.kernels.swap import CopyEach  # noqa: E402

SWAP = {"strategy": "copy-each", "direction": "out", "host_blocks": "neighbours"}
SIZE = {"pieces": 2, "piece_bytes": 64, "blocks": 3}


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
