"""A package whose parts raise, end the process or make something else is named in one sentence."""

from __future__ import annotations

import sys

import pytest

COST = """
import sys
class Cost:
    beyond = {}
    def __init__(self, text, target):
        pass
    def decode(self, sequences, context):
        return self.iteration(None)
    def iteration(self, shape):
        %s
"""
MODULES = {
    "raises when it is imported": ("raise RuntimeError('no')", "cannot be loaded (RuntimeError: no)"),
    "ends the process when it is imported": ("import sys\nsys.exit(7)", "cannot be loaded (SystemExit: 7)"),
    "is no Python": ("class Cost(:", "cannot be loaded (SyntaxError: invalid syntax"),
    "has no such name": ("other = 5", "cannot be loaded"),
    "is of another type": ("Cost = 5", "broken-cost"),
    "is of another class": ("class Cost:\n    pass", "broken-cost"),
    "returns another type": ("def Cost(*a, **k):\n    return 'nothing'", "broken-cost"),
    "returns None": ("def Cost(*a, **k):\n    return None", "broken-cost"),
    "recurses": ("def Cost(*a, **k):\n    return Cost(*a, **k)", "RecursionError"),
    "has no memory": ("def Cost(*a, **k):\n    raise MemoryError", "cannot be made: MemoryError"),
    "raises what cannot be said": (
        "class E(Exception):\n    def __str__(self):\n        raise ValueError\n"
        "def Cost(*a, **k):\n    raise E",
        "broken-cost",
    ),
    "is a generator's end": ("def Cost(*a, **k):\n    raise GeneratorExit", "GeneratorExit"),
    "raises in the midst of a run": (
        COST % "raise KeyError('x')",
        "cost broken-cost (broken_parts, line 10) ended the command with KeyError: 'x'",
    ),
    "ends the process in the midst of a run": (
        COST % "sys.exit(0)",
        "cost broken-cost (broken_parts, line 10) ended the command with SystemExit: 0",
    ),
}


@pytest.mark.parametrize("what", MODULES)
def test_it_is_named(what, refused, tmp_path, monkeypatch):
    content, said = MODULES[what]
    (tmp_path / "broken_parts.py").write_text(content)
    info = tmp_path / "broken_parts-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-parts\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[pagesim.cost_models]\nbroken-cost = broken_parts:Cost\n")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        sentence = refused("run", "--trace", "fixed:20,5", "--num-requests", "5", "--cost", "broken-cost")
    finally:
        sys.modules.pop("broken_parts", None)
    assert said in sentence
    assert "broken-cost" in sentence
