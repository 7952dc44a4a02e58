"""Tests of docs/explanation/reading-vllm.md: what it names is there, in that file."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "reading-vllm.md"
TEXT = PAGE.read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"\[`([\w.]+)`\]\(\.\./\.\./(pagesim/[\w/]+\.py)\)", TEXT)))


def names_in(file: Path) -> set[str]:
    """Return the classes and functions of a file, methods as ``Class.method``."""
    found: set[str] = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
    return found


@pytest.mark.parametrize(("name", "file"), NAMED)
def test_what_the_page_names_is_there(name: str, file: str) -> None:
    assert name in names_in(ROOT / file)


def test_each_rule_and_each_question_has_its_place() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("| ") and " | here | " not in line]
    assert len(rows) > 15
    for row in rows:
        assert ".py)" in row or "| the same |" in row, f"no place here: {row}"
        assert re.search(r"\| [–SAMPTC]( \d|\s)", row), f"no line of vLLM, nor that it has none: {row}"
    questions = re.findall(r"\n\*\*(.+?\?)\*\*(.+?)(?=\n\n|\Z)", TEXT, re.DOTALL)
    assert len(questions) == 5
    for question, answer in questions:
        assert re.search(r"\]\(\.\./\.\./pagesim/[\w/]+\.py\)", answer), question
    assert len(NAMED) > 20


def test_the_page_is_short() -> None:
    assert len(TEXT.split()) <= 900
