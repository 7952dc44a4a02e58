"""Cases from axes, so few that they can all be run and so many that every two values meet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, product
from random import Random

Axes = Mapping[str, Sequence[str]]
"""The names of an axis' values."""

Case = dict[str, str]
"""For each axis the name of its value."""

Pair = tuple[tuple[str, str], tuple[str, str]]


def pairs(axes: Axes, allowed: Callable[[Case], bool]) -> list[Pair]:
    """Return every two values of different axes that may meet, in the order of the axes."""
    found = (
        ((one, a), (other, b))
        for one, other in combinations(axes, 2)
        for a, b in product(axes[one], axes[other])
    )
    return [pair for pair in found if allowed(dict(pair))]


def covering(axes: Axes, every: Sequence[str], allowed: Callable[[Case], bool]) -> Iterator[Case]:
    """Yield cases in which all values of all axes in ``every`` meet, and every two values of any axes.

    A case takes for one axis after the other the value that meets most values it has not met yet; of equals,
    the one that was taken least, then any. The same axes give the same cases.

    Args:
        axes: what there is to choose from.
        every: axes whose combinations are all wanted.
        allowed: whether a case, or a part of one, is to be run; a part that is must be the part of a case.
    """
    missing = dict.fromkeys(pairs(axes, allowed))
    taken: Counter[tuple[str, str]] = Counter()
    any_of = Random(0).random
    order = {axis: i for i, axis in enumerate(axes)}

    def place(chosen: tuple[str, str]) -> int:
        return order[chosen[0]]

    def met(case: Case, axis: str, value: str) -> list[Pair]:
        """Return what is met for the first time if a case takes a value."""
        others = ((other, case[other]) for other in axes if other != axis and other in case)
        pairs = (tuple(sorted(((axis, value), other), key=place)) for other in others)
        return [pair for pair in pairs if pair in missing]

    starts = (dict(zip(every, values, strict=True)) for values in product(*(axes[name] for name in every)))
    wanted = [start for start in starts if every and allowed(start)]
    while wanted or missing:
        case = wanted.pop(0) if wanted else dict(next(iter(missing)))
        for axis, values in axes.items():
            if axis not in case:
                fitting = [value for value in values if allowed({**case, axis: value})]
                case[axis] = max(
                    fitting,
                    key=lambda value: (len(met(case, axis, value)), -taken[axis, value], any_of()),
                )
        taken.update(case.items())
        for axis in axes:
            for pair in met(case, axis, case[axis]):
                missing.pop(pair, None)
        yield {axis: case[axis] for axis in axes}
