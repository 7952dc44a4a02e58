"""Operator tables: which release counts, what is kept of a file, and what comes with pagesim."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pagesim.costs.operators.aiconfigurator import (
    SYSTEMS,
    held_out,
    read_system,
    tables_folder,
    tables_of,
)
from pagesim.costs.operators.states import delta_net
from pagesim.costs.operators.tables import (
    DATA,
    Chip,
    OperatorTable,
    OperatorTables,
    bundled_gpus,
    bundled_tables,
    packed,
    version_of,
)
from pagesim.errors import PagesimError
from pagesim.hardware import gpu
from tests.costs.operators.conftest import SYSTEM, gemm_ms

FIELDS = {"gemm_dtype": "bfloat16", "kernel_source": "a", "k": 64}


def products(latency: float) -> list[dict[str, object]]:
    return [{**FIELDS, "m": m, "n": n, "latency": latency} for m in (1, 2) for n in (64, 128)]


def table(seconds: list[list[float]], *axes: list[int]) -> OperatorTable:
    values = np.array(seconds)
    keys = np.arange(len(values)).reshape(-1, 1)
    return OperatorTable(("x", "y"), "vllm 1.0", keys, tuple(np.array(axis) for axis in axes), values)


def test_what_is_packed_is_at_most_a_thousandth_off_and_gaps_stay_gaps():
    given = table([[1e-6, 3.3e-5, np.nan, 7.0], [2e-6, 2e-6, 1e-3, 1.0]], [1, 2, 4, 100_000])
    content = packed([given])
    assert content == packed([given])
    (found,) = OperatorTables("x", content).all()
    assert (found.name, found.release) == (given.name, given.release)
    assert found.seconds == pytest.approx(given.seconds, rel=1.001e-3, nan_ok=True)
    assert [axis.tolist() for axis in found.axes] == [[1, 2, 4, 100_000]]
    assert found.row(1) is not None
    assert found.row(2) is None
    for damaged in (b"", content[:-40], b"PK"):
        with pytest.raises(PagesimError, match="operator tables of x are damaged"):
            OperatorTables("x", damaged)


def test_the_newest_release_comes_first(store: Path, put_table):
    for version in ("0.9.0", "0.10.0", "9.9.dev1"):
        put_table(f"gemm/vllm/{version}/gemm_perf", products(5.0))
    releases = [each.release for each in read_system(SYSTEM, tables=store).find("gemm")]
    assert releases == ["vllm 1.2.0", "vllm 0.10.0", "vllm 0.9.0"]  # a drop of one operator does not count
    assert version_of("vllm 0.10.0") > version_of("vllm 0.9.0")


@pytest.mark.parametrize(
    ("asked", "version"),
    [("0.9.0", "0.9.0"), ("1.0.0", "0.10.0"), ("1.3.0", "1.2.0"), ("0.1.0", "0.9.0")],
)
def test_one_release_that_is_asked_for_is_that_or_an_older_one(store: Path, put_table, asked, version):
    for other in ("0.9.0", "0.10.0"):
        put_table(f"gemm/vllm/{other}/gemm_perf", products(5.0))
    (found,) = read_system(SYSTEM, "vllm", asked, store).find("gemm")
    assert found.release == f"vllm {version}"


def test_what_is_not_there_is_named(store: Path, tmp_path: Path):
    with pytest.raises(PagesimError, match=r"system is 'h9'; it must be one of x1_sxm"):
        read_system("h9", tables=store)
    with pytest.raises(PagesimError, match=r"backend is 'x'; x1_sxm has tables of vllm"):
        read_system(SYSTEM, "x", tables=store)
    with pytest.raises(PagesimError, match="must be a folder that holds"):
        tables_folder(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"latency": [0.0, 1.0]}, "latency must hold milliseconds above 0"),
        ({"latency": [float("nan"), 1.0]}, "latency must hold milliseconds above 0"),
        ({"latency": ["a", "b"]}, "latency must hold milliseconds above 0"),
        ({"latency": None}, "has no column latency"),
        ({"m": [0.5, 1.0]}, "m holds a number that is not whole"),
        ({"m": [-1, 1]}, "m holds a number that is not whole or below 0"),
        ({"m": ["a", "b"]}, "m holds a number that is not whole"),
        ({"m": None}, "has no column m"),
    ],
)
def test_damaged_files_are_refused_by_name(store: Path, change, said):
    columns = {"m": [1, 2], "n": [64, 64], "k": [64, 64], "gemm_dtype": ["a", "a"], "latency": [1.0, 2.0]}
    columns |= {"kernel_source": ["a", "a"], **change}
    file = store / "data" / SYSTEM / "gemm" / "vllm" / "1.2.0" / "gemm_perf.parquet"
    pd.DataFrame({name: values for name, values in columns.items() if values is not None}).to_parquet(file)
    with pytest.raises(PagesimError, match=said):
        read_system(SYSTEM, tables=store)
    file.write_bytes(b"PAR1")
    with pytest.raises(PagesimError, match="no Parquet file"):
        read_system(SYSTEM, tables=store)


def test_every_point_of_a_file_is_kept(tables: OperatorTables):
    (gemm,) = tables.find("gemm", "bfloat16")
    n, k, m = (axis.tolist() for axis in gemm.axes)
    for at, shape in [((0, 0, 0), (m[0], n[0], k[0])), ((2, 3, 5), (m[5], n[2], k[3]))]:
        assert gemm.seconds[0][at] == pytest.approx(gemm_ms(*shape) / 1e3, rel=1.001e-3)
    assert np.isfinite(gemm.seconds).all()


def test_a_product_without_a_time_lies_on_the_line_of_its_shape_or_goes_with_k(store: Path, put_table):
    rows = [
        {**FIELDS, "m": m, "n": 64, "k": k, "latency": float(m * k)}
        for m in (1, 3, 9)
        for k in (10, 20, 60)
        if (m, k) != (3, 10) and k != 60
    ]
    put_table("gemm/vllm/1.2.0/gemm_perf", [*rows, {**FIELDS, "m": 9, "n": 64, "k": 60, "latency": 540.0}])
    (gemm,) = read_system(SYSTEM, tables=store).find("gemm")
    # (3, 10) is a quarter of the way from 10 to 90; of k 60 one time is no line: three times those of k 20.
    assert gemm.seconds[0, 0, 0] == pytest.approx([0.010, 0.030, 0.090], rel=2e-3)
    assert gemm.seconds[0, 0, 2] == pytest.approx([0.060, 0.180, 0.540], rel=2e-3)


def test_products_count_where_half_of_a_large_grid_was_timed(store: Path, put_table):
    def rows(dtype: str, sizes: int, every: int = 1) -> list[dict[str, object]]:
        grid = product(range(sizes), range(sizes))
        shapes = [{"m": 1 + m, "n": 64 + n} for m, n in grid if (m + n) % every == 0]
        return [{**FIELDS, **shape, "gemm_dtype": dtype, "latency": 1.0} for shape in shapes]

    # A third of 400 points is no grid, and 36 are under a tenth of 400.
    kinds = rows("bfloat16", 20) + rows("fp8", 20, every=3) + rows("int4_wo", 6) + rows("nvfp4", 7)
    put_table("gemm/vllm/1.2.0/gemm_perf", kinds)
    assert {each.name[1] for each in read_system(SYSTEM, tables=store).find("gemm")} == {"bfloat16", "nvfp4"}


def test_a_kernel_that_was_timed_as_the_host_launches_it_is_what_another_takes(store: Path, put_table):
    def rows(dtype: str, least: float) -> list[dict[str, object]]:
        return [
            {
                **{"gemm_dtype": dtype, "kernel_source": dtype, "m": m, "n": n, "k": k},
                "latency": max(least, 1e-3 + 1e-12 * m * n * k),
            }
            for m in (1, 64, 4096)
            for n in (256, 8192)
            for k in (256, 8192)
        ]

    put_table("gemm/vllm/1.2.0/gemm_perf", rows("fp8", 0.0) + rows("fp8_block", 0.06))
    tables = read_system(SYSTEM, tables=store)
    (fp8,), (block,) = tables.find("gemm", "fp8"), tables.find("gemm", "fp8_block")
    assert block.seconds[0, 0, 0, 0] == fp8.seconds[0, 0, 0, 0]  # hidden behind 60 µs
    assert block.seconds[0, 1, 1, 2] == fp8.seconds[0, 1, 1, 2]  # 276 µs, more than twice as much: its own


def test_experts_of_another_engine_fill_gaps_if_both_run_one_librarys_kernel(store: Path, put_table):
    def rows(kernel: str, experts: int, latency: float) -> list[dict[str, object]]:
        shape = {"hidden_size": 2048, "inter_size": 768, "topk": 8, "moe_tp_size": 1, "moe_ep_size": 1}
        rest = {"distribution": "balanced", "moe_dtype": "bfloat16", "kernel_source": kernel}
        return [
            {**shape, **rest, "num_experts": experts, "num_tokens": 1 << t, "latency": latency}
            for t in range(10)
        ]

    put_table("moe/vllm/1.2.0/moe_perf", rows("vllm_x_flashinfer_trtllm", 64, 1.0))
    put_table(
        "moe/sglang/0.6/moe_perf",
        rows("sglang_own", 32, 9.0)
        + rows("sglang_flashinfer_trtllm_moe", 64, 3.0)
        + rows("sglang_flashinfer_trtllm_moe", 16, 2.0),
    )
    own, theirs = read_system(SYSTEM, tables=store).find("experts", "bfloat16")
    assert (own.release, own.keys[:, 3].tolist()) == ("vllm 1.2.0", [64])
    assert (theirs.release, theirs.name[2]) == ("sglang 0.6", "flashinfer_trtllm")
    assert theirs.keys[:, 3].tolist() == [16], "64 is vLLM's own, and a kernel of SGLang's own is not vLLM's"


def test_kernels_of_a_recurrent_layer_are_summed(store: Path, put_table):
    shape = {"phase": "generation", "d_model": 8, "num_k_heads": 1, "num_v_heads": 2, "seq_len": 1}
    rows = [
        {**shape, "kernel_source": kernel, "batch_size": batch, "latency": latency}
        for kernel, batch, latency in [("a", 1, 1.0), ("b", 1, 2.0), ("a", 2, 4.0)]
    ]
    put_table("linear_attention/vllm/1.2.0/gdn_perf", rows)
    (found,) = read_system(SYSTEM, tables=store).find("states")
    assert found.axes[0].tolist() == [1]  # of two sequences one kernel was not timed
    assert found.seconds.ravel() == pytest.approx([3e-3], rel=2e-3)
    alone = Chip(gpu("h100"), read_system(SYSTEM, tables=store))
    assert delta_net(alone, 8, 1, 2) is None, "no prompts were timed"


def test_an_error_is_that_of_lines_between_neighbours():
    line = held_out(table([[1.0, 2.0, 4.0, 8.0, 16.0]], [1, 2, 4, 8, 16])).held_out
    assert (line.points, line.mean) == (3, pytest.approx(0))
    jump = held_out(table([[1.0, 1.0, 4.0, 1.0, 1.0]], [1, 2, 3, 4, 5])).held_out
    assert (jump.points, jump.worst) == (3, 1.5)  # 2.5 in place of 1, twice; 1 in place of 4
    assert jump.mean == pytest.approx((1.5 + 0.75 + 1.5) / 3)
    both = held_out(
        table([[[1.0, 1.0, 1.0], [4.0, 9.0, 4.0], [1.0, 1.0, 1.0]]], [1, 2, 3], [1, 2, 3])
    ).held_out
    # The middle one: the geometric mean of 1 and 4; four beside it lie on one line each.
    assert both.points == 5
    assert both.mean == pytest.approx((abs(2 / 9 - 1) + 2 * abs(1 / 4 - 1) + 0 + 0) / 5)


def test_tables_of_these_gpus_are_bundled():
    assert set(bundled_gpus()) == set(SYSTEMS.values())
    assert sum((DATA / f"{name}.npz").stat().st_size for name in bundled_gpus()) < 6_000_000
    for name in bundled_gpus():
        tables = bundled_tables(name)
        assert tables is not None
        assert tables.find("gemm", "bfloat16")
        assert {each.release for each in tables.find("gemm")} <= {"vllm 0.24.0", "vllm 0.14.0"}
        assert all(tables.find(family) for family in ("decode", "prompts", "all_reduce", "experts"))
        served = [each for each in tables.all() if each.name[0] in ("decode", "prompts", "experts")]
        off = {each.name: each.held_out.mean for each in served if each.held_out.points > 100}
        # Where two neighbours are held out at once, prompts over a cache in FP8 jump more on this one.
        bars = {("prompts", "fp8"): 0.13} if name == "l40s" else {}
        assert all(mean < bars.get(of, 0.11) for of, mean in off.items())
    h100, b200 = bundled_tables("h100"), bundled_tables("b200")
    assert h100 is not None
    assert b200 is not None
    assert [each.name[1] for each in h100.find("gemm")] == ["bfloat16", "fp8", "fp8_block"]
    assert b200.find("gemm", "nvfp4")
    assert tables_of("h100_sxm") is tables_of("h100") is h100


@pytest.mark.slow
def test_they_can_be_made_again(installed: Path):
    for system, name in SYSTEMS.items():
        made = packed(read_system(system, tables=installed.parent).all())
        assert made == (DATA / f"{name}.npz").read_bytes()
