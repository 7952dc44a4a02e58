"""Deep copies of block managers and their requests, including compiled classes."""

from __future__ import annotations

import copyreg
import sys
from copy import deepcopy
from dataclasses import fields, is_dataclass
from inspect import isclass
from typing import Any, TypeVar

from pagesim.setup.compiled import MODULES

Thing = TypeVar("Thing")


def copied(thing: Thing) -> Thing:
    """Return a deep copy; ``copy`` alone would miss the attributes of compiled classes' instances."""
    for name in MODULES:
        module = sys.modules.get(f"pagesim.{name}")
        for kind in list(vars(module).values()) if module else ():
            if isclass(kind) and hasattr(kind, "__mypyc_attrs__"):
                _let_copy(kind)
    return deepcopy(thing)


def _let_copy(kind: type[Any]) -> None:
    """Register with ``copy`` how to reduce instances of a compiled class and of its subclasses."""
    copyreg.pickle(kind, _taken_apart)
    for each in kind.__subclasses__():
        _let_copy(each)


def _taken_apart(thing: Any) -> tuple[Any, ...]:
    """Return how to recreate an instance: a callable, its arguments, and the state to set."""
    kind = type(thing)
    if is_dataclass(thing):
        return kind, tuple([getattr(thing, field.name) for field in fields(thing)])
    slots: list[str] = []
    for each in kind.__mro__:
        slots += [*vars(each).get("__mypyc_attrs__", ()), *vars(each).get("__slots__", ())]
    # A compiled class has a ``__setstate__`` that sets all of these.
    kept = {name: getattr(thing, name) for name in (*slots, "__dict__") if hasattr(thing, name)}
    return kind.__new__, (kind,), kept
