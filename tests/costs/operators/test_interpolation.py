"""What lies between, beyond and beside the points of tables."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from pagesim.costs.operators import Tables, held_out
from pagesim.costs.operators.decoding import Decoding
from pagesim.costs.operators.experts import Experts, curve
from pagesim.costs.operators.gemm import Gemm, guess, guess_shape
from pagesim.costs.operators.grids import Grid
from pagesim.costs.operators.heads import Stand, stands_for
from pagesim.costs.operators.prompts import Prompts
from pagesim.costs.operators.reduces import EAGER_S, Reduces
from pagesim.costs.operators.table_rows import Rows, read_rows
from pagesim.errors import PagesimError
from tests.costs.operators.conftest import SYSTEM, decode_ms, gemm_ms, prompt_ms


def test_a_product_lies_between_measured_shapes_and_tokens(tables: Tables):
    assert tables.gemm is not None
    gemm = Gemm.read(tables.gemm[0], "bfloat16")
    # What is linear in each of m, n and k comes out as it is, measured or not.
    for m, n, k in [(1, 1024, 1024), (100, 6144, 4096), (3000, 14336, 5120), (7, 1536, 16384)]:
        assert gemm(m, n, k) == pytest.approx(gemm_ms(m, n, k) / 1e3)
    # Beyond the largest it goes with them, below the smallest it is the smallest's.
    assert gemm(64, 32768, 4096) == pytest.approx(2 * gemm(64, 16384, 4096))
    assert gemm(8192, 4096, 4096) == pytest.approx(2 * gemm(4096, 4096, 4096))
    assert gemm(64, 512, 4096) == gemm(64, 1024, 4096)


def test_kernels_are_joined_by_tokens_and_none_runs_into_the_next():
    few, many = np.array([1, 8, 16]), np.array([32, 64, 128])
    sizes = np.concatenate([few, many])
    seconds = np.concatenate([np.array([1.0, 1.0, 1.2]), np.array([3.0, 3.2, 3.6])])
    names = np.array(["a"] * 3 + ["b"] * 3, object)
    same = np.full(6, 64)
    rows = Rows(Path("x"), {"m": sizes, "n": same, "k": same, "kernel_source": names, "seconds": seconds})
    gemm = Gemm(Grid.of(rows, "m", "n", "k"))
    assert [gemm(m, 64, 64) for m in (16, 24, 31, 32, 48)] == pytest.approx([1.2, 1.2, 1.2, 3.0, 3.1])


def test_a_point_that_was_left_out_is_guessed_from_its_neighbours(tables: Tables):
    assert tables.gemm is not None
    grid = Grid.of(tables.gemm[0], "m", "n", "k")
    points = [p for p in grid.held_out("bfloat16", 0) if 0 < p[1] < 4 and 0 < p[2] < 4]
    assert len(points) > 5
    for point in points:
        measured = grid.seconds[point]
        assert guess(grid, point) == pytest.approx(measured)
        assert guess_shape(grid, point) == pytest.approx(measured)
        thin = grid.without([point])
        assert np.isnan(thin.seconds[point])
        assert thin.filled(guess, [point]).seconds[point] == pytest.approx(measured)


def test_a_fifth_is_held_out_and_never_an_end(tables: Tables):
    assert tables.gemm is not None
    grid = Grid.of(tables.gemm[0], "m", "n", "k")
    fifths = [grid.held_out("x", 0, fifth) for fifth in range(5)]
    inner = [point for point in grid.points() if 0 < point[0] < len(grid.axes[0]) - 1]
    assert sorted(point for fifth in fifths for point in fifth) == inner  # each is held out once
    assert all(len(inner) / 8 < len(each) < len(inner) / 3 for each in fifths)
    assert grid.held_out("x", 0) == fifths[0]
    assert grid.held_out("y", 0) != fifths[0]


def test_decode_attention_is_linear_in_context_between_knots_and_beyond(tables: Tables):
    assert tables.decoding is not None
    plane = Decoding(tables.decoding[0], "bfloat16").plane(32, 8, 128)
    assert plane is not None
    for batch, context in [(1, 100), (3, 3000), (200, 1000), (256, 16384), (300, 40_000)]:
        assert plane(batch, context) == pytest.approx(decode_ms(batch, context, 8) / 1e3)


def test_sequences_of_more_kv_heads_are_more_sequences(tables: Tables):
    assert tables.decoding is not None
    decoding = Decoding(tables.decoding[0], "bfloat16")
    plane = decoding.plane(128, 32, 128)
    assert plane is not None
    assert plane(5, 1000) == pytest.approx(decode_ms(20, 1000, 8) / 1e3)
    assert decoding.plane(32, 8, 64) is None
    assert decoding.plane(7, 7, 128) is None


def test_a_window_that_was_not_measured_costs_what_its_size_does(tables: Tables):
    assert tables.decoding is not None
    plane = Decoding(tables.decoding[0], "bfloat16").plane(32, 8, 128, window=100)
    assert plane is not None
    assert plane(4, 60) == pytest.approx(decode_ms(4, 60, 8) / 1e3)
    assert plane(4, 9000) == pytest.approx(decode_ms(4, 100, 8) / 1e3)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "known", "stands"),
    [
        (32, 8, {(32, 8), (8, 2)}, [Stand(32, 8, 1, 1.0)]),
        (128, 32, {(32, 8), (8, 2)}, [Stand(32, 8, 4, 1.0)]),
        (28, 4, {(24, 4), (32, 4)}, [Stand(24, 4, 1, 0.5), Stand(32, 4, 1, 0.5)]),
        (36, 12, {(12, 4)}, [Stand(12, 4, 3, 1.0)]),
        (28, 4, {(32, 4)}, []),
    ],
)
def test_heads_that_were_not_measured_have_stand_ins(heads, kv_heads, known, stands):
    assert list(stands_for(heads, kv_heads, known)) == stands


def test_prompts_lie_between_lengths_and_chunks_have_a_history(tables: Tables):
    assert tables.prompts is not None
    plane = Prompts(tables.prompts[0], "bfloat16").plane(32, 8, 128)
    assert plane is not None
    for batch, isl in [(1, 300), (3, 1500), (100, 200)]:
        assert plane(batch, isl) == pytest.approx(prompt_ms(batch, isl, 32) / 1e3)
    # Whole prompts are themselves.
    table = plane.prefill_table()
    for batch, isl, off in [(1, 512, 0.001), (4, 1024, 0.001), (3, 1500, 0.02)]:
        taken = table(batch * isl, batch * isl * (isl + 1) // 2)
        assert taken == pytest.approx(plane(batch, isl), rel=off)
    # A prompt's chunks attend to as many pairs together as the whole, and cost as much but for launches.
    whole = plane(1, 4096)
    parts = [table(1024, 1024 * 1024 * i + 1024 * 1025 // 2) for i in range(4)]
    assert table(0, 0) == 0
    assert parts == sorted(parts)
    assert sum(parts) == pytest.approx(whole, rel=0.1)


def test_long_prompts_that_were_not_timed_together_take_their_share_each(tables: Tables):
    assert tables.prompts is not None
    plane = Prompts(tables.prompts[0], "bfloat16").plane(32, 8, 128)
    assert plane is not None
    assert plane(256, 4096) == pytest.approx(32 * plane(8, 4096))


def test_all_reduces_are_cheaper_in_a_graph(tables: Tables):
    assert tables.reduces is not None
    reduces = Reduces(tables.reduces[0])
    graph, eager = reduces.curve(2, graph=True), reduces.curve(2, graph=False)
    assert graph is not None
    assert eager is not None
    assert graph(300_000) == pytest.approx((0.004 + 0.003) / 1e3)
    assert eager(300_000) == pytest.approx((0.02 + 0.003) / 1e3 + EAGER_S)
    assert graph(1 << 25) == pytest.approx(2 * graph(1 << 24))
    assert reduces.curve(8, graph=True) is None


def test_experts_are_those_of_the_shape_and_routing(tables: Tables):
    assert tables.experts is not None
    experts = Experts(tables.experts[0], "bfloat16")
    found = experts.grid((2048, 768, 8, 128), 2, 1)
    assert found is not None
    routing, grid = found
    assert routing == "power_law_1.2"
    sizes = np.array([1, 3, 100, 4096, 8192])
    expected = [0.01e-3 * s**0.5 for s in (1, 3, 100, 4096)]
    assert curve(grid, sizes).tolist() == pytest.approx([*expected, 2 * expected[-1]])
    balanced = experts.grid((2048, 768, 8, 128), 2, 1, ("uniform", "balanced"))
    assert balanced is not None
    assert balanced[0] == "balanced"
    assert experts.grid((2048, 768, 8, 64), 1, 1) is None
    assert experts.grid((2048, 768, 8, 128), 4, 1) is None


def test_held_out_points_of_simple_rules_are_found_again(store: Path):
    scores = {score.term: score for score in held_out(SYSTEM, tables=store)}
    assert set(scores) == {
        *("linear", "linear, shapes", "decode", "prompts", "all_reduce", "experts"),
        *("layer, decode", "layer, prompts"),
    }
    # Linear in every size: nothing is wrong, wherever a point has neighbours.
    for term in ("linear", "linear, shapes", "decode", "experts"):
        assert scores[term].mean < 1e-9, term
        assert scores[term].points > 3
        assert scores[term].passes
    assert scores["prompts"].mean < 0.001  # a mean of two lines, in logarithms
    assert scores["all_reduce"].mean < 0.01  # the middle one of lines and of ratios to others
    assert scores["all_reduce"].passes
    assert scores["layer, decode"].mean < 1e-9
    assert scores["linear"].floor == pytest.approx(0, abs=1e-9)


def test_a_table_that_jumps_is_wrong_by_its_jumps(store: Path, put_table):
    rows = [
        {
            **{"num_gpus": 2, "message_size": 1 << s, "backend": "vllm_graph", "kernel_source": "a"},
            "latency": 1.0 + (s % 2),
        }
        for s in range(7, 27)
    ]
    put_table("comm/vllm/1.2.0/custom_allreduce_perf", rows)
    score = next(each for each in held_out(SYSTEM, tables=store) if each.term == "all_reduce")
    assert score.points == 18
    # Neighbours of a point at 1 ms took 2 ms, those of one at 2 ms 1 ms.
    assert score.floor == pytest.approx((1 + 0.5) / 2)
    assert score.mean > 0.3
    assert not score.passes


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"latency": [0.0, 1.0]}, "must be above 0"),
        ({"latency": [float("nan"), 1.0]}, "no finite number"),
        ({"latency": ["a", "b"]}, "must hold numbers"),
        ({"m": [0.5, 1.0]}, "not whole"),
        ({"m": [-1, 1]}, "not whole or below 0"),
        ({"m": None}, "has no column m"),
        ({"kernel_source": [1, 2]}, "must hold texts"),
    ],
)
def test_damaged_tables_are_refused_by_name(tmp_path: Path, change, said):
    import pandas as pd

    columns = {"m": [1, 2], "kernel_source": ["a", "b"], "latency": [1.0, 2.0], **change}
    file = tmp_path / "t.parquet"
    pd.DataFrame({name: values for name, values in columns.items() if values is not None}).to_parquet(file)
    with pytest.raises(PagesimError, match=said):
        read_rows(file, ("m",), ("kernel_source",))
    (tmp_path / "u.parquet").write_bytes(b"PAR1")
    with pytest.raises(PagesimError, match="no Parquet file"):
        read_rows(tmp_path / "u.parquet", ("m",), ())
    with pytest.raises(PagesimError, match="cannot be read"):
        read_rows(tmp_path / "v.parquet", ("m",), ())


@pytest.mark.slow
@pytest.mark.parametrize("system", ["h100_sxm", "h200_sxm", "a100_sxm", "b200_sxm"])
def test_the_published_tables_are_interpolated_within_their_bars(installed: Path, system: str):
    scores = held_out(system, tables=installed)
    barred = [score for score in scores if score.bar is not None]
    assert {score.term for score in barred} == {"linear", "decode", "prompts", "all_reduce", "experts"}
    assert [score for score in barred if not score.passes] == []
    assert all(score.points >= 50 for score in barred)


def test_no_point_of_the_grid_is_lost(tables: Tables):
    assert tables.gemm is not None
    grid = Grid.of(tables.gemm[0], "m", "n", "k")
    sizes = {grid.sizes(point) for point in grid.points()}
    assert sizes == set(product(*(axis.tolist() for axis in grid.axes)))
