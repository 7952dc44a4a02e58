"""Pages of the documentation, taken apart: commands, and programs with what they print."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
COMMAND = re.compile(r"^    (pagesim (?:[^\n]*\\\n)*[^\n]*)$", re.MULTILINE)
PROGRAM = re.compile(r"^```python\n(.*?)^```(?:\n\n```\n(.*?)^```)?$", re.DOTALL | re.MULTILINE)


def text_of(page: str) -> str:
    """Return a page, named by its path in the checkout."""
    return (ROOT / page).read_text(encoding="utf-8")


def words_of(command: str) -> list[str]:
    """Return a command's words but for the first, ``pagesim``; what a remark says behind them is left out."""
    return shlex.split(command.replace("\\\n", " "), comments=True)[1:]


def commands_in(text: str) -> list[list[str]]:
    """Return the words of every command that a text shows, of those joined by ``&&`` one after another."""
    return [words_of(part) for found in COMMAND.findall(text) for part in found.split(" && ")]


def check_programs(text: str, place: str) -> int:
    """Run a page's programs one after another; each must print what stands behind it. Return their number."""
    globals_: dict[str, object] = {"__name__": "documentation"}
    found = PROGRAM.findall(text)
    for program, shown in found:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(program, place, "exec"), globals_)
        assert printed.getvalue() == shown
    return len(found)


def module_of(script: str) -> Any:
    """Return a script, named by its path in the checkout, as a module; its folder is no package."""
    spec = spec_from_file_location(Path(script).stem, ROOT / script)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module
