"""Running a bench: it resumes, failures are recorded, wrong results are failures, rows say all there is."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pagesim.errors import PagesimError  # noqa: E402
from pagesim.kernels.bench import attention as attention_module  # noqa: E402
from pagesim.kernels.bench import session as session_module  # noqa: E402
from pagesim.kernels.bench import store as store_module  # noqa: E402
from pagesim.kernels.bench.defaults import default_points  # noqa: E402
from pagesim.kernels.bench.rows import BENCHES, MEASURED, PARAMETERS, Point  # noqa: E402
from pagesim.kernels.bench.run import run_points  # noqa: E402
from pagesim.kernels.bench.session import Session  # noqa: E402
from pagesim.kernels.bench.store import JOURNAL, RowStore, read_rows  # noqa: E402

SECONDS = 1e-6
LINEAR = [Point("gemm", "linear", {"m": m, "n": 4, "k": 8, "dtype": "fp32"}) for m in (1, 2, 3)]
SHAPE = {"batch": 2, "context": 20, "q_heads": 4, "kv_heads": 2, "head_size": 64, "dtype": "fp32"}
DECODE = Point("attention", "paged-decode", {**SHAPE, "block_size": 16, "layout": "NHD"})


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Measure what all is compared with in no time, and with one thread: two would fight for a busy core."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(session_module.Session, "copy_gb_per_s", 10.0)
    monkeypatch.setattr(session_module.Session, "peak_tflop_per_s", 1.0)
    monkeypatch.setattr(session_module, "LINK_BYTES", 1 << 16)
    yield
    torch.set_num_threads(threads)


def run(points, out=None, **how):
    return run_points(points, "cpu", out, seconds=SECONDS, **how)


def test_every_op_runs_on_a_cpu_and_is_right(tmp_path):
    points = [point for bench in BENCHES for point in default_points(bench, "cpu", quick=True)]
    outcome = run(points, tmp_path)
    assert [row["error"] for row in outcome.rows if row["status"] != "ok"] == []
    assert len(outcome.rows) == outcome.measured == len(points)
    for row in outcome.rows:
        assert row.keys() == {"schema", "key", "machine", *PARAMETERS, *MEASURED}
        assert row["median_s"] > 0
        assert row["fraction"] == pytest.approx(row["gb_per_s"] / row["reference_gb_per_s"])
        assert row["gb_per_s"] == pytest.approx(row["bytes_moved"] / row["median_s"] / 1e9)
        assert row["of_peak"] == (row["tflop_per_s"] if row["flops"] else None)
        checked = row["bench"] != "gemm" and row["op"] not in ("device-copy", "pinned-copy")
        assert (row["max_error"] is not None) == checked


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp8"])
def test_every_dtype_and_layout_is_right(dtype, layout):
    paged = {**SHAPE, "dtype": dtype, "layout": layout, "block_size": 8}
    points = [Point("attention", op, paged) for op in ("paged-decode", "gather-decode")]
    points.append(Point("attention", "paged-prefill", {**paged, "query": 7}))
    cache = {"block_size": 8, "kv_heads": 2, "head_size": 64, "dtype": dtype, "layout": layout}
    points.append(Point("copy", "reshape-and-cache", {"tokens": 21, **cache}))
    assert [row["error"] for row in run(points).rows] == [None] * 4


@pytest.mark.parametrize("latent", [{}, {"latent": 256}])
def test_latents_of_either_width_are_read_and_written_right(latent):
    common = {"block_size": 8, "dtype": "fp32", **latent}
    width = latent.get("latent", 512) + 64
    read = Point("attention", "mla-decode", {"batch": 3, "context": 21, "q_heads": 4, **common})
    written = Point("copy", "mla-write", {"tokens": 21, **common})
    of_read, of_written = run([read, written]).rows
    assert (of_read["error"], of_written["error"]) == (None, None)
    assert of_read["bytes_moved"] == 3 * (21 * width + 4 * (2 * width - 64)) * 4 + 4 * 3 * 3
    assert of_written["bytes_moved"] == 2 * 21 * width * 4 + 8 * 21
    assert of_written["max_error"] == 0


@pytest.mark.parametrize("row", [0, 1])
def test_a_wrong_last_query_of_either_sequence_is_found(monkeypatch, row):
    prefill = Point("attention", "paged-prefill", {**SHAPE, "query": 9, "block_size": 8, "layout": "NHD"})
    attend = attention_module.paged_attention

    def wrong(*given, out, **how):
        attend(*given, out=out, **how)[9 * row + 8] *= 1.1
        return out

    monkeypatch.setattr(attention_module, "paged_attention", wrong)
    (found,) = run([prefill]).rows
    assert (found["status"], found["max_error"]) == ("failed", None)
    assert "the result is off by" in found["error"]


def test_a_rows_bytes_and_flops_are_those_of_the_shape():
    (row,) = run([DECODE]).rows
    cached, queries = 2 * 2 * 20 * 2 * 64 * 4, 2 * 4 * 64 * 4
    assert row["bytes_moved"] == cached + 2 * queries + 4 * 2 * 2
    assert row["flops"] == 4 * 2 * 20 * 4 * 64
    prefill = Point("attention", "paged-prefill", {**DECODE.parameters, "query": 3})
    (row,) = run([prefill]).rows
    assert row["flops"] == 4 * 2 * (18 + 19 + 20) * 4 * 64


def test_a_bench_that_is_killed_goes_on_where_it_was(tmp_path, monkeypatch):
    measure = Session.measure

    def killed(self, point, prepare):
        if point == LINEAR[2]:
            raise KeyboardInterrupt
        return measure(self, point, prepare)

    monkeypatch.setattr(Session, "measure", killed)
    with pytest.raises(KeyboardInterrupt):
        run(LINEAR, tmp_path)
    assert [row["m"] for row in read_rows(tmp_path)] == [1, 2]
    # A kill may cut the line that is being written.
    journal = tmp_path / JOURNAL
    journal.write_bytes(journal.read_bytes() + b'{"schema": 2, "key": "abc", "m"')
    assert [row["m"] for row in read_rows(tmp_path)] == [1, 2]
    monkeypatch.setattr(Session, "measure", measure)
    outcome = run(LINEAR, tmp_path)
    assert outcome.measured == 1
    assert [row["m"] for row in read_rows(tmp_path)] == [1, 2, 3]


def test_another_machine_or_other_code_measures_anew(tmp_path, monkeypatch):
    run(LINEAR[:1], tmp_path)
    describe = session_module.describe_machine
    monkeypatch.setattr(
        session_module, "describe_machine", lambda device: {**describe(device), "source": "x"}
    )
    assert run(LINEAR[:1], tmp_path).measured == 1
    assert len(read_rows(tmp_path)) == 2


FAILURES = {
    "failed": (ValueError("no such\nluck"), "ValueError: no such"),
    "out-of-memory": (
        torch.OutOfMemoryError("CUDA out of memory. Tried"),
        "OutOfMemoryError: CUDA out of memory",
    ),
    "unavailable": (session_module.Unavailable("flashinfer is not installed"), "flashinfer is not installed"),
}


@pytest.mark.parametrize("status", FAILURES)
def test_a_point_that_fails_is_recorded_and_the_next_goes_on(status, tmp_path, monkeypatch):
    error, said = FAILURES[status]

    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(attention_module, "paged_attention", fails)
    outcome = run([LINEAR[0], DECODE, LINEAR[1]], tmp_path)
    assert [row["status"] for row in outcome.rows] == ["ok", status, "ok"]
    failed = outcome.rows[1]
    assert failed["error"].startswith(said)
    assert failed["median_s"] is failed["fraction"] is None

    monkeypatch.undo()
    assert run([DECODE], tmp_path).rows[0]["status"] == status, "what failed is not tried again by itself"
    outcome = run([LINEAR[0], DECODE], tmp_path, retry_failed=True)
    assert outcome.measured == 1
    assert [row["status"] for row in read_rows(tmp_path)] == ["ok", "ok", "ok"]


def test_a_cpu_without_room_is_out_of_memory(monkeypatch):
    giant = {**DECODE.parameters, "batch": 1 << 14, "context": 1 << 20}
    (row,) = run([Point("attention", "paged-decode", giant)]).rows
    assert row["status"] == "out-of-memory"
    assert row["error"].startswith("MemoryError: 8.8e+03 GB are needed and the host has ")


@pytest.mark.parametrize("mistake", ["nothing written", "a tenth too much"])
def test_a_wrong_result_is_no_measurement(mistake, monkeypatch):
    decode = attention_module.paged_attention

    def wrong(*arguments: object, out: torch.Tensor, **options: object) -> torch.Tensor:
        if mistake == "nothing written":
            return out
        return decode(*arguments, out=out, **options).mul_(1.1)

    monkeypatch.setattr(attention_module, "paged_attention", wrong)
    (row,) = run([DECODE]).rows
    assert row["status"] == "failed"
    assert row["error"].startswith("WrongResult: the result is off by ")


def test_a_gpu_that_a_point_left_unusable_ends_the_run_behind_its_record(tmp_path, monkeypatch):
    def loses(self, point, prepare):
        self.lost = "CUDA error: an illegal memory access"
        return {"status": "failed", "error": "RuntimeError: boom"}

    monkeypatch.setattr(Session, "measure", loses)
    with pytest.raises(PagesimError, match=r"linear m=1 .*left the GPU unusable .*to go on"):
        run(LINEAR, tmp_path)
    monkeypatch.undo()
    assert [row["status"] for row in run(LINEAR, tmp_path).rows] == ["failed", "ok", "ok"]


def test_progress_is_told():
    heard = []
    run(LINEAR[:2], progress=lambda *said: heard.append(said))
    assert heard == [
        (0, 2, "linear m=1 n=4 k=8 dtype=fp32"),
        (1, 2, "linear m=2 n=4 k=8 dtype=fp32"),
        (2, 2, ""),
    ]


def test_a_point_is_measured_once_however_often_it_is_named():
    assert run([LINEAR[0], LINEAR[0]]).measured == 1


def test_inputs_follow_from_the_seed_and_the_point_in_any_order(monkeypatch):
    seen: set[float] = set()
    linear = torch.nn.functional.linear

    def noting(tokens: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        seen.add(float(tokens.sum() * weights.sum()))
        return linear(tokens, weights)

    monkeypatch.setattr(torch.nn.functional, "linear", noting)

    def inputs(points: list[Point], seed: int) -> set[float]:
        seen.clear()
        run(points, seed=seed)
        return set(seen)

    first = inputs(LINEAR, 0)
    assert len(first) == 3
    assert inputs(LINEAR[::-1], 0) == first
    assert not inputs(LINEAR, 1) & first


def test_tables_are_published_with_the_whole_machine(tmp_path):
    run(LINEAR, tmp_path)
    table = pd.read_parquet(tmp_path / "rows.parquet")
    whole = json.loads((tmp_path / "rows.json").read_text())
    assert whole["schema"] == 2
    assert whole["rows"] == read_rows(tmp_path)
    assert table["m"].tolist() == [1, 2, 3]
    assert set(table.columns) == {
        "schema", "key", *PARAMETERS, *MEASURED, *(f"machine_{name}" for name in whole["rows"][0]["machine"])
    }  # fmt: skip
    assert table["machine_torch"].eq(torch.__version__).all()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["rows.json", JOURNAL, "rows.parquet"]


def test_columns_keep_their_type_where_they_are_empty(tmp_path):
    from pyarrow import parquet

    run(LINEAR[:1], tmp_path / "a")
    run([DECODE], tmp_path / "b")
    schemas = [parquet.read_schema(tmp_path / name / "rows.parquet") for name in ("a", "b")]
    for name in (*PARAMETERS, *MEASURED):
        assert schemas[0].field(name).type == schemas[1].field(name).type, name


FOLDERS = {
    "a file": (lambda path: path.write_text("x"), "exists and is no folder"),
    "something else": (lambda path: _put(path, "a", "x"), "holds no rows of a bench"),
    "damage": (lambda path: _put(path, JOURNAL, "no json\n"), "line 1: is no JSON"),
    "another schema": (lambda path: _put(path, JOURNAL, '{"schema": 7, "key": "a"}\n'), "schema is 7"),
    "no row": (lambda path: _put(path, JOURNAL, "[1]\n"), "schema is None"),
    "below a file": (lambda path: (path.parent / "f").write_text("x"), "cannot be written"),
}


def _put(folder: Path, name: str, text: str) -> None:
    folder.mkdir()
    (folder / name).write_text(text)


@pytest.mark.parametrize("case", FOLDERS)
def test_a_folder_that_cannot_hold_rows_is_named_before_any_work(case, tmp_path):
    make, said = FOLDERS[case]
    make(tmp_path / "out")
    folder = tmp_path / "f" / "out" if case == "below a file" else tmp_path / "out"
    before = {file: file.read_text() for file in tmp_path.rglob("*") if file.is_file()}
    with pytest.raises(PagesimError) as error:
        run(LINEAR, folder)
    assert said in str(error.value)
    assert {file: file.read_text() for file in tmp_path.rglob("*") if file.is_file()} == before


def test_two_benches_do_not_write_to_one_folder(tmp_path):
    with RowStore(tmp_path), pytest.raises(PagesimError, match="another bench is writing there"):
        RowStore(tmp_path)
    with RowStore(tmp_path):
        pass


def test_a_full_disk_leaves_the_older_tables(tmp_path, monkeypatch):
    run(LINEAR[:1], tmp_path)
    before = (tmp_path / "rows.parquet").read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store_module, "write_parquet", full)
    with pytest.raises(PagesimError, match="No space left on device"):
        run(LINEAR, tmp_path)
    assert (tmp_path / "rows.parquet").read_bytes() == before
    assert len(read_rows(tmp_path)) == 3, "what was measured is kept all the same"
