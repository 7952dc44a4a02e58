"""Tables of measured seconds over one to three sizes, interpolated linearly."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise, product
from statistics import median
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from pagesim.errors import PagesimError, brief

Floats = npt.NDArray[np.float64]
Sizes = tuple[float, ...]
"""A point: one size per axis."""

MOST_NEIGHBOURS = 200
"""Measured points that are used to estimate one that was not measured."""

FAR = 1 << 14
"""The far knot of both axes of a bilinear table; the near knot is 1."""

MOST_SECONDS = 1e6
"""Longer times are rejected as mistakes."""

Knots = Annotated[tuple[Annotated[int | float, Field(ge=0)], ...], Field(min_length=1, strict=False)]


class Strict(BaseModel):
    """Base of data read from a file: strictly validated, without extra fields, and immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Line(NamedTuple):
    """A linear piece along a table's last axis: ``seconds`` at size 0, plus ``unit_s`` per unit.

    ``until`` is the largest whole size for which it holds; None if it has no end.
    """

    seconds: float
    unit_s: float
    until: int | None


class Table(Strict):
    """Seconds as a function of one to three sizes, linear between the knots of every axis.

    Sizes below an axis's first knot cost the same as that knot. Beyond the last knot, the line through the
    last two is extended. Seconds are never negative. A first size of 0 means no work and takes no time.

    Attributes:
        axes: rising knots of each axis by its name, such as ``tokens``.
        seconds: seconds at each combination of knots, nested in the order of the axes.
    """

    axes: Annotated[dict[str, Knots], Field(min_length=1, max_length=3)]
    seconds: Any

    @field_validator("seconds")
    @classmethod
    def _nested(cls, seconds: Any) -> Any:
        return _tuples(seconds)

    @model_validator(mode="after")
    def _check(self) -> Table:
        for name, knots in self.axes.items():
            if any(a >= b for a, b in pairwise(knots)):
                raise ValueError(f"its {name} must rise")
        wanted = tuple(map(len, self.axes.values()))
        try:
            given = np.array(self.seconds, np.float64)
        except ValueError:
            raise ValueError(f"its seconds must be {' by '.join(map(str, wanted))} numbers") from None
        if given.shape != wanted:
            raise ValueError(f"has {given.shape} seconds, and {wanted} sizes")
        if not ((given >= 0) & (given < MOST_SECONDS)).all():
            raise ValueError(f"its seconds must be from 0 to {MOST_SECONDS:g}")
        return self

    @classmethod
    def of(cls, axes: Mapping[str, Iterable[float]], seconds: Callable[..., float]) -> Table:
        """Return a table of a function's values at all combinations of knots.

        Args:
            axes: knots of each axis by its name.
            seconds: function of one size per axis, in this order.
        """
        knots = {name: tuple(each) for name, each in axes.items()}
        values = [float(seconds(*point)) for point in product(*knots.values())]
        return cls(axes=knots, seconds=_shaped(values, knots))

    @classmethod
    def of_points(
        cls,
        axes: Sequence[str],
        points: Iterable[tuple[Sizes, float]],
        *,
        rising: Collection[str] = (),
        most: int = 64,
    ) -> Table:
        """Return a table of measurements, taking the median where a point was measured more than once.

        Combinations of knots that were not measured are estimated by a formula: a launch time plus
        non-negative costs per unit of each size and of their products, by least squares of relative errors.
        The estimate is multiplied by the ratio of nearby measurements to the formula, by a radial basis
        function over the logarithms. It is never below the smallest measurement.

        Args:
            axes: names of a point's sizes.
            points: sizes and their measured seconds, above 0.
            rising: axes along which seconds never fall (see the method of that name).
            most: maximum number of knots per axis, including both ends; if more sizes were measured, some
                are chosen, evenly spaced by ratio.

        Raises:
            PagesimError: there is no point, or a point took no time.
        """
        measured: dict[Sizes, list[float]] = defaultdict(list)
        for sizes, taken in points:
            measured[sizes].append(taken)
        if not measured:
            raise PagesimError(f"nothing was measured over {' and '.join(axes)}")
        if not min(map(min, measured.values())) > 0:
            raise PagesimError(f"a measurement over {' and '.join(axes)} took no time; all must take some")
        at = np.array(list(measured), np.float64)
        seconds = np.array([median(each) for each in measured.values()])
        knots = {name: _some(at[:, axis], most) for axis, name in enumerate(axes)}
        grid = np.array(list(product(*knots.values())), np.float64)
        known = dict(zip(measured, seconds.tolist(), strict=True))
        found = np.array([known.get(tuple(point), np.nan) for point in grid.tolist()])
        missing = ~np.isfinite(found)
        if missing.any():
            found[missing] = np.maximum(seconds.min(), _unmeasured(at, seconds, grid[missing]))
        shaped = found.reshape([len(each) for each in knots.values()])
        return cls(axes=knots, seconds=shaped.tolist()).rising(*rising).rounded()

    def __call__(self, *sizes: float) -> float:
        """Return the seconds at the given sizes, one per axis."""
        if sizes[0] <= 0:
            return 0.0
        places = [self._place(axis, size) for axis, size in enumerate(sizes)]
        return max(0.0, _between(self.seconds, places, 0))

    def row(self, *leading: float) -> tuple[float, ...]:
        """Return the seconds at each knot of the last axis.

        Args:
            leading: one size for each axis but the last.
        """
        places = [self._place(axis, size) for axis, size in enumerate(leading)]
        last = range(len(self.knots[-1]))
        return tuple(max(0.0, _between(self.seconds, [*places, (at, 0.0)], 0)) for at in last)

    def lines(self, *leading: float) -> tuple[Line, ...]:
        """Return the linear pieces along the last axis, starting at size 0; none of them falls.

        Args:
            leading: one size for each axis but the last.
        """
        row, knots = self.row(*leading), self.knots[-1]
        found = [Line(row[0], 0.0, _before(knots[0]))]
        for (a, b), (low, high) in zip(pairwise(knots), pairwise(row), strict=True):
            slope = max(0.0, high - low) / (b - a)
            found.append(Line(low - slope * a, slope, _before(b)))
        # The last piece has no end; with a single knot it is also the first.
        found[-1] = found[-1]._replace(until=None)
        return tuple(found)

    @cached_property
    def knots(self) -> tuple[Sizes, ...]:
        """Knots of each axis."""
        return tuple(self.axes.values())

    def _place(self, axis: int, size: float) -> tuple[int, float]:
        """Return the left knot's index and the fraction of the way to the next; above 1 beyond the last."""
        knots = self.knots[axis]
        if size <= knots[0] or len(knots) == 1:
            return 0, 0.0
        left = min(bisect_right(knots, size), len(knots) - 1) - 1
        return left, (size - knots[left]) / (knots[left + 1] - knots[left])

    @property
    def array(self) -> Floats:
        """Seconds at each combination of knots, with one array dimension per axis."""
        return np.array(self.seconds, np.float64)

    def scaled(self, factor: float) -> Table:
        """Return the table with its seconds multiplied by a factor."""
        return self._with(self.array * factor)

    def rounded(self, digits: int = 6) -> Table:
        """Return the table with seconds rounded to ``digits`` significant digits."""
        kept = [float(f"{each:.{digits}g}") for each in self.array.ravel().tolist()]
        return self._with(np.array(kept).reshape(self.array.shape))

    def rises(self, axis: str) -> bool:
        """Return whether seconds never fall along an axis."""
        return bool((np.diff(self.array, axis=list(self.axes).index(axis)) >= 0).all())

    def rising(self, *axes: str) -> Table:
        """Return the table with seconds made non-decreasing along these axes.

        Where a smaller size takes longer than a larger one, both get their median, which for two is their
        geometric mean (see `isotonic`).
        """
        seconds = self.array
        for axis in (list(self.axes).index(name) for name in axes if not self.rises(name)):
            seconds = np.apply_along_axis(isotonic, axis, seconds)
        return self._with(seconds)

    def simplified(self, tolerance: float = 0.002) -> Table:
        """Return the table without redundant knots.

        Args:
            tolerance: largest relative error of interpolation at a knot that is dropped.
        """
        seconds, axes = self.array, dict(self.axes)
        for axis, name in enumerate(self.axes):
            rows = np.moveaxis(seconds, axis, 0)
            kept = _needed(np.array(axes[name], np.float64), rows, tolerance)
            axes[name] = tuple(axes[name][at] for at in kept)
            seconds = np.moveaxis(rows[kept], 0, axis)
        return Table(axes=axes, seconds=seconds.tolist())

    def _with(self, seconds: Floats) -> Table:
        return Table(axes=self.axes, seconds=seconds.tolist())


def constant(axis: str, seconds: float) -> Table:
    """Return the table of an operator that takes the same time at any size."""
    return Table(axes={axis: (1,)}, seconds=(seconds,))


def line(
    sizes: npt.ArrayLike, seconds: Floats, wanted: npt.ArrayLike, *, power: float = 1.0, log: bool = False
) -> Floats:
    """Interpolate seconds at other sizes of the last axis as a `Table` does, for whole arrays: ``[..., W]``.

    Beyond the last size, the extended line never falls.

    Args:
        sizes: measured sizes, rising, ``[S]``.
        seconds: seconds at each size, ``[..., S]``.
        wanted: sizes to interpolate at, ``[W]``.
        power: power of the sizes in which seconds are linear.
        log: whether to interpolate the logarithms of sizes and seconds instead.
    """
    if log:
        return np.exp(line(np.log(sizes), np.log(seconds), np.log(wanted)))
    at, asked = np.asarray(sizes, np.float64), np.asarray(wanted, np.float64)
    if len(at) == 1:
        return np.repeat(seconds, len(asked), -1)
    asked = np.maximum(asked, at[0])
    right = np.clip(np.searchsorted(at, asked), 1, len(at) - 1)
    beyond = asked > at[-1]
    at, asked = at**power, asked**power
    share = (asked - at[right - 1]) / (at[right] - at[right - 1])
    first, last = seconds[..., right - 1], seconds[..., right]
    rise = np.where(beyond, np.maximum(last - first, 0), last - first)
    start = np.where(beyond, last - rise, first)
    found: Floats = start + share * rise
    return found


def bilinear(
    first: str,
    second: str,
    *,
    launch_s: float = 0.0,
    first_s: float = 0.0,
    second_s: float = 0.0,
    each_s: float = 0.0,
) -> Table:
    """Return a table that is bilinear in two sizes, starting at 1 of each.

    Args:
        first: name of the first axis.
        second: name of the second axis.
        launch_s: seconds at any size.
        first_s: seconds per unit of the first size.
        second_s: seconds per unit of the second size.
        each_s: seconds per unit of the product of both sizes.
    """
    return Table.of(
        {first: (1, FAR), second: (1, FAR)},
        lambda a, b: launch_s + first_s * a + second_s * b + each_s * a * b,
    )


def non_negative(features: Floats, wanted: Floats) -> Floats:
    """Return the non-negative least-squares coefficients ``[F]`` that fit the features to the targets.

    Args:
        features: features of each observation, ``[N, F]``.
        wanted: targets, ``[N]``.
    """
    from scipy.optimize import nnls

    # Scale the columns alike: costs per sequence and per token differ by orders of magnitude.
    scale = np.abs(features).max(0)
    scale[scale == 0] = 1
    found: Floats = nnls(features / scale, wanted)[0] / scale
    return found


def _between(seconds: Any, places: Sequence[tuple[int, float]], axis: int) -> float:
    """Interpolate at the given (knot, fraction) pairs of this axis and the following ones."""
    left, share = places[axis]
    if axis + 1 == len(places):
        low: float = seconds[left]
        return low + share * (seconds[left + 1] - low) if share else low
    low = _between(seconds[left], places, axis + 1)
    return low + share * (_between(seconds[left + 1], places, axis + 1) - low) if share else low


def _tuples(seconds: Any) -> Any:
    if isinstance(seconds, list | tuple):
        return tuple(map(_tuples, seconds))
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise ValueError(f"must be numbers, not {type(seconds).__name__}")
    if not 0 <= seconds < MOST_SECONDS:
        raise ValueError(f"is {brief(seconds)}; seconds from 0 to a million are needed")
    return float(seconds)


def _shaped(values: Sequence[float], knots: Mapping[str, Sizes]) -> Any:
    return np.array(values).reshape([len(each) for each in knots.values()]).tolist()


def _some(sizes: Floats, most: int) -> Sizes:
    """Return at most ``most`` of the distinct sizes, evenly spaced by ratio, including both ends."""
    distinct = np.unique(sizes)
    if len(distinct) > most:
        logs = np.log(distinct + 1)
        wanted = np.linspace(logs[0], logs[-1], most)
        distinct = np.unique(distinct[np.abs(logs[None, :] - wanted[:, None]).argmin(1)])
    return tuple(int(each) if each.is_integer() else each for each in distinct.tolist())


def _before(knot: float) -> int:
    """Return the largest whole size below a knot."""
    return -int(-knot // 1) - 1


def _unmeasured(at: Floats, seconds: Floats, wanted: Floats) -> Floats:
    """Estimate the seconds at points that were not measured.

    Args:
        at: measured points, ``[N, axes]``.
        seconds: their measured seconds, ``[N]``.
        wanted: points to estimate, ``[W, axes]``.
    """
    from scipy.interpolate import RBFInterpolator

    coefficients = non_negative(_products(at) / seconds[:, None], np.ones(len(at)))
    ratio = np.log(seconds / (_products(at) @ coefficients))
    spline = RBFInterpolator(
        np.log(at + 1), ratio, kernel="linear", degree=0, neighbors=min(len(at), MOST_NEIGHBOURS)
    )
    return np.asarray(_products(wanted) @ coefficients * np.exp(spline(np.log(wanted + 1))))


def _products(points: Floats) -> Floats:
    """Return the product of the sizes for each subset of axes, 1 for the empty one, ``[N, 2**axes]``."""
    choices = product((False, True), repeat=points.shape[1])
    return np.stack([np.where(choice, points, 1.0).prod(1) for choice in choices], 1)


def isotonic(seconds: Floats) -> Floats:
    """Return seconds that never fall, ``[S]``: adjacent ones that would are pooled and get their median.

    This is isotonic regression of the logarithms with least absolute errors. One timing that is several
    times too long leaves the others as they are; least squares would raise them all.
    """
    pools: list[list[float]] = []
    for each in np.log(np.maximum(seconds, 1e-12)).tolist():
        pools.append([each])
        while len(pools) > 1 and median(pools[-2]) > median(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    found: Floats = np.exp(np.repeat([median(pool) for pool in pools], [len(pool) for pool in pools]))
    return found


def _needed(at: Floats, rows: Floats, tolerance: float) -> list[int]:
    """Return the indices of the knots to keep: both ends, and all that interpolation would miss.

    Args:
        at: knots of the axis, ``[K]``.
        rows: seconds at each knot, ``[K, ...]``.
        tolerance: largest relative error of interpolation at a dropped knot.
    """
    kept, start = [0], 0
    while start < len(at) - 1:
        end = start + 1
        for further in range(start + 2, len(at)):
            inner = slice(start + 1, further)
            share = (at[inner] - at[start]) / (at[further] - at[start])
            lines = rows[start] + np.multiply.outer(share, rows[further] - rows[start])
            if (np.abs(lines - rows[inner]) > tolerance * rows[inner]).any():
                break
            end = further
        kept.append(end)
        start = end
    return kept
