"""What the conformance suites take: not a part, but what makes new ones, such as its class."""

from __future__ import annotations


def check_makes(make: object) -> None:
    """Check that this can make parts.

    Raises:
        TypeError: it cannot, since it is a part itself.
    """
    if not callable(make):
        name = type(make).__name__
        raise TypeError(f"this is one {name}, and the suite makes several of its own: pass the class, {name}")
