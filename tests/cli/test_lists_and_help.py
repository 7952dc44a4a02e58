"""``pagesim list`` names all there is; every command explains itself at once."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from pagesim.cli.commands import TABLE, cli
from pagesim.eviction import EVICTION_POLICIES
from pagesim.hardware import gpus
from pagesim.models import models
from pagesim.setup.presets import POLICIES
from pagesim.setup.registry import ALLOCATORS
from pagesim.workloads import workloads

EXAMPLE = re.compile(r"Example: pagesim(.*)", re.DOTALL)


def every_command(command: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield all commands and groups of commands, with their names."""
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from every_command(inner, *path, name)


COMMANDS = dict(every_command(typer.main.get_command(cli)))


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
    listed = succeeds("list", command).out
    assert names
    for name in names:
        assert f" {name} " in listed


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: " ".join(path) or "pagesim")
def test_a_command_explains_itself_with_an_example_that_it_understands(path, succeeds):
    usage = succeeds(*path, "--help").out
    assert "Usage: " in usage
    shown = EXAMPLE.search(COMMANDS[path].help or "")
    assert shown, "no example"
    # In the terminal it is wrapped, at hyphens too.
    assert "".join(shown[0].split()) in "".join(usage.split())
    words = shlex.split(shown[1])
    assert tuple(words[: len(path)]) == path
    name = max((p for p in COMMANDS if tuple(words[: len(p)]) == p), key=len)
    COMMANDS[name].make_context(words[len(name) - 1], words[len(name) :])


def test_help_names_every_command(succeeds):
    usage = succeeds("--help").out
    for path in COMMANDS:
        if len(path) == 1:
            assert f"\n  {path[0]} " in usage


@pytest.mark.parametrize("entry", TABLE, ids=lambda entry: entry.name)
def test_the_line_of_a_command_begins_its_help(entry):
    assert " ".join((COMMANDS[entry.name,].help or "").split("\n\n")[0].split()) == entry.line


@pytest.mark.slow
def test_help_comes_in_half_a_second(in_a_process, slowdown):
    def takes() -> float:
        busy = slowdown()
        began = time.perf_counter()
        assert in_a_process("--help").code == 0
        return (time.perf_counter() - began) / busy

    # The best of several: what a busy machine adds is not ours.
    assert min(takes() for _ in range(5)) < 0.5


def test_models_are_listed_as_json_with_what_their_layers_keep_and_whether_they_are_verified(succeeds):
    listed = {each["model"]: each for each in succeeds("list", "models", "--json").json}
    assert list(listed) == [model.name for model in models()]
    assert listed["gemma3-27b"]["layers"] == "10 full, 52 window 1024"
    assert not listed["gemma3-27b"]["unverified"]
    assert listed["mistral-small-3"]["unverified"]
    assert listed["deepseek-v3.2"]["attention"] == "MLA"


def test_the_list_of_models_marks_those_that_are_unverified(succeeds, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    marked = {line.split()[0] for line in succeeds("list", "models").out.splitlines() if "unverified" in line}
    assert marked == {model.name for model in models() if model.unverified}


def test_flags_of_servers_are_found_by_a_part_of_their_names(succeeds, refused):
    listed = succeeds("list", "flags", "kv_transfer").out
    assert "--kv-transfer-config" in listed
    assert "config/kv_transfer.py" in listed
    assert "VLLM_KV_CACHE_LAYOUT" in succeeds("list", "flags", "kv_cache_layout").out
    assert "no flag of vLLM or SGLang has 'wings' in its name" in refused("list", "flags", "wings")


@pytest.mark.parametrize("kind", ["allocators", "evictions"])
def test_what_can_be_chosen_is_listed_with_a_sentence(kind, succeeds, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    names = {"allocators": ALLOCATORS, "evictions": EVICTION_POLICIES}[kind].own()
    rows = [line.split(maxsplit=1) for line in succeeds("list", kind).out.splitlines()[3:-1]]
    assert [name for name, _ in rows] == list(names)
    assert len({sentence for _, sentence in rows}) == len(names)


def test_what_an_ablation_needs_stands_in_its_help(succeeds, refused):
    assert "Required: a profile by name" in " ".join(succeeds("ablate", "block-size", "--help").out.split())
    assert "--profile is needed" in refused("ablate", "block-size", "--num-requests", "2")
