"""A package that brings parts of its own: it is built, installed, named on the command line, and missed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from pagesim.setup import plugins
from tests.commands import HANGS_AFTER_S

PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "tiny-parts"
version = "1.2"

[project.entry-points."pagesim.allocators"]
last-fit = "tiny_parts:LastFit"
nowhere = "tiny_parts:no_such_thing"

[project.entry-points."pagesim.schedulers"]
eight = "tiny_parts:Eight"

[project.entry-points."pagesim.policies"]
tiny = "tiny_parts:TINY"

[project.entry-points."pagesim.cost_models"]
constant = "tiny_parts:Constant"

[project.entry-points."pagesim.gpus"]
tiny-gpu = "tiny_parts:GPU"

[project.entry-points."pagesim.routers"]
first = "tiny_parts:First"

[tool.setuptools]
py-modules = ["tiny_parts"]
"""

MODULE = '''
from dataclasses import replace

from pagesim import Policy
from pagesim.sim.clock import to_ticks
from pagesim.costs import UNBOUNDED
from pagesim.allocators import FirstFit
from pydantic import Field

from pagesim.scheduling import Orca
from pagesim.hardware import gpu


class LastFit(FirstFit):
    """First fit from the other end."""

    def allocate(self, blocks):
        return self._turned(super().allocate(blocks))

    def free(self, blocks):
        super().free(self._turned(blocks))

    def free_extents(self):
        turned = [(self.num_blocks - first - blocks, blocks) for first, blocks in super().free_extents()]
        return turned[::-1]

    def _turned(self, blocks):
        return range(self.num_blocks - blocks[-1] - 1, self.num_blocks - blocks[0])


class Eight(Orca):
    class Options(Orca.Options):
        crowd: int = Field(8, ge=1, description="Running requests at most.")
        shy: bool | None = Field(None, description="Whether one less is let in.")

    def __init__(self, memory, options, **more):
        super().__init__(memory, options, **more)
        self.max_num_seqs = options.crowd - bool(options.shy)


TINY = Policy("eight", "oracle", "last-fit", "eight at a time, from the far end")
GPU = replace(gpu("l4"), name="tiny-gpu")


class Constant:
    beyond = {}

    def __init__(self, seconds, target):
        self.ticks = to_ticks(float(seconds or 0.02))

    def iteration(self, shape):
        return self.ticks if shape.tokens else 0

    def decode(self, sequences, context):
        return self.ticks, 0, UNBOUNDED


class First:
    def choose(self, request, replicas, now):
        return 0
'''

LOAD = ("--trace", "sharegpt", "--rate", "20", "--num-requests", "60", "--num-blocks", "2000")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder into which the package's wheel was installed, without a network."""
    project = tmp_path_factory.mktemp("tiny-parts")
    (project / "pyproject.toml").write_text(PROJECT)
    (project / "tiny_parts.py").write_text(MODULE)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", str(project)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGS_AFTER_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (project / "dist").glob("*.whl")
    site = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel).extractall(site)
    return site


@pytest.fixture
def installed(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Put the package on the path of this process and of those that it starts; return its folder."""
    mine = shutil.copytree(site, tmp_path / "site")
    monkeypatch.syspath_prepend(mine)
    paths = [str(mine), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    yield mine
    sys.modules.pop("tiny_parts", None)
    plugins._code.cache_clear()


@pytest.fixture
def gone(installed: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that takes the package away again."""

    def uninstall() -> None:
        monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(installed)])

    return uninstall


def test_an_installed_package_is_named_on_the_command_line(installed, in_a_process, environment):
    paths = os.pathsep.join([str(installed), environment["PYTHONPATH"]])
    found = {}
    for allocator in ("first-fit", "last-fit"):
        command = (
            "run",
            *LOAD,
            "--num-blocks",
            "300",
            "--policy",
            "orca-oracle",
            "--allocator",
            allocator,
            "--json",
        )
        outcome = in_a_process(*command, env={"PYTHONPATH": paths})
        assert outcome.code == 0, outcome.err
        found[allocator] = {name: part for name, part in outcome.json.items() if name != "sim"}
    # The same memory seen from its other end: every number is the same.
    assert found["last-fit"] == found["first-fit"]


@pytest.mark.usefixtures("installed")
def test_each_kind_of_part_is_found_by_its_name(succeeds):
    batch = succeeds("run", *LOAD, "--policy", "tiny", "--json").json["batch"]["mean"]
    assert batch <= 8 < succeeds("run", *LOAD, "--policy", "orca-oracle", "--json").json["batch"]["mean"]
    step = ("run", *LOAD, "--cost", "constant:0.5", "--json")
    assert succeeds(*step).json["itl"]["p50"] == 0.5
    sized = ("run", *LOAD[:-2], "--model", "opt-6.7b", "--gpu")
    tiny, l4 = (succeeds(*sized, gpu, "--json").json["memory"] for gpu in ("tiny-gpu", "l4"))
    assert tiny["num_blocks"] == l4["num_blocks"]
    routed = succeeds("run", *LOAD, "--replicas", "2", "--router", "first", "--json").json
    assert routed["cluster"]["imbalance"]["requests"] == 2
    assert "eight at a time" in succeeds("list", "policies").out
    assert "tiny-gpu" in succeeds("list", "gpus").out


@pytest.mark.usefixtures("installed")
def test_a_schedulers_options_are_flags_and_stored_with_the_scenario(succeeds, refused, tmp_path):
    command = ("run", *LOAD, "--policy", "tiny")
    shown = succeeds("list", "options", "eight").out
    assert re.search(r"--crowd +eight +Running", shown)
    assert "[default: 8]" in " ".join(shown.split())
    assert re.search(r"--shy +eight", shown)
    stored = tmp_path / "out" / "scenario.toml"
    summary = succeeds(*command, "--crowd", "3", "--shy", "--out", stored.parent, "--json").json
    batch = summary["batch"]["mean"]
    assert 1 < batch <= 2
    values = tomllib.loads(stored.read_text())
    assert (values["crowd"], values["shy"]) == (3, True)
    assert succeeds("run", stored, "--json").json["batch"]["mean"] == batch
    assert succeeds("run", stored, "--crowd", "8", "--no-shy", "--json").json["batch"]["mean"] > 2
    assert refused(*command, "--crowd", "0").startswith("crowd is 0: under scheduler eight input should be")
    assert refused("run", *LOAD, "--crowd", "3") == "crowd is for scheduler eight, not vllm-v1"
    compared = succeeds("run", *LOAD, "--policies", "orca-oracle,tiny", "--crowd", "3", "--json").json
    assert compared["runs"]["tiny"]["batch"]["mean"] <= 3 < compared["runs"]["orca-oracle"]["batch"]["mean"]


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_a_sweep_varies_a_schedulers_own_option(succeeds, tmp_path):
    out = tmp_path / "sweep"
    grid = ("--grid", "policy=orca-oracle,tiny", "--grid", "crowd=2,4")
    assert "3 of 3 runs done" in succeeds("sweep", *LOAD, *grid, "--jobs", "1", "--out", out).out
    means = pd.read_parquet(out / "means.parquet")
    assert means["crowd"].tolist() == [pd.NA, 2, 4]
    assert means["batch.mean"][1] <= 2 < means["batch.mean"][2] <= 4 < means["batch.mean"][0]


def test_without_the_package_its_options_are_unknown(cli, refused, tmp_path):
    outcome = cli("run", *LOAD, "--crowd", "3")
    assert outcome.code == 2
    assert "--crowd" in outcome.err
    file = tmp_path / "scenario.toml"
    file.write_text("crowd = 3\n")
    assert refused("run", file) == f"{file}: there is no option crowd"


def test_a_stored_scenario_says_what_it_needs(succeeds, refused, gone, tmp_path):
    stored = tmp_path / "out" / "scenario.toml"
    first = succeeds("run", *LOAD, "--policy", "tiny", "--cost", "constant:0.1", "--out", stored.parent)
    assert "eight" not in stored.read_text().partition("[needs")[0]
    needs = tomllib.loads(stored.read_text())["needs"]
    assert needs == {
        "policy": {"tiny": "tiny_parts:TINY of tiny-parts 1.2"},
        "scheduler": {"eight": "tiny_parts:Eight of tiny-parts 1.2"},
        "allocator": {"last-fit": "tiny_parts:LastFit of tiny-parts 1.2"},
        "cost": {"constant": "tiny_parts:Constant of tiny-parts 1.2"},
    }
    again = succeeds("run", stored, "--out", tmp_path / "again")
    assert again.out.replace("again", "out") == first.out
    gone()
    assert refused("run", stored) == (
        f"{stored}: policy tiny is a plug-in that is not here; the file was made with "
        "tiny_parts:TINY of tiny-parts 1.2"
    )
    assert "cost constant is a plug-in that is not here" in refused("run", stored, "--policy", "orca-oracle")
    succeeds("run", stored, "--policy", "orca-oracle", "--cost", "roofline")


def test_a_stored_comparison_and_cluster_say_it_too(succeeds, refused, gone, tmp_path):
    compared, routed = tmp_path / "compared", tmp_path / "routed"
    succeeds("run", *LOAD, "--policies", "orca-oracle,tiny", "--out", compared)
    succeeds("run", *LOAD, "--router", "first", "--out", routed)
    gone()
    assert "policy tiny is a plug-in" in refused("run", compared / "scenario.toml")
    assert "router first is a plug-in" in refused("run", routed / "scenario.toml")


@pytest.mark.usefixtures("installed")
def test_a_part_that_cannot_be_loaded_is_named(refused):
    sentence = refused("run", *LOAD, "--policy", "orca-oracle", "--allocator", "nowhere")
    assert sentence.startswith("allocator nowhere: tiny_parts:no_such_thing cannot be loaded")
    assert "constant[:…]" in refused("run", *LOAD, "--cost", "constantine")
    assert refused("run", *LOAD, "--cost", "constant:slow").startswith(
        "cost constant cannot be made: ValueError: "
    )


def test_a_sweep_knows_a_plug_in_by_its_code(succeeds, installed, gone, refused, tmp_path):
    out = tmp_path / "sweep"
    grid = ("sweep", *LOAD, "--grid", "policy=orca-oracle,tiny", "--jobs", "1", "--out", out)
    runs = out / "runs"
    assert "2 of 2 runs done" in succeeds(*grid).out
    stored = sorted(file.name for file in runs.iterdir())
    succeeds(*grid)
    assert sorted(file.name for file in runs.iterdir()) == stored, "nothing is run again"
    code = installed / "tiny_parts.py"
    code.write_text(code.read_text().replace("Field(8", "Field(4"))
    sys.modules.pop("tiny_parts")
    plugins._code.cache_clear()  # as in a new process
    succeeds(*grid)
    assert len(list(runs.iterdir())) == len(stored) + 1, "another code is another run"
    gone()
    assert "policy tiny is a plug-in that is not here" in refused("sweep", out / "sweep.toml")
