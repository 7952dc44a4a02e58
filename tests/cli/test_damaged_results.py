"""Stored results that were damaged or made up: one sentence, or a page; never a traceback, never endless."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pagesim as ps
from pagesim.experiments.clusters import run_pools
from pagesim.results.checks import MOST
from pagesim.results.replay import NotReplayed, replayed
from pagesim.setup.scenario import Scenario
from pagesim.setup.system import System

SYSTEM = {"cost": "affine:0.02,1e-4,1e-6", "num_blocks": 300, "max_model_len": 1024}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return folders with results of each kind."""
    folder = tmp_path_factory.mktemp("stored")
    scenario = Scenario(trace="sharegpt", rate=5.0, num_requests=12, policy="vllm-v1", num_blocks=200)
    trace = ps.make_trace("sharegpt", arrivals="poisson", rate=6.0, num_requests=20)
    apart = run_pools(System(policy="vllm-v1", **SYSTEM), trace, prefill=1, decode=2, steps=True)
    found = {"vllm-v1": ps.api.run(scenario, ps.api.trace_of(scenario)), "apart": apart}
    return {name: result.save(folder / name) for name, result in found.items()}


@pytest.fixture
def copied(stored: dict[str, Path], tmp_path: Path) -> Callable[..., Path]:
    """Return a function that copies a stored result; as an older version would have stored it, or sealed."""

    def copy(name: str, *, sealed: bool = False) -> Path:
        folder = tmp_path / "result"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(stored[name], folder)
        if not sealed:
            (folder / "manifest.json").unlink()
        return folder

    return copy


def set_column(file: Path, name: str, value: Any) -> None:
    """Put a value into each row of a column."""
    table = pd.read_parquet(file)
    table[name] = [value] * len(table)
    table.to_parquet(file, index=False)


def set_field(file: Path, path: str, value: Any) -> None:
    """Put a value into a field of a summary."""
    summary = json.loads(file.read_text())
    *above, last = path.split(".")
    inner = summary
    for name in above:
        inner = inner[name]
    inner[last] = value
    file.write_text(json.dumps(summary))


@pytest.mark.parametrize(
    ("table", "column", "value", "said"),
    [
        (
            "requests",
            "n",
            1 << 62,
            "n of requests.parquet holds 4611686018427387904; it must be from 1 to 1024",
        ),
        ("requests", "n", -1, "n of requests.parquet holds -1"),
        ("requests", "n", 2.0, "n of requests.parquet holds no whole numbers"),
        ("requests", "prompt_tokens", 0, "it must be from 1 to 1e+07"),
        ("requests", "arrival_s", float("inf"), "arrival_s of requests.parquet holds inf"),
        ("requests", "finish_s", -1.0, "finish_s of requests.parquet holds -1.0"),
        ("requests", "finish_s", 1e300, "finish_s of requests.parquet holds 1e+300"),
        (
            "requests",
            "finish_s",
            pd.Timestamp("2262-01-01"),
            "finish_s of requests.parquet holds no numbers of a run",
        ),
        ("requests", "status", "done", "status of requests.parquet holds 'done'"),
        ("requests", "status", 1, "status of requests.parquet holds what is no text"),
        ("requests", "status", "rejected", "summary.json counts 12 finished requests"),
        ("requests", "request_id", [1], "neither a whole number nor a text"),
        ("requests", "due_s", "x", "due_s of requests.parquet holds no numbers of a run"),
        ("requests", "sample_tokens", [1 << 62], "lacks the column sample_finish_s"),
        ("steps", "clock", float("nan"), "clock of steps.parquet holds NaN"),
        ("steps", "used", -5, "used of steps.parquet holds -5"),
        ("steps", "used", MOST + 2, "used of steps.parquet holds"),
        ("steps", "iterations", 1.5, "iterations of steps.parquet holds no whole numbers"),
    ],
)
def test_a_table_that_no_run_can_leave_is_refused(table, column, value, said, copied, refused, tmp_path):
    folder = copied("vllm-v1")
    set_column(folder / f"{table}.parquet", column, value)
    sentence = refused("report", folder, "--out", tmp_path / "r.html")
    assert sentence.startswith(f"{folder}: is no result of pagesim run (")
    assert said in sentence
    with pytest.raises(ps.PagesimError, match="is no result of pagesim run"):
        ps.load(folder)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("memory.num_blocks", 0, "memory.num_blocks of summary.json is 0; it must be a whole number from 1"),
        ("memory.num_blocks", "many", "memory.num_blocks of summary.json is 'many'"),
        ("memory.block_size", 1 << 70, "which no number of a run is"),
        ("memory", {}, "memory.num_blocks of summary.json is absent"),
        ("memory.strict", 5, "memory.strict.per_iteration of summary.json is absent"),
        ("memory.tiers", {"cpu": 1}, "memory.tiers.cpu of summary.json has no capacity"),
        ("preemptions", [], "preemptions.recompute of summary.json is absent"),
        ("options.defaults", 1, "options.defaults of summary.json is 1; it must be a table"),
        ("requests.total", 11, "does not count the 12 rows"),
        ("runs", [1], "runs of summary.json is no table"),
    ],
)
def test_a_summary_that_no_run_can_leave_is_refused(path, value, said, copied, refused, tmp_path):
    folder = copied("vllm-v1")
    set_field(folder / "summary.json", path, value)
    assert said in refused("report", folder, "--out", tmp_path / "r.html")


@pytest.mark.parametrize("depth", [100, 100_000])
def test_a_summary_nested_too_deeply_is_refused(depth, copied, refused, tmp_path):
    folder = copied("vllm-v1")
    text = (folder / "summary.json").read_text().rstrip().removesuffix("}")
    (folder / "summary.json").write_text(f'{text}, "x": {"[" * depth}{"]" * depth}}}')
    assert "nested" in refused("report", folder, "--out", tmp_path / "r.html")


@pytest.mark.parametrize(
    ("file", "what"),
    [
        (file, what)
        for file in ("scenario.toml", "summary.json", "requests.parquet", "steps.parquet")
        for what in ("a FIFO", "a folder", "nothing", "half of it", "a link to a device")
        if (file, what) not in (("scenario.toml", "half of it"), ("steps.parquet", "nothing"))  # may be whole
    ],
)
def test_what_is_in_the_place_of_a_file_is_not_waited_for(file, what, copied, refused, tmp_path):
    folder = copied("vllm-v1")
    content = (folder / file).read_bytes()
    (folder / file).unlink()
    if what == "a FIFO":
        os.mkfifo(folder / file)
    elif what == "a folder":
        (folder / file).mkdir()
    elif what == "half of it":
        (folder / file).write_bytes(content[: len(content) // 2])
    elif what == "a link to a device":
        (folder / file).symlink_to("/dev/zero")
    sentence = refused("report", folder, "--out", tmp_path / "r.html")
    assert str(folder) in sentence


def test_a_table_that_claims_gigabytes_is_refused_at_once(copied, refused, tmp_path):
    folder = copied("vllm-v1")
    many = pa.table({"n": pa.DictionaryArray.from_arrays(np.zeros(40_000_000, np.int8), [1])})
    pq.write_table(many, folder / "requests.parquet", compression="zstd")
    assert (folder / "requests.parquet").stat().st_size < 1 << 20
    assert "is no result of pagesim run" in refused("report", folder, "--out", tmp_path / "r.html")


@pytest.mark.parametrize(
    "file", ["summary.json", "scenario.toml", "requests.parquet", "steps.parquet", "replicas.parquet"]
)
def test_a_file_that_was_changed_is_named(file, copied, refused, tmp_path):
    folder = copied("apart" if file == "replicas.parquet" else "vllm-v1", sealed=True)
    whole = (folder / file).read_bytes()
    with (folder / file).open("ab") as changed:
        changed.write(b"\n")
    changed = refused("report", folder, "--out", tmp_path / "r.html")
    assert changed == f"{folder / file}: was changed since the result was stored; run the same again"
    (folder / file).unlink()
    missing = refused("report", folder, "--out", tmp_path / "r.html")
    assert file in missing
    assert re.search("is missing|No such file", missing)
    (folder / file).write_bytes(whole)
    (folder / "tree.parquet").write_bytes(whole)
    if file != "replicas.parquet":
        assert "tree.parquet: was added since" in refused("report", folder, "--out", tmp_path / "r.html")


def test_a_damaged_manifest_is_named_and_without_it_the_result_is_read(copied, refused, succeeds, tmp_path):
    for content in (
        b"",
        b"[]",
        b'{"kind": "run"}',
        b'{"kind": 1, "files": {}}',
        b'{"kind":"run","files":{"a":1}}',
    ):
        folder = copied("vllm-v1")
        (folder / "manifest.json").write_bytes(content)
        assert "manifest.json: is damaged" in refused("report", folder, "--out", tmp_path / "r.html")
        assert "manifest.json: is damaged" in refused("run", "--trace", "fixed:5,5", "--out", folder)
    (folder / "manifest.json").unlink()  # the advice
    succeeds("report", folder, "--instants", "0", "--out", tmp_path / "r.html")


@pytest.mark.parametrize(
    ("line", "other", "said"),
    [
        ("num_requests = 12", "num_requests = 99999999", "about 99999999 requests, and 12 are stored"),
        ("num_requests = 12", "duration = 4000000.0", "about 20000000 requests, and 12 are stored"),
        ("num_blocks = 200", "num_blocks = 9999999", "about 9999999 blocks, and 199 are stored"),
    ],
)
def test_a_scenario_that_was_made_much_larger_is_not_replayed(line, other, said, copied):
    folder = copied("vllm-v1")
    text = (folder / "scenario.toml").read_text()
    assert line in text
    (folder / "scenario.toml").write_text(text.replace(line, other))
    with pytest.raises(NotReplayed, match=said):
        replayed(ps.load(folder), lambda setting, log: None)
