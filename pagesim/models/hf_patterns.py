"""Match the names, globs and regular expressions of a ``quantization_config`` to modules.

Patterns are matched with RE2, since a config may come from anywhere: it takes time linear in a name, whatever
the pattern, and has neither look-around nor back-references.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import TypeVar

import re2

from pagesim.errors import PagesimError
from pagesim.models.hf_modules import HEAD_NAMES, Module, names

Value = TypeVar("Value")
Error = Callable[[str, str], PagesimError]
"""Makes the error for an invalid pattern, from the pattern and what it must be."""

MOST_CHARACTERS, MOST_PATTERNS = 10_000, 5_000
"""Most characters per pattern and most patterns per list; released lists have some hundreds."""

_EXPRESSION = "re:"
_LAYER = "#"
_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.max_mem = 256 << 20


def find(
    modules: Sequence[Module], entries: Iterable[tuple[str, Value]], error: Error
) -> dict[Module, Value]:
    """Return the value that a config's entries assign to each module; unmatched modules are left out.

    An entry is a module's full name, an enclosing module's, or consecutive components of its name; a glob for
    one of these; or, after ``re:``, an expression that must match the beginning of a name. Names take
    precedence over patterns; of several patterns, the first one counts.

    Args:
        modules: linear layers of a model.
        entries: pairs of a name or pattern and its value.
        error: makes the error for an invalid pattern, or one that RE2 does not support.
    """
    by_name: dict[str, Value] = {}
    by_pattern: list[Value] = []
    patterns = re2.Set.MatchSet(_OPTIONS)
    for name, value in entries:
        if not name.startswith(_EXPRESSION) and "*" not in name and "?" not in name:
            by_name.setdefault(name, value)
            continue
        try:
            if len(name) > MOST_CHARACTERS:
                raise error(name, f"at most {MOST_CHARACTERS} characters long")
            if len(by_pattern) == MOST_PATTERNS:
                raise error(name, f"one of at most {MOST_PATTERNS} patterns")
            patterns.Add(_expression(name).encode("utf-8", "surrogatepass"))
        except re2.error:
            wanted = "a name, or a pattern that RE2 takes: without look-around and back-references"
            raise error(name, wanted) from None
        by_pattern.append(value)
    if by_pattern:
        try:
            patterns.Compile()
        except re2.error:
            raise error(
                name, "one of fewer or shorter patterns: all of them are too many to compare"
            ) from None
    found = {}
    for module in modules:
        named = next((run for run in _runs(module) if run in by_name), None) if by_name else None
        if named is not None:
            found[module] = by_name[named]
        elif by_pattern:
            matched = [number for each in module.names for number in patterns.Match(each) or ()]
            if matched:
                found[module] = by_pattern[min(matched)]
    return found


def _expression(pattern: str) -> str:
    """Return the regular expression for a pattern or glob."""
    if pattern.startswith(_EXPRESSION):
        return pattern.removeprefix(_EXPRESSION)
    parts = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    end = "" if pattern.endswith("*") else r"(?:\.|$)"
    return rf"(?:.*\.)?{parts}{end}"


def _runs(module: Module) -> list[str]:
    """Return all runs of consecutive components of a module's names."""
    number = str(module.layer)
    return [run.replace(_LAYER, number) for run in _runs_in_any(module.group, module.name, module.layer < 0)]


@lru_cache(maxsize=256)
def _runs_in_any(group: str, name: str, head: bool) -> tuple[str, ...]:
    """Return the same for any layer, with `_LAYER` in place of its number."""
    runs: dict[str, None] = {}
    for each in HEAD_NAMES if head else names(group, _LAYER, name):
        parts = each.split(".")
        for first in range(len(parts)):
            for last in range(first, len(parts)):
                runs[".".join(parts[first : last + 1])] = None
    return tuple(runs)
