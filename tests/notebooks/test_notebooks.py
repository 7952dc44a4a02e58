"""The notebooks run, what they show is what they would show now, and they need nothing that is not public."""

from __future__ import annotations

import ast
import base64
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest

from tests.pages import module_of

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LARGEST_PLOT = 100_000
A_PATH = re.compile(r"(?:^|[\s'\"(=])/(?:[\w.-]+/)+[\w.-]+|[A-Z]:\\\\")

TIMES = "4-from-timings-to-a-profile"
"""The notebook that measures something: its numbers are others each time."""

pytestmark = pytest.mark.parametrize("file", NOTEBOOKS, ids=[file.stem for file in NOTEBOOKS])


def cells(file: Path) -> list[Any]:
    return [cell for cell in nbformat.read(file, as_version=4).cells if cell.cell_type == "code"]


def outputs(cell: Any) -> Iterator[tuple[str, str]]:
    """Yield the kind and the content of all that a cell has shown."""
    for output in cell.outputs:
        if output.output_type == "stream":
            yield output.name, output.text
        else:
            yield from sorted(output.get("data", {"error": "error"}).items())


def test_they_are_numbered(file: Path) -> None:
    assert sorted(int(each.name.partition("-")[0]) for each in NOTEBOOKS) == list(range(11))
    assert 8 <= len(nbformat.read(file, as_version=4).cells) <= 15


def test_its_outputs_are_stored_and_small_and_tell_nothing_of_a_machine(file: Path) -> None:
    notebook = nbformat.read(file, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata == module_of("notebooks/store.py").METADATA
    assert [cell.execution_count for cell in cells(file)] == list(range(1, len(cells(file)) + 1))
    shown = [output for cell in cells(file) for output in outputs(cell)]
    assert {kind for kind, _ in shown} <= {"stdout", "text/plain", "text/html", "image/png"}
    plots = [content for kind, content in shown if kind == "image/png"]
    assert plots
    assert max(len(base64.b64decode(plot)) for plot in plots) <= LARGEST_PLOT
    for kind, content in shown:
        if kind != "image/png":
            assert not A_PATH.search(content), content
            assert " at 0x" not in content


def test_it_needs_nothing_that_is_not_public(file: Path) -> None:
    modules: dict[str, Any] = {}
    used: list[tuple[Any, str]] = []
    for cell in cells(file):
        tree = ast.parse("\n".join(line for line in cell.source.splitlines() if not line.startswith("%")))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                own = [each for each in node.names if each.name.partition(".")[0] == "pagesim"]
                modules |= {each.asname or each.name: import_module(each.name) for each in own}
            elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "pagesim":
                home = import_module(node.module or "")
                for each in node.names:
                    if isinstance(getattr(home, each.name, None), ModuleType) or not hasattr(home, each.name):
                        modules[each.asname or each.name] = import_module(f"{node.module}.{each.name}")
                    else:
                        used.append((home, each.name))
            elif isinstance(node, ast.Attribute) and getattr(node.value, "id", None) in modules:
                used.append((modules[node.value.id], node.attr))
    assert "ps" in modules
    assert len(used) >= 5
    public = module_of("docs/make_api.py").PUBLIC
    assert not [f"{home.__name__}.{name}" for home, name in used if name not in public[home.__name__]]


@pytest.mark.slow
def test_it_runs_and_prints_what_is_stored(file: Path) -> None:
    now = [cell for cell in module_of("notebooks/store.py").executed(file).cells if cell.cell_type == "code"]
    for cell, stored in zip(now, cells(file), strict=True):
        shows, showed = ([kind for kind, _ in outputs(each)] for each in (cell, stored))
        assert shows == showed
        if file.stem != TIMES:
            texts = [
                [content for kind, content in outputs(each) if kind != "image/png"] for each in (cell, stored)
            ]
            assert texts[0] == texts[1]
