"""``pagesim policies|models|gpus|workloads`` name all there is; every command explains itself at once."""

from __future__ import annotations

import time

import pytest

from pagesim.policies import POLICIES
from pagesim.specs import gpus, models
from pagesim.workloads import workloads

COMMANDS = [
    ("run",),
    ("compare",),
    ("sweep",),
    ("capacity",),
    ("trace", "describe"),
    ("trace", "convert"),
    ("trace", "make"),
    ("trace", "fit"),
]


@pytest.mark.parametrize("width", ["50", "80", "200"])
@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("policies", list(POLICIES)),
        ("models", [model.name for model in models()]),
        ("gpus", [gpu.name for gpu in gpus()]),
        ("workloads", list(workloads())),
    ],
)
def test_every_name_is_listed_whole(command, names, width, succeeds, monkeypatch):
    monkeypatch.setenv("COLUMNS", width)
    listed = succeeds(command).out
    assert names
    for name in names:
        assert f" {name} " in listed


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_explains_itself_with_an_example(command, succeeds):
    usage = succeeds(*command, "--help").out
    assert "Usage: " in usage
    assert f"Example: pagesim {' '.join(command)} " in usage


@pytest.mark.parametrize("command", ["policies", "models", "gpus", "workloads", "trace"])
def test_a_command_without_options_has_help(command, succeeds):
    assert "Usage: " in succeeds(command, "--help").out


def test_help_names_every_command(succeeds):
    usage = succeeds("--help").out
    for command in (
        "run",
        "compare",
        "sweep",
        "capacity",
        "trace",
        "policies",
        "models",
        "gpus",
        "workloads",
    ):
        assert f"\n  {command} " in usage


def test_help_comes_in_half_a_second(in_a_process, slowdown):
    def takes() -> float:
        busy = slowdown()
        began = time.perf_counter()
        assert in_a_process("--help").code == 0
        return (time.perf_counter() - began) / busy

    # The best of several: what a busy machine adds is not ours.
    assert min(takes() for _ in range(5)) < 0.5
