"""``pagesim bench``: tables, files, going on after a kill, and one sentence for whatever is off."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pandas as pd
import pytest

from tests.commands import HANGS_AFTER_S

torch = pytest.importorskip("torch", reason="torch is not installed")

from pagesim.kernels.bench import session as session_module  # noqa: E402
from pagesim.kernels.bench.rows import BENCHES  # noqa: E402

FAST = ("--device", "cpu", "--seconds", "1e-6")
TINY = {
    "attention": (
        "--batch",
        "1",
        "--context",
        "17",
        "--heads",
        "2/1",
        "--head-size",
        "64",
        "--block-size",
        "1,16",
    ),
    "swap": ("--pieces", "2", "--piece-bytes", "64", "--blocks", "3"),
    "copy": ("--quick",),
    "gemm": ("--model", "opt-125m", "--tokens", "1"),
}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Measure what all is compared with in no time, and with one thread: two would fight for a busy core."""
    monkeypatch.setattr(session_module.Session, "copy_gb_per_s", 10.0)
    monkeypatch.setattr(session_module.Session, "peak_tflop_per_s", 1.0)
    monkeypatch.setattr(session_module, "LINK_BYTES", 1 << 16)
    monkeypatch.setenv("COLUMNS", "160")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("bench", BENCHES)
def test_a_grid_is_measured_and_shown(bench, succeeds):
    shown = succeeds("bench", bench, *TINY[bench], *FAST).out
    for part in ("µs", "GB/s", "of link" if bench == "swap" else "of copy", "noise", "points measured"):
        assert part in shown
    if bench == "attention":
        for op in ("paged-decode", "contiguous-decode", "gather-decode", "sdpa-decode"):
            assert op in shown
        assert "Attention, 2/1 heads, D 64, fp32, NHD\n" in shown
        assert " paged-decode 1 × 17, block 16 " in shown
    assert "they say nothing of the kernels" in shown


@pytest.mark.parametrize("width", ["80", "200"])
def test_parameters_are_shown_whole(width, succeeds, monkeypatch):
    monkeypatch.setenv("COLUMNS", width)
    shown = succeeds("bench", "gemm", *TINY["gemm"], *FAST).out
    assert " linear 1 × 2304 × 768 " in shown
    shown += succeeds("bench", "swap", *TINY["swap"], *FAST).out
    assert " swap gather, out, 3 × 2 × 64 B " in shown
    assert "…" not in shown


def test_all_is_measured_stored_drawn_and_gone_on_with(succeeds, tmp_path):
    out = tmp_path / "bench"
    shown = succeeds("bench", "all", "--quick", *FAST, "--out", out).out
    assert f"stored in {out}" in shown
    table = pd.read_parquet(out / "rows.parquet")
    assert set(table["bench"]) == set(BENCHES)
    assert (table["status"] == "ok").all()
    again = succeeds("bench", "all", "--quick", *FAST, "--out", out).out
    assert f"0 points measured, {len(table)} were stored already" in again


def test_json_is_all_that_is_printed(succeeds):
    outcome = succeeds("bench", "gemm", *TINY["gemm"], *FAST, "--json")
    assert outcome.json["left"] == 0
    assert {row["op"] for row in outcome.json["rows"]} == {"linear"}
    assert outcome.json["rows"][0]["machine"]["device"] == "cpu"


def test_what_fails_is_shown_and_ends_nothing(succeeds, monkeypatch):
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("not today [bold]")

    monkeypatch.setattr("pagesim.kernels.bench.attention.gather_sequences", fails)
    shown = succeeds("bench", "attention", *TINY["attention"], *FAST).out
    assert "gather-decode: failed (2 points): RuntimeError: not today [bold]" in shown
    assert "sdpa-decode" in shown


def test_the_time_limit_leaves_the_rest_for_later(succeeds, tmp_path):
    options = (*TINY["gemm"], *FAST, "--out", tmp_path)
    shown = succeeds("bench", "gemm", *options, "--time-limit", "1e-9").out
    assert "0 points measured, 5 are left, the time was up: the same command goes on with them" in shown
    assert "5 points measured" in succeeds("bench", "gemm", *options).out


@pytest.mark.slow
def test_a_bench_that_is_killed_repeats_nothing(start, succeeds, tmp_path):
    grid = ("--model", "opt-125m", "--tokens", "1,2", "--device", "cpu")
    command = ("bench", "gemm", *grid, "--out", tmp_path / "out", "--seconds")
    process = start(*command, "0.2", env={"OMP_NUM_THREADS": "1"})
    journal = tmp_path / "out" / "rows.jsonl"
    until = time.monotonic() + HANGS_AFTER_S
    while not (journal.exists() and journal.read_bytes().count(b"\n") >= 2):
        assert time.monotonic() < until
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)
    process.kill()
    process.communicate(timeout=HANGS_AFTER_S)
    before = [json.loads(line) for line in journal.read_text().splitlines() if line.endswith("}")]
    assert 2 <= len(before) < 10
    after = {row["key"]: row for row in succeeds(*command, "1e-6", "--json").json["rows"]}
    assert len(after) == 10
    for row in before:
        assert after[row["key"]] == row


BAD = {
    "device": (("--device", "gpu"), "device is 'gpu'; it must be one of cpu, cuda"),
    "seconds": (("--seconds", "-1"), "seconds is -1"),
    "no seconds": (("--seconds", "0"), "seconds is 0"),
    "time limit": (("--time-limit", "0"), "time_limit is 0"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_off_is_said_in_one_sentence(case, refused, tmp_path):
    flags, said = BAD[case]
    assert refused("bench", "attention", *flags, "--out", tmp_path / "out").startswith(said)
    assert not (tmp_path / "out").exists()


def test_a_folder_of_something_else_is_refused(refused, tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    sentence = refused("bench", "gemm", *TINY["gemm"], *FAST, "--out", tmp_path)
    assert sentence == f"{tmp_path}: is not empty and holds no rows of a bench; choose another folder"


def test_a_gpu_that_is_not_there_is_said_in_one_sentence(refused, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    sentence = refused("bench", "all", "--device", "cuda")
    assert sentence.startswith(f"device is 'cuda', but torch {torch.__version__} is built without CUDA; ")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert refused("bench", "all", "--device", "cuda").startswith(
        "device is 'cuda', but torch sees no CUDA GPU"
    )


def test_a_gpu_without_triton_is_said_in_one_sentence(refused, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr("pagesim.kernels.requirements.installed", lambda name: name != "triton")
    sentence = refused("bench", "swap", "--device", "cuda")
    assert (
        sentence == "triton is not installed and the kernels need it on a GPU: "
        "pip install '.[kernels]' in the checkout"
    )


def test_the_documentation_names_every_column():
    from pagesim.kernels.bench.rows import MEASURED, PARAMETERS
    from pagesim.kernels.machine import describe_machine

    text = (Path(__file__).parents[2] / "docs" / "how-to" / "bench.md").read_text(encoding="utf-8")
    for column in ("schema", "key", *PARAMETERS, *MEASURED, *describe_machine("cpu")):
        assert f"`{column}`" in text, column
