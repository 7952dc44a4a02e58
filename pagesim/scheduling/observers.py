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
                setattr(self, name, called[0] if len(called) == 1 else _together(called))


def _together(called: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    """Return what calls each; of `Observer.next_look`, the only one with a result, the earliest."""

    def notify(*event: Any) -> Any:
        return min([each(*event) or 0 for each in called])

    return notify
