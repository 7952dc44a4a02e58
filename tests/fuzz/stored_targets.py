"""Readers of what pagesim itself stored: results, sweeps, rows, figures; and of timings."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from target import MadeWhenNeeded, Target, again, of_tests

import pagesim as ps
from pagesim.costs.profiles import import_llmservingsim, import_vidur
from pagesim.costs.profiles.llmservingsim import HEAD, LAYER, ONCE
from pagesim.experiments.paper.reproduce import SETTING, check, setting_text
from pagesim.experiments.paper.setting import PaperSetting
from pagesim.experiments.sweeps.run_store import MARKER, RunRecord, RunStore
from pagesim.hardware import gpu
from pagesim.kernels.bench.rows import SCHEMA
from pagesim.kernels.bench.store import JOURNAL, RowStore, read_rows
from pagesim.models import model
from pagesim.results.report import write_report
from pagesim.setup.scenario import Scenario


def made() -> list[Target]:
    """Return these."""
    return [*_results(), *_stores(), *_benches(), *_papers(), *_vidur(), *_frontier(), *_llmservingsim()]


_RUN = ("run", "--rate", "4", "--num-requests", "12", "--trace", "fixed:300,40")
RESULTS = {
    "static": ("--policy", "static"),
    "auto": ("--policy", "vllm-sosp", "--preemption", "auto", "--n", "2", "--num-blocks", "120"),
    "v1": ("--policy", "vllm-v1", "--model", "llama-3.1-8b", "--gpu", "h100", "--num-blocks", "200"),
    "sglang": ("--policy", "sglang", "--num-blocks", "4000"),
    "cluster": ("--policy", "vllm-sosp", "--replicas", "2"),
    "apart": ("--policy", "vllm-v1", "--prefill", "1", "--decode", "2", "--num-blocks", "300"),
    "compared": ("--policies", "orca-max,vllm-sosp"),
}
SEVERAL = ("cluster", "apart", "compared")


def _results() -> list[Target]:
    return [_result(name, options) for name, options in RESULTS.items()]


def _result(name: str, options: tuple[str, ...]) -> Target:
    def read(folder: Path) -> None:
        with tempfile.TemporaryDirectory(dir=folder.parent) as again:
            if name not in SEVERAL:
                result = ps.load(folder)
                result.save(Path(again) / "again")
                assert len(result.requests) == result.summary["requests"]["total"]
            write_report([folder], Path(again) / "page.html", instants=0)

    def files() -> dict[str, bytes]:
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / "r"
            command = [sys.executable, "-m", "pagesim", *_RUN, *options, "--out", str(made)]
            subprocess.run(command, check=True, capture_output=True)
            found = sorted(file for file in made.rglob("*") if file.is_file())
            return {str(file.relative_to(made)): file.read_bytes() for file in found}

    return Target(f"result: {name}", MadeWhenNeeded(files), (), read)


def _stores() -> list[Target]:
    scenario = Scenario(trace="fixed:20,5", num_requests=3)
    summary = ps.api.run(scenario, ps.api.trace_of(scenario)).summary
    with tempfile.TemporaryDirectory() as folder:
        store = RunStore(Path(folder) / "s")
        store.put_run("a" * 32, RunRecord("done", None, summary, ("note",)), scenario.model_dump())
        base = Path(folder) / "s"
        files = {str(file.relative_to(base)): file.read_bytes() for file in base.rglob("*") if file.is_file()}

    def read(folder: Path) -> None:
        store = RunStore(folder)
        record = again(store.run("a" * 32))
        assert record.status in ("done", "failed")

    return [
        Target("store of a sweep", files, tuple(files), read),
        Target("store: marker", files, (MARKER,), read),
    ]


def _benches() -> list[Target]:
    rows = [
        {
            "schema": SCHEMA,
            "key": f"k{n}",
            "bench": "copy",
            "op": "copy",
            "m": n,
            "status": "ok",
            "median_s": 1e-3,
        }
        for n in range(5)
    ]
    journal = "".join(json.dumps(row) + "\n" for row in rows).encode()

    def read_journal(folder: Path) -> None:
        whole = read_rows(folder)
        with RowStore(folder) as store:
            assert store.rows == whole

    return [Target("bench rows", {JOURNAL: journal}, (JOURNAL,), read_journal)]


def _papers() -> list[Target]:
    files = {SETTING: setting_text(PaperSetting()).encode()}

    def read(folder: Path) -> None:
        check(folder, PaperSetting())

    return [Target("paper: setting", files, tuple(files), read)]


def _vidur() -> list[Target]:
    writer = of_tests("costs/profiles/conftest").vidur_files
    with tempfile.TemporaryDirectory() as folder:
        made = writer.__wrapped__(Path(folder)) if hasattr(writer, "__wrapped__") else None
        assert made is not None
        files = {file.name: file.read_bytes() for file in made()}

    def read(folder: Path) -> None:
        import_vidur(
            folder / "linear.csv", folder / "attention.csv", model=model("llama-2-7b"), gpu=gpu("a100-80gb"),
            name="x", source="y",
        )  # fmt: skip

    return [Target("vidur", files, ("linear.csv", "attention.csv"), read)]


def _frontier() -> list[Target]:
    columns = "n_embd,n_q_head,n_kv_head,block_size,num_tensor_parallel_workers,is_prefill,batch_size,"
    columns += "prefill_chunk_size,kv_cache_size," + ",".join(
        f"time_stats.attn_{name}.median" for name in ("prefill", "decode", "kv_cache_save")
    )
    rows = [f"False,{batch},0,{past},0,0.0{batch},0.004" for batch in (1, 4) for past in (64, 512)]
    rows += [f"True,1,{chunk},{past},0.{chunk},0,0.9" for chunk in (32, 64) for past in (0, 512)]
    files = {"attention.csv": "\n".join([columns, *(f"4096,32,32,16,1,{row}" for row in rows)]).encode()}

    def read(folder: Path) -> None:
        import_vidur(
            None,
            folder / "attention.csv",
            any_block=True,
            model=model("llama-2-7b"),
            gpu=gpu("a100-80gb"),
            name="x",
            source="y",
        )

    return [Target("frontier", files, tuple(files), read)]


def _llmservingsim() -> list[Target]:
    dense = "layer,tokens,time_us\n" + "".join(
        f"{name},{size},{20 + size}\n" for name in (*LAYER, *ONCE) for size in (1, 64)
    )
    heads = "layer,sequences,time_us\n" + "".join(
        f"{name},{size},{9 + size}\n" for name in HEAD for size in (1, 64)
    )
    attention = "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n" + "".join(
        f"{row}\n" for row in ("0,0,1,16,9", "0,0,8,64,30", "16,0,0,0,9", "64,512,0,0,80", "16,0,8,64,33")
    )
    files = {
        "dense.csv": dense.encode(),
        "per_sequence.csv": heads.encode(),
        "attention.csv": attention.encode(),
        "meta.yaml": b"vllm_version: 0.19.0\n",
    }

    def read(folder: Path) -> None:
        import_llmservingsim(folder, model=model("llama-3.1-8b"), gpu=gpu("rtx-4090"), name="x", source="y")

    return [Target("llmservingsim", files, tuple(files), read)]
