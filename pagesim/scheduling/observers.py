"""Several observers as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pagesim.scheduling.arrivals import NEVER
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
            setattr(self, name, _earliest(called) if name == "next_look" else _all_of(called))


def _all_of(called: Sequence[Callable[..., None]]) -> Callable[..., None]:
    if not called:
        return _unheard
    if len(called) == 1:
        return called[0]

    def notify(*event: Any) -> None:
        for each in called:
            each(*event)

    return notify


def _earliest(looks: Sequence[Callable[[], int]]) -> Callable[[], int]:
    if not looks:
        return _never
    return looks[0] if len(looks) == 1 else lambda: min([look() for look in looks])


def _unheard(*event: object) -> None:
    return


def _never() -> int:
    return NEVER
