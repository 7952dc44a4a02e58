"""What whole numbers of a plan must be."""

from __future__ import annotations

from operator import index

from pagesim.errors import PagesimError


def check_power_of_two(name: str, value: int | None, least: int, most: int | None = None) -> None:
    """Check a power of two against its bounds; None stands for one that is not given."""
    if value is None:
        return
    outside = value < least or (most is not None and value > most)
    if outside or value & (value - 1):
        end = "" if most is None else f" to {most}"
        raise PagesimError(f"{name} is {value}; a power of two from {least}{end} is needed")


def check_within(
    name: str, value: int | None, least: int, most: int | None = None, *, says: str = "is"
) -> None:
    """Check a whole number against its bounds; None stands for one that is not given."""
    if value is None:
        return
    try:
        index(value)
    except TypeError:
        raise PagesimError(f"{name} {says} {value!r}; a whole number is needed") from None
    if value < least:
        raise PagesimError(f"{name} {says} {value}; at least {least} is needed")
    if most is not None and value > most:
        raise PagesimError(f"{name} {says} {value}; at most {most} is allowed")
