"""Stored results that were damaged: one sentence, or a page; never a traceback, never endless."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import pagesim as ps
from pagesim.experiments.clusters import run_pools
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
    """Return a function that copies a stored result."""

    def copy(name: str) -> Path:
        folder = tmp_path / "result"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(stored[name], folder)
        return folder

    return copy


@pytest.mark.parametrize(
    ("file", "what"),
    [
        (file, what)
        for file in ("scenario.toml", "summary.json", "requests.parquet", "steps.parquet")
        for what in ("a FIFO", "a folder", "nothing", "half of it", "a link to a device")
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


@pytest.mark.parametrize(
    "file", ["summary.json", "scenario.toml", "requests.parquet", "steps.parquet", "replicas.parquet"]
)
def test_a_file_that_was_changed_is_named(file, copied, refused, tmp_path):
    folder = copied("apart" if file == "replicas.parquet" else "vllm-v1")
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


def test_a_damaged_manifest_is_named_and_without_it_there_is_no_result(copied, refused, tmp_path):
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
    (folder / "manifest.json").unlink()
    said = refused("report", folder, "--out", tmp_path / "r.html")
    assert said == f"{folder}: is no result of pagesim run (it has no manifest.json)"
