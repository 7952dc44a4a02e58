"""Compact tables of one GPU in one file: seconds of single operators by type, shape and size."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pagesim.costs.held_out import TermError
from pagesim.errors import PagesimError
from pagesim.hardware import GpuSpec

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Axes = tuple[Ints, ...]

NOTICE = "AIConfigurator's operator tables, © NVIDIA, Apache-2.0, changed"
"""Attribution of the measurements, repeated in every profile made from them."""

DATA = Path(__file__).resolve().parent / "data"
"""Folder of the bundled tables: one file per GPU, under its catalogue name."""

STEP = 0.002
"""Step of the logarithm in which seconds are stored; a stored value is at most 0.1 % off."""

LEAST_S = 1e-9
"""Seconds that step 0 would mean; it marks a size that was not measured."""

_RELEASE = re.compile(r"(\d+(?:\.\d+)*)")


class OperatorTable(NamedTuple):
    """Seconds of one kind of operator.

    Attributes:
        name: family and types, such as ``("gemm", "fp8")``.
        release: engine and version that were timed, such as ``vllm 0.24.0``.
        keys: values that identify each row, such as numbers of heads, ``[R, K]``.
        axes: rising sizes, one array per axis.
        seconds: measured seconds, ``[R, *axes]``; NaN where nothing was measured.
        held_out: error of predictions from neighbouring points.
    """

    name: tuple[str, ...]
    release: str
    keys: Ints
    axes: Axes
    seconds: Floats
    held_out: TermError = TermError.of([])

    def row(self, *key: int) -> Floats | None:
        """Return the seconds at one key, ``[*axes]``; None if it was not measured."""
        found = np.flatnonzero((self.keys == np.array(key, np.int64)).all(1))
        return self.seconds[found[0]] if len(found) else None


class OperatorTables:
    """All tables of one GPU, each decoded on first use.

    Args:
        gpu: the GPU's name in the catalogue, or the tables' own name of its system.
        content: bytes of an ``.npz`` file made by `packed`.

    Raises:
        PagesimError: the content is not such a file.
    """

    def __init__(self, gpu: str, content: bytes) -> None:
        self.gpu = gpu
        try:
            self._arrays = np.load(io.BytesIO(content), allow_pickle=False)
            self._titles = [tuple(str(each).split("|")) for each in self._arrays["titles"]]
            self._errors = self._arrays["held_out"]
        except (ValueError, OSError, KeyError, zipfile.BadZipFile, EOFError):
            raise PagesimError(f"operator tables of {gpu} are damaged: make them again") from None
        self._decoded: dict[int, OperatorTable] = {}

    def find(self, *name: str) -> list[OperatorTable]:
        """Return the tables whose name begins with ``name``: vLLM's first, newest release first."""
        places = [place for place, (_, *full) in enumerate(self._titles) if tuple(full[: len(name)]) == name]
        return sorted((self._table(place) for place in places), key=_newest_first)

    def all(self) -> list[OperatorTable]:
        """Return every table."""
        return [self._table(place) for place in range(len(self._titles))]

    def _table(self, place: int) -> OperatorTable:
        known = self._decoded.get(place)
        if known is None:
            release, *name = self._titles[place]
            steps = np.cumsum(self._arrays[f"{place}.steps"].astype(np.int64), axis=-1)
            seconds = np.where(steps > 0, LEAST_S * np.exp(STEP * steps), np.nan)
            axes = tuple(
                self._arrays[f"{place}.axis{axis}"].astype(np.int64) for axis in range(seconds.ndim - 1)
            )
            points, mean, worst = self._errors[place].tolist()
            keys = self._arrays[f"{place}.keys"].astype(np.int64)
            held_out = TermError(mean=round(mean, 4), worst=round(worst, 4), points=int(points))
            known = OperatorTable(tuple(name), release, keys, axes, seconds, held_out)
            self._decoded[place] = known
        return known


def packed(tables: Sequence[OperatorTable]) -> bytes:
    """Return the content of an ``.npz`` file of tables; the same tables give the same bytes."""
    arrays: dict[str, npt.NDArray[np.generic]] = {
        "titles": np.array(["|".join((each.release, *each.name)) for each in tables]),
        "held_out": np.array([_numbers(each.held_out) for each in tables], np.float32).reshape(-1, 3),
    }
    for place, table in enumerate(tables):
        known = np.isfinite(table.seconds)
        steps = np.zeros(table.seconds.shape, np.int64)
        steps[known] = np.maximum(1, np.round(np.log(table.seconds[known] / LEAST_S) / STEP))
        arrays[f"{place}.keys"] = table.keys.astype(np.int32)
        for axis, sizes in enumerate(table.axes):
            arrays[f"{place}.axis{axis}"] = sizes.astype(np.int32)
        # Differences along the last axis are small numbers, which compress well.
        arrays[f"{place}.steps"] = np.diff(steps, axis=-1, prepend=0).astype(np.int16)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
            entry = zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0))
            archive.writestr(entry, member.getvalue(), zipfile.ZIP_DEFLATED, 9)
    return buffer.getvalue()


def _numbers(error: TermError) -> tuple[float, float, float]:
    return error.points, error.mean, error.worst


@cache
def bundled_tables(gpu: str) -> OperatorTables | None:
    """Return the tables of a GPU that come with pagesim; None if there are none."""
    file = DATA / f"{gpu}.npz"
    return OperatorTables(gpu, file.read_bytes()) if file.is_file() else None


class Chip(NamedTuple):
    """A GPU and its operator timings.

    Attributes:
        gpu: the GPU with its peak rates.
        tables: its operator tables.
        release: simulated release of the engine, such as ``vllm 0.19.0``; where timed releases differ much,
            the nearest one is used.
    """

    gpu: GpuSpec
    tables: OperatorTables
    release: str = ""


def chip_of(gpu: GpuSpec, release: str = "") -> Chip | None:
    """Return the bundled measurements of a GPU; None if there are none.

    Tables of another GPU of the same generation are no substitute. An RTX 4090 by an L40S's tables is 24 %
    too slow, and an H100 PCIe by an H100's 12 %; the roofline is 1 and 8 % off
    (docs/validation/accuracy.md).

    Args:
        gpu: GPU to look up.
        release: see `Chip`.
    """
    tables = bundled_tables(gpu.name)
    return None if tables is None else Chip(gpu, tables, release)


def bundled_gpus() -> tuple[str, ...]:
    """Return the GPUs whose tables come with pagesim."""
    return tuple(sorted(file.stem for file in DATA.glob("*.npz")))


def version_of(release: str) -> tuple[int, ...]:
    """Return a release's version numbers, such as (0, 24, 0); empty if it has no version."""
    found = _RELEASE.search(release)
    return tuple(int(each) for each in found[1].split(".")) if found else ()


def _newest_first(table: OperatorTable) -> tuple[object, ...]:
    engine = table.release.partition(" ")[0]
    return engine != "vllm", tuple(-each for each in version_of(table.release)), table.name
