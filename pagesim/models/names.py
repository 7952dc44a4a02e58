"""Look a name up, or say which names are like it."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TypeVar

from pagesim.errors import PagesimError, brief

Spec = TypeVar("Spec")


def find(kind: str, name: str, known: Mapping[str, Spec]) -> Spec:
    """Return the entry of that name, whatever its case.

    Args:
        kind: what is looked for, as the error calls it ("model", "GPU").
        name: the name asked for.
        known: entries by their lower-case names.

    Raises:
        PagesimError: no such name; the message lists the names nearest to it, or all when none is near.
    """
    spec = known.get(name.lower())
    if spec is None:
        near = get_close_matches(name.lower()[:100], known, n=5, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(known)}"
        raise PagesimError(f"no {kind} is named {brief(name, 1000)}; {hint}")
    return spec
