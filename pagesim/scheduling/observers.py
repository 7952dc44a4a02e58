"""Several observers as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pagesim.scheduling.observer import Observer

_NAMES = tuple(name for name in vars(Observer) if not name.startswith("_"))


class Observers(Observer):
    """Several observers as one; each is called only for what it overrides.

    Args:
        observers: in the order in which they are told.
    """

    def __init__(self, observers: Sequence[Observer]) -> None:
        for name in _NAMES:
            called = [
                getattr(observer, name)
                for observer in observers
                if getattr(type(observer), name) is not getattr(Observer, name)
            ]
            if called:  # else the base class's, which does nothing
                together = _earliest if name == "next_look" else _in_turn
                setattr(self, name, called[0] if len(called) == 1 else together(called))


def _in_turn(called: Sequence[Callable[..., None]]) -> Callable[..., None]:
    """Return what calls each, in order."""

    def notify(*event: Any) -> None:
        for each in called:
            each(*event)

    return notify


def _earliest(called: Sequence[Callable[..., int]]) -> Callable[..., int]:
    """Return what asks each for the instant of its next look, and gives the earliest."""

    def ask(*event: Any) -> int:
        return min([each(*event) for each in called])

    return ask
