"""Several observers as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pagesim.scheduling.observer import Observer

_NAMES = tuple(name for name in vars(Observer) if not name.startswith("_"))


class Observers(Observer):
    """Several observers as one; each is called only for the callbacks that it overrides.

    Args:
        observers: observers in the order in which they are called.
    """

    def __init__(self, observers: Sequence[Observer]) -> None:
        for name in _NAMES:
            called = [
                getattr(observer, name)
                for observer in observers
                if getattr(type(observer), name) is not getattr(Observer, name)
            ]
            if called:  # otherwise the base class's callback, which does nothing, remains
                together = _earliest if name == "next_look" else _in_turn
                setattr(self, name, called[0] if len(called) == 1 else together(called))


def _in_turn(called: Sequence[Callable[..., None]]) -> Callable[..., None]:
    """Return a callback that calls each of the given ones in order."""

    def notify(*event: Any) -> None:
        for each in called:
            each(*event)

    return notify


def _earliest(called: Sequence[Callable[..., int]]) -> Callable[..., int]:
    """Return a callback that returns the earliest of the given ones' times."""

    def ask(*event: Any) -> int:
        return min([each(*event) for each in called])

    return ask
