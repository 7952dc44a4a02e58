"""A check that conformance suites are given a factory, such as a class, and not an instance."""

from __future__ import annotations


def check_makes(make: object) -> None:
    """Check that the argument is a factory.

    Raises:
        TypeError: it is not, but an instance.
    """
    if not callable(make):
        name = type(make).__name__
        raise TypeError(f"this is one {name}, and the suite makes several of its own: pass the class, {name}")
