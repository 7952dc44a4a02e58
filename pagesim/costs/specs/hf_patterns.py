"""Which modules the names, globs and regular expressions of a ``quantization_config`` are about.

A pattern is compared with the names of all modules at once: a whole number has a bit for each of their
characters, and a step of the pattern is an operation on such numbers. So no pattern backtracks (after Cameron
et al., "Bitwise Data Parallelism in Regular Expression Matching", PACT 2014).
"""

from __future__ import annotations

import re
import re._constants as op  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from pagesim.costs.specs.hf_modules import HEAD_NAMES, Module, names
from pagesim.errors import PagesimError

Value = TypeVar("Value")
Error = Callable[[str, str], PagesimError]
"""Makes the error for a pattern, by the pattern and by what it must be."""

MOST_CHARACTERS = 10_000
MOST_MODULES = 10_000
MOST_STEPS = 50_000_000
"""Bounds: characters of a pattern, linear layers of a model, and these times the steps of all patterns."""

_EXPRESSION = "re:"
_LAYER = "#"
_CATEGORIES: dict[Any, Callable[[str], bool]] = {
    op.CATEGORY_DIGIT: str.isdecimal,
    op.CATEGORY_NOT_DIGIT: lambda letter: not letter.isdecimal(),
    op.CATEGORY_SPACE: str.isspace,
    op.CATEGORY_NOT_SPACE: lambda letter: not letter.isspace(),
    op.CATEGORY_WORD: lambda letter: letter.isalnum() or letter == "_",
    op.CATEGORY_NOT_WORD: lambda letter: not (letter.isalnum() or letter == "_"),
}
_OF_ONE = (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN)


def find(
    modules: Sequence[Module], entries: Iterable[tuple[str, Value]], error: Error
) -> dict[Module, Value]:
    """Return what the entries of a config say of modules; a module that none is about is left out.

    An entry is a whole name, a module around it, or neighbouring parts of its name; a glob of such; or,
    behind ``re:``, an expression that the beginning of its name matches. A name goes before the beginning of
    one (``name*``), that before another pattern, and among their like the first.

    Args:
        modules: linear layers of a model.
        entries: names or patterns, and what each says.
        error: makes the error for one that is no pattern, or cannot be compared.
    """
    whole: dict[str, Value] = {}
    begun: dict[str, dict[str, Value]] = {}
    patterns: list[tuple[str, Value]] = []
    for name, value in entries:
        if len(modules) > MOST_MODULES:
            raise error(name, f"left out: names are compared with at most {MOST_MODULES} linear layers")
        if name.startswith((_EXPRESSION, ".")) or "*" in name[:-1] or "?" in name:
            patterns.append((name, value))
        elif name.endswith("*"):
            around, _, last = name[:-1].rpartition(".")
            begun.setdefault(around, {}).setdefault(last, value)
        else:
            whole.setdefault(name, value)
    beginnings = {around: tuple(lasts) for around, lasts in begun.items()}
    found = _matched(modules, patterns, error) if patterns else {}
    for module in modules if whole or begun else ():
        runs = _runs(module)
        at = next((run for run, _, _ in runs if run in whole), None)
        if at is not None:
            found[module] = whole[at]
            continue
        for _, around, last in runs:
            if around in beginnings and last.startswith(beginnings[around]):
                found[module] = next(v for begin, v in begun[around].items() if last.startswith(begin))
                break
    return found


def _runs(module: Module) -> list[tuple[str, str, str]]:
    """Return all neighbouring parts of a module's names: together, all but the last, and the last."""
    number = str(module.layer)
    runs = _runs_of_any(module.group, module.name, module.layer < 0)
    return [
        (run.replace(_LAYER, number), before.replace(_LAYER, number), last.replace(_LAYER, number))
        for run, before, last in runs
    ]


@lru_cache(maxsize=256)
def _runs_of_any(group: str, name: str, head: bool) -> tuple[tuple[str, str, str], ...]:
    """Return the same of a module of whatever layer, which stands there as `_LAYER`."""
    found: dict[tuple[str, str, str], None] = {}
    for each in HEAD_NAMES if head else names(group, _LAYER, name):
        parts = each.split(".")
        for first in range(len(parts)):
            for last in range(first, len(parts)):
                run, before = ".".join(parts[first : last + 1]), ".".join(parts[first:last])
                found[run, before, parts[last]] = None
    return tuple(found)


def _matched(
    modules: Sequence[Module], patterns: Sequence[tuple[str, Value]], error: Error
) -> dict[Module, Value]:
    known, steps = _Names(modules), 0
    trees = []
    for pattern, value in patterns:
        tree = _tree(pattern, error)
        trees.append((tree, value))
        steps += known.steps(tree)
        if steps * len(modules) > MOST_STEPS:
            wanted = f"one of fewer or simpler patterns: to compare all with {len(modules)} linear layers"
            raise error(pattern, f"{wanted} takes more than {MOST_STEPS} steps")
    by_value: dict[Value, int] = {}
    taken = 0
    for tree, value in trees:
        hits = known.hits(tree) & ~taken
        taken |= hits
        by_value[value] = by_value.get(value, 0) | hits
    return {module: value for value, hits in by_value.items() for module in known.modules(hits)}


def _tree(pattern: str, error: Error) -> Any:
    """Return the parts of a pattern, as the standard library parses them."""
    if len(pattern) > MOST_CHARACTERS:
        raise error(pattern, f"at most {MOST_CHARACTERS} characters long")
    if pattern.startswith(_EXPRESSION):
        expression = pattern.removeprefix(_EXPRESSION)
    else:
        parts = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
        end = "" if pattern.endswith("*") else r"(?:\.|$)"
        expression = rf"(?:.*\.)?{parts}{end}"
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = parser.parse(expression)
            _check(tree)
    except _Unknown as unknown:
        raise error(pattern, f"a regular expression without {unknown}, which is not compared here") from None
    except (re.error, RecursionError, OverflowError, ValueError):
        raise error(pattern, "a name or a regular expression") from None
    return tree


class _Unknown(Exception):
    """What of an expression is not compared here."""


def _check(tree: Any) -> None:
    """Refuse what does not follow from positions alone: references, assertions, flags."""
    if tree.state.flags & ~re.UNICODE.value:
        raise _Unknown("flags")
    for kind, arg in tree:
        if kind in _OF_ONE or (kind is op.AT and arg in _Names.ENDS):
            continue
        if kind in (op.MAX_REPEAT, op.MIN_REPEAT):
            _check(arg[2])
        elif kind is op.BRANCH:
            for branch in arg[1]:
                _check(branch)
        elif kind is op.SUBPATTERN and not (arg[1] or arg[2]):
            _check(arg[3])
        else:
            raise _Unknown(str(kind).lower())


class _Names:
    """All names of modules in one text, a name a line, and the places in it as bits of whole numbers."""

    ENDS: Mapping[Any, bool] = {
        op.AT_BEGINNING: False,
        op.AT_BEGINNING_STRING: False,
        op.AT_END: True,
        op.AT_END_STRING: True,
    }

    def __init__(self, modules: Sequence[Module]) -> None:
        lines = [(name, module) for module in modules for name in module.names]
        self._modules = [module for _, module in lines]
        text = "".join(f"{name}\n" for name, _ in lines)
        self._text = np.frombuffer(text.encode("ascii"), np.uint8)
        self._longest = 1 + max((len(name) for name, _ in lines), default=0)
        self._masks: dict[Any, int] = {}
        self._ends = self._where("\n".__eq__)
        self._starts = (self._ends << 1 | 1) & ~(1 << len(self._text))
        self._letters = self._where("\n".__ne__)

    def hits(self, tree: Any) -> int:
        """Return the ends of the names that a pattern matches, from their beginning on."""
        return self._run(self._after(tree, self._starts), self._letters) & self._ends

    def modules(self, hits: int) -> list[Module]:
        """Return the modules of such names."""
        packed = np.frombuffer(hits.to_bytes(len(self._text) // 8 + 1, "little"), np.uint8)
        lines = np.cumsum(self._text == ord("\n"))[np.flatnonzero(np.unpackbits(packed, bitorder="little"))]
        return [self._modules[line - 1] for line in lines.tolist()]

    def steps(self, tree: Any) -> int:
        """Return how many operations a pattern takes at most."""
        total = 0
        for kind, arg in tree:
            total += 1
            if kind in (op.MAX_REPEAT, op.MIN_REPEAT):
                least, most, inner = arg
                times = least if self._is_run(arg) else most
                total += 2 + min(int(times), 2 * self._longest) * self.steps(inner)
            elif kind is op.BRANCH:
                total += sum(map(self.steps, arg[1]))
            elif kind is op.SUBPATTERN:
                total += self.steps(arg[3])
        return total

    def _after(self, tree: Any, places: int) -> int:
        """Return the places after what a pattern matches that begins in these places."""
        for kind, arg in tree:
            if not places:
                return 0
            if kind in _OF_ONE:
                places = (places & self._mask(kind, arg)) << 1
            elif kind is op.AT:
                places &= self._ends if self.ENDS[arg] else self._starts
            elif kind is op.BRANCH:
                places = self._any(places, arg[1])
            elif kind is op.SUBPATTERN:
                places = self._after(arg[3], places)
            else:
                places = self._repeated(arg, places)
        return places

    def _any(self, places: int, branches: Iterable[Any]) -> int:
        after = 0
        for branch in branches:
            after |= self._after(branch, places)
        return after

    def _repeated(self, repeat: Any, places: int) -> int:
        least, most, tree = repeat
        # No name has more characters, and what matches none changes nothing.
        for _ in range(min(least, self._longest)):
            places = self._after(tree, places)
        if self._is_run(repeat):
            return self._run(places, self._mask(*tree[0]))
        found = new = places
        for _ in range(min(most - least, self._longest)):
            new = self._after(tree, new) & ~found
            if not new:
                break
            found |= new
        return found

    @staticmethod
    def _is_run(repeat: Any) -> bool:
        """Whether it is of one kind of character and has no most."""
        _, most, tree = repeat
        return most is op.MAXREPEAT and len(tree) == 1 and tree[0][0] in _OF_ONE

    @staticmethod
    def _run(places: int, mask: int) -> int:
        """Return these places and those behind them over characters of a mask, over which a carry runs."""
        return (((places & mask) + mask) ^ mask) | places

    def _mask(self, kind: Any, arg: Any) -> int:
        """Return where the characters of a kind are."""
        key = kind, str(arg)
        if key not in self._masks:
            self._masks[key] = self._where(lambda letter: letter != "\n" and _holds(kind, arg, letter))
        return self._masks[key]

    def _where(self, holds: Callable[[str], bool]) -> int:
        table = np.array([holds(chr(code)) for code in range(128)])
        return int.from_bytes(np.packbits(table[self._text], bitorder="little").tobytes(), "little")


def _holds(kind: Any, arg: Any, letter: str) -> bool:
    """Say whether a character is of a kind."""
    if kind is op.LITERAL:
        return bool(ord(letter) == arg)
    if kind is op.NOT_LITERAL:
        return bool(ord(letter) != arg)
    if kind is op.RANGE:
        return bool(arg[0] <= ord(letter) <= arg[1])
    if kind is op.CATEGORY:
        return _CATEGORIES[arg](letter)
    if kind is op.ANY:
        return True
    negated = arg[0][0] is op.NEGATE
    return any(_holds(of, each, letter) for of, each in arg[negated:]) != bool(negated)
