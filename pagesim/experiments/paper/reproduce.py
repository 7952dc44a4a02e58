"""The driver: replay what figures need, each load once, over all cores; and what was stored before."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pagesim.errors import PagesimError, reason
from pagesim.experiments.paper import block_sizes, figures
from pagesim.experiments.paper.beyond import CHUNKS, FRAGMENTATION, SWAP_MAP
from pagesim.experiments.paper.figure import Found, PaperFigure
from pagesim.experiments.paper.jobs import ProgressCallback, carry_out
from pagesim.experiments.paper.numbers import FITTED, Number, published
from pagesim.experiments.paper.setting import PaperSetting
from pagesim.experiments.sweeps.run_store import RunStore
from pagesim.experiments.sweeps.workers import Workers
from pagesim.setup.reading import parse_json, read_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BEYOND = {each.name: each for each in (CHUNKS, SWAP_MAP, FRAGMENTATION)}
"""Questions that the paper's readers ask and no figure answers."""

FIGURES: dict[str, PaperFigure] = {
    **{each.name: each for each in (*figures.FIGURES, *block_sizes.FIGURES)},
    **BEYOND,
}
"""By name, the paper's in its order."""

SETTING = "setting.json"
"""In a folder of figures, with which setting they were made."""


def chosen(names: list[str]) -> list[PaperFigure]:
    """Return figures by name, each once; all of them for ``all``.

    Raises:
        PagesimError: there is none of some name.
    """
    if "all" in names:
        return list(FIGURES.values())
    for name in names:
        if name not in FIGURES:
            raise PagesimError(f"there is no figure {name!r}; there are {', '.join(FIGURES)}, and all")
    return [FIGURES[name] for name in dict.fromkeys(names)]


@dataclass(frozen=True)
class Reproduced:
    """A figure with its numbers.

    Attributes:
        figure: of the paper.
        setting: with which it was made.
        found: what its loads gave.
        numbers: the paper's beside ours.
    """

    figure: PaperFigure
    setting: PaperSetting
    found: Found
    numbers: list[Number]

    def draw(self) -> Figure | None:
        """Return the drawn figure; None where it is not drawn."""
        draw = self.figure.draw
        return None if draw is None else draw(self.setting, self.found, self.numbers)


def reproduce(
    figures: Sequence[PaperFigure],
    setting: PaperSetting,
    out: Path,
    *,
    cores: int | None = None,
    progress: ProgressCallback | None = None,
) -> list[Reproduced]:
    """Replay what figures need and return their numbers.

    Args:
        figures: which.
        setting: with what.
        out: folder that keeps what loads gave, so that the same command goes on where it was stopped.
        cores: at once; None for all.
        progress: called after each load, see `carry_out`.

    Raises:
        PagesimError: a trace cannot be read, or the cost does not fit a figure.
    """
    loads = {(figure.name, *key): load for figure in figures for key, load in figure.loads(setting).items()}
    with Workers(cores) as workers:
        outcomes = carry_out(loads, RunStore(out / "replays"), workers, progress=progress)
    made = []
    for figure in figures:
        found = {(series, x): each for (name, series, x), each in outcomes.items() if name == figure.name}
        made.append(Reproduced(figure, setting, found, _numbers(figure, setting, found)))
    return made


def _numbers(figure: PaperFigure, setting: PaperSetting, found: Found) -> list[Number]:
    measured = {key: ours for load, each in found.items() for key, ours in figure.measure(load, each).items()}
    paper = published(figure.name)
    numbers = []
    for (series, x), ours in figure.derive(setting, measured).items():
        number = paper.get((series, x), Number(figure.name, series, x, None, "", None))
        bar = "" if number.bar == FITTED and not setting.fitted else number.bar
        numbers.append(replace(number, ours=ours, bar=bar))
    return numbers


@dataclass(frozen=True)
class Column:
    """A reproduction that was stored before: its values by figure, series and x, as texts of a CSV file."""

    name: str
    ours: dict[tuple[str, str, str], str]

    def of(self, number: Number) -> str:
        """Return the value beside a number; nothing where there is none."""
        return self.ours.get((number.figure, number.series, number.x), "")


def setting_text(setting: PaperSetting) -> str:
    """Return what a folder keeps of the setting of its figures: whose lengths and costs, and no path."""
    files = {name: Path(setting.trace(name)).name for name in ("sharegpt", "alpaca") if setting.real(name)}
    return json.dumps({**asdict(setting), **files, "name": setting.name}, indent=1) + "\n"


def check(folder: Path, setting: PaperSetting) -> None:
    """Refuse a folder in which figures of another setting are.

    Raises:
        PagesimError: that is so.
    """
    kept = folder / SETTING
    if kept.is_file() and kept.read_bytes() != setting_text(setting).encode():
        raise PagesimError(
            f"{folder}: holds figures of another setting ({_name(kept)}); choose another folder for "
            f"those with {setting.name}"
        )


def stored(folder: Path) -> Column:
    """Return the column of a folder that the command wrote.

    Raises:
        PagesimError: it is none, or cannot be read.
    """
    kept = folder / SETTING
    if not kept.is_file():
        raise PagesimError(f"{folder}: holds no reproduction ({SETTING} is absent)")
    ours: dict[tuple[str, str, str], str] = {}
    for file in sorted(folder.glob("*.csv")):
        try:
            with file.open(encoding="utf-8", newline="") as lines:
                for row in csv.DictReader(lines, strict=True):
                    if None in row or None in row.values():
                        raise ValueError("a row has more or fewer fields than the header")
                    ours[row["figure"], row["series"], row["x"]] = row["ours"]
        except (OSError, ValueError, KeyError, csv.Error) as error:
            raise PagesimError(f"{file}: is no table of figures ({reason(error)})") from None
    return Column(_name(kept), ours)


def _name(kept: Path) -> str:
    """Return the name of a setting that is kept."""
    try:
        return str(parse_json(read_text(kept))["name"])
    except (OSError, ValueError, KeyError, TypeError):
        raise PagesimError(f"{kept}: cannot be read") from None
