"""The wheel holds every module of the tree, and nothing else at its top level."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = {
    "pagesim": ROOT / "pagesim",
    "pagesim/kernels": ROOT / "kernels",
    "pagesim/workloads": ROOT / "workloads",
}


def modules(folder: Path, inside: str) -> set[str]:
    """Return a folder's modules as a wheel names them; links are not followed."""
    return {
        f"{inside}/{file.relative_to(folder).as_posix()}"
        for file in folder.rglob("*.py")
        if not any(parent.is_symlink() for parent in file.parents)
    }


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Return the names in a wheel that is built from a copy of the tree, without a network."""
    for package, needed in (("build", 1), ("setuptools", 77)):
        if find_spec(package) is None or int(version(package).split(".")[0]) < needed:
            pytest.skip(f"building a wheel without a network needs {package} >= {needed}")
    copy = tmp_path_factory.mktemp("tree") / "pagesim"
    copy.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, copy)
    for name in ("pagesim", "kernels", "workloads"):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    wheels = copy.parent / "wheels"
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(wheels), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = wheels.glob("*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


def test_the_wheel_holds_every_module(contents):
    expected = set().union(*(modules(folder, inside) for inside, folder in SOURCES.items()))
    assert {"pagesim/cli/main.py", "pagesim/workloads/files.py", "pagesim/kernels/__init__.py"} <= expected
    assert {name for name in contents if name.endswith(".py")} == expected


def test_the_wheel_holds_the_bundled_data_and_the_mark_of_typed_code(contents):
    data = {f"pagesim/workloads/data/{file.name}" for file in (ROOT / "workloads" / "data").glob("*.json")}
    assert len(data) == 3
    profiles = {f.name for f in (ROOT / "pagesim" / "costs" / "profiles" / "data").glob("*.json")}
    assert profiles
    data |= {f"pagesim/costs/profiles/data/{name}" for name in profiles}
    tables = (ROOT / "pagesim" / "costs" / "operators" / "data").glob("*.npz")
    data |= {f"pagesim/costs/operators/data/{file.name}" for file in tables}
    page = ROOT / "pagesim" / "results" / "report"
    parts = {f.name for f in page.iterdir() if f.suffix in (".css", ".html", ".js")}
    assert {"sections.html", "style.css", "main.js"} <= parts
    data |= {f"pagesim/results/report/{name}" for name in parts}
    data |= {f"pagesim/experiments/paper/{name}" for name in ("figures.toml", "published.csv")}
    data |= {"pagesim/setup/serve_flags.csv"}
    families = (ROOT / "pagesim" / "models" / "catalogue" / "families").glob("*.json")
    data |= {f"pagesim/models/catalogue/families/{path.name}" for path in families}
    data |= {"pagesim/hardware/gpus.json", "pagesim/models/families.json"}
    data |= {"pagesim/models/catalogue/not_known.json"}
    others = {name for name in contents if not name.endswith(".py") and ".dist-info/" not in name}
    assert others == {*data, "pagesim/py.typed"}


def test_the_wheels_only_top_level_name_is_pagesim(contents):
    tops = {name.split("/")[0] for name in contents}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"pagesim"}
    assert len(tops) == 2


def test_the_wheel_brings_the_command_and_the_licence(contents):
    inside = {name.split("/", 1)[1] for name in contents if ".dist-info/" in name}
    assert {"entry_points.txt", "licenses/LICENSE"} <= inside


def test_every_package_folder_is_listed():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {
        str(Path(inside, Path(module).parent.relative_to(inside))).replace("/", ".")
        for inside, folder in SOURCES.items()
        for module in modules(folder, inside)
    }
    assert sorted(settings["packages"]) == sorted(folders)
    assert settings["package-dir"] == {"pagesim.kernels": "kernels", "pagesim.workloads": "workloads"}


def test_every_package_folder_is_a_regular_package():
    for folder in SOURCES.values():
        for module in folder.rglob("*.py"):
            assert (module.parent / "__init__.py").exists(), module


def test_the_base_needs_no_more_than_the_simulator_does():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = sorted(requirement.split(">")[0] for requirement in project["dependencies"])
    assert names == [
        *("google-re2", "joblib", "matplotlib", "numpy", "pandas", "plotly"),
        *("pyarrow", "pydantic", "rich", "scipy", "simpy", "typer"),
    ]
    assert set(project["optional-dependencies"]) == {
        *("kernels", "calibrate", "operators", "ray", "notebooks", "tokenize", "test")
    }
    assert project["scripts"] == {"pagesim": "pagesim.cli.main:app"}
    assert project["requires-python"] == ">=3.11"
