"""A sweep that goes on in a folder that was damaged: a run is repeated, or its file is named."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SWEEP = (
    "sweep",
    "--trace",
    "fixed:20,5",
    "--num-requests",
    "3",
    "--grid",
    "num_blocks=300,400",
    "--jobs",
    "1",
)


@pytest.fixture
def swept(succeeds: Callable[..., Any], tmp_path: Path) -> Path:
    """Return a folder that holds a sweep of two runs."""
    succeeds(*SWEEP, "--out", tmp_path / "out")
    return tmp_path / "out"


def one_of(folder: Path, kind: str) -> Path:
    return sorted((folder / kind).iterdir())[0]


@pytest.mark.parametrize("field", ["summary", "status", "notes", "error"])
def test_a_stored_run_that_was_changed_is_named_and_repeated_without_it(field, swept, refused, succeeds):
    file = one_of(swept, "runs")
    held = json.loads(file.read_text())
    whole = json.loads(file.read_text())
    held[field] = {**held["summary"], "iterations": 1} if field == "summary" else "changed"
    file.write_text(json.dumps(held))
    sentence = refused(*SWEEP, "--out", swept)
    assert sentence == f"{file}: was changed since the run was stored; remove it, and run the same again"
    file.unlink()  # the advice
    succeeds(*SWEEP, "--out", swept)
    again = json.loads(file.read_text())
    assert {**again["summary"], "sim": 0} == {**whole["summary"], "sim": 0}


def test_a_stored_trace_that_was_changed_is_named(swept, refused, succeeds):
    file = one_of(swept, "traces")
    content = file.read_bytes()
    at = content.index((20).to_bytes(8, "little"))
    for changed in (content[:at] + (21).to_bytes(8, "little") + content[at + 8 :], content[:-9], b""):
        file.write_bytes(changed)
        assert refused(*SWEEP, "--out", swept).startswith(f"{file}: is no trace that a sweep stored")
    file.unlink()
    succeeds(*SWEEP, "--out", swept)


@pytest.mark.parametrize("kind", ["runs", "traces"])
def test_a_fifo_and_a_device_in_a_store_are_not_waited_for(kind, swept, refused):
    file = one_of(swept, kind)
    file.unlink()
    os.mkfifo(file)
    assert "it is a FIFO and no regular file" in refused(*SWEEP, "--out", swept)
    file.unlink()
    file.symlink_to("/dev/zero")
    assert "it is a device" in refused(*SWEEP, "--out", swept)
    shutil.rmtree(swept / kind)
    (swept / kind).write_text("mine")
    assert "cannot be " in refused(*SWEEP, "--out", swept)
    assert (swept / kind).read_text() == "mine"


@pytest.mark.parametrize("summary", [5, {}, {"sim": 1}, {"sim": {}, "x": "text"}])
def test_a_run_without_a_seal_is_repeated(summary, swept, succeeds):
    file = one_of(swept, "runs")
    held = json.loads(file.read_text())
    del held["sha256"]
    held["summary"] = summary
    file.write_text(json.dumps(held))
    succeeds(*SWEEP, "--out", swept)
    assert json.loads(file.read_text())["summary"]["iterations"] > 1
