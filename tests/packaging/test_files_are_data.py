"""What a file holds is never executed: nothing in the product can turn bytes into code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("pagesim", "workloads", "kernels")

UNPICKLING = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "shelve", "marshal", "jsonpickle"}
"""Modules whose way to read a file is to run it."""

LOADERS = {
    "joblib.load": None,
    "pd.read_pickle": None,
    "pandas.read_pickle": None,
    "yaml.load": None,
    "yaml.unsafe_load": None,
    "yaml.full_load": None,
    "torch.load": ("weights_only", True),
    "np.load": ("allow_pickle", False),
    "numpy.load": ("allow_pickle", False),
    "os.system": None,
    "os.popen": None,
}
"""Calls that run what they are given, and the argument that forbids it if there is one."""


def findings(source: str) -> Iterator[str]:
    """Yield what in a program could execute a file's content."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            yield from (f"import {name}" for name in names if name.partition(".")[0] in UNPICKLING)
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        if called in ("eval", "exec", "compile", "__import__"):
            yield called
        if called in LOADERS:
            needed = LOADERS[called]
            if needed is None or given.get(needed[0]) != str(needed[1]):
                yield called
        if given.get("allow_pickle", "False") != "False":
            yield f"{called}(allow_pickle)"
        if given.get("shell", "False") != "False":
            yield f"{called}(shell)"


@pytest.mark.parametrize("room", ROOMS)
def test_no_module_can_run_what_a_file_holds(room):
    # The links to the other two rooms are not followed here.
    files = [file for file in (ROOT / room).rglob("*.py") if not file.parent.is_symlink()]
    assert len(files) > 10
    found = {str(file.relative_to(ROOT)): list(findings(file.read_text(encoding="utf-8"))) for file in files}
    assert {file: own for file, own in found.items() if own} == {}


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from pickle import loads",
        "import pandas as pd; pd.read_pickle(file)",
        "np.load(file)",
        "np.load(file, allow_pickle=True)",
        "torch.load(file)",
        "torch.load(file, weights_only=False)",
        "joblib.load(file)",
        "yaml.load(text)",
        "eval(text)",
        "exec(text)",
        "subprocess.run(text, shell=True)",
    ],
)
def test_such_a_line_would_be_found(line):
    assert list(findings(line))


def test_what_is_harmless_is_not_found():
    assert not list(findings("import json; np.load(f, allow_pickle=False); model.eval(); json.loads(text)"))
