"""The lint of words: it finds a planted one, where it is prose, and nothing in the repository."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("words.py")


def lint(*files: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *files], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("name", "text", "line", "word"),
    [
        ("a.py", '"""Fine."""\n\n\ndef f():\n    """Tell nobody."""\n', 5, "nobody"),
        ("a.py", "x = 1  # it leaps over it\n", 1, "leaps"),
        ("a.py", 'raise ValueError(f"{1} is turned away")\n', 1, "turned away"),
        ("a.md", "# Fine\n\nProfiles in the box.\n", 3, "in the box"),
        ("a.md", "Whoever waits.\n", 1, "Whoever"),
    ],
)
def test_a_planted_word_is_found_with_what_to_use(tmp_path, name, text, line, word) -> None:
    (tmp_path / name).write_text(text)
    outcome = lint(tmp_path / name)
    assert outcome.returncode == 1
    assert f"{name}:{line}: {word} -> " in outcome.stdout


def test_a_name_in_code_is_no_prose(tmp_path) -> None:
    (tmp_path / "a.py").write_text('"""Fine."""\n\nlane = 1\nleap = lane\n')
    assert lint(tmp_path / "a.py").returncode == 0


def test_the_repository_is_clean() -> None:
    outcome = lint()
    assert outcome.returncode == 0, outcome.stdout
