"""Reproductions that were stored before, to stand beside another as a column."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pagesim.errors import PagesimError, reason
from pagesim.experiments.paper.engine import ENGINES, in_words
from pagesim.experiments.paper.numbers import Number, shown
from pagesim.experiments.paper.setting import Setting
from pagesim.setup.reading import parse_json, read_text

SETTING = "setting.json"
ENGINE = "engine"

ONE_NUMBER = "one fitted time an iteration and none a sequence"
"""The engine of a folder that names none: these are of versions that knew no other."""

Key = tuple[str, str, str]


@dataclass(frozen=True)
class Column:
    """Values by figure, series and x, as texts of a CSV file; the engine with which they were made."""

    name: str
    ours: dict[Key, str]
    engine: str

    def of(self, number: Number) -> str:
        """Return the value beside a number; nothing where there is none."""
        return self.ours.get((number.figure, number.series, number.x), "")

    def earlier(self, number: Number) -> Number:
        """Return a number with the value that it has here in place of its own."""
        text = self.of(number)
        return replace(number, ours=float(text) if text else None)


def column(setting: Setting, numbers: list[Number]) -> Column:
    """Return the column of a reproduction that was just made."""
    ours = {(n.figure, n.series, n.x): shown(n.ours) for n in numbers}
    return Column(setting.name, ours, _engine(setting))


def setting_text(setting: Setting) -> str:
    """Return what a folder keeps of the setting of its figures: whose lengths and costs, and no path."""
    said = {
        **asdict(setting),
        "sharegpt": _short(setting.sharegpt, setting.real("sharegpt")),
        "alpaca": _short(setting.alpaca, setting.real("alpaca")),
        "name": setting.name,
        ENGINE: _engine(setting),
    }
    return json.dumps(said, indent=1) + "\n"


def _engine(setting: Setting) -> str:
    return in_words(ENGINES[setting.cost]) if setting.fitted else "that of the cost"


def _short(text: str, real: bool) -> str:
    return Path(text).name if real else text


def check(folder: Path, setting: Setting) -> None:
    """Refuse a folder in which figures of another setting are.

    Raises:
        PagesimError: that is so.
    """
    kept = folder / SETTING
    if kept.is_file() and kept.read_bytes() != setting_text(setting).encode():
        raise PagesimError(
            f"{folder}: holds figures of another setting ({_said(kept)[0]}); choose another folder for "
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
    ours: dict[Key, str] = {}
    for file in sorted(folder.glob("*.csv")):
        try:
            with file.open(encoding="utf-8", newline="") as lines:
                for row in csv.DictReader(lines, strict=True):
                    if None in row or None in row.values():
                        raise ValueError("a row has more or fewer fields than the header")
                    ours[row["figure"], row["series"], row["x"]] = row["ours"]
        except (OSError, ValueError, KeyError, csv.Error) as error:
            raise PagesimError(f"{file}: is no table of figures ({reason(error)})") from None
    name, engine = _said(kept)
    return Column(name, ours, engine)


def _said(kept: Path) -> tuple[str, str]:
    """Return the name of a setting, and its engine."""
    try:
        said = parse_json(read_text(kept))
        return str(said["name"]), str(said.get(ENGINE, ONE_NUMBER))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise PagesimError(f"{kept}: cannot be read") from None
