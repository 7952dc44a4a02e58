"""The driver: replay the loads that figures need, each once, on all cores."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from pagesim.errors import PagesimError
from pagesim.experiments.paper.figure import PaperFigure, Reproduced, read_figures
from pagesim.experiments.paper.jobs import ProgressCallback, carry_out
from pagesim.experiments.paper.numbers import FITTED, Number, Values, published
from pagesim.experiments.paper.setting import PaperSetting
from pagesim.experiments.paper.values import values_of
from pagesim.experiments.sweeps.run_store import RunStore
from pagesim.experiments.sweeps.workers import Workers
from pagesim.setup.reading import parse_json, read_text

FIGURES = read_figures()
"""Figures by name, with the paper's in its order."""

BEYOND = {name for name in FIGURES if name.startswith("beyond")}
"""Figures on questions that readers of the paper may ask and that no figure of it answers."""

SETTING = "setting.json"
"""File in a folder of figures that stores the setting with which they were made."""


def chosen(names: list[str]) -> list[PaperFigure]:
    """Return figures by name, each once; all of them for ``all``.

    Raises:
        PagesimError: there is no figure of a given name.
    """
    if "all" in names:
        return list(FIGURES.values())
    for name in names:
        if name not in FIGURES:
            raise PagesimError(f"there is no figure {name!r}; there are {', '.join(FIGURES)}, and all")
    return [FIGURES[name] for name in dict.fromkeys(names)]


def reproduce(
    wanted: Sequence[PaperFigure],
    setting: PaperSetting,
    out: Path,
    *,
    cores: int | None = None,
    progress: ProgressCallback | None = None,
) -> list[Reproduced]:
    """Replay the loads that figures need and return their numbers.

    Args:
        wanted: figures to reproduce.
        setting: lengths and costs to use.
        out: folder that stores results, so that an interrupted command can be resumed.
        cores: cores to use; None for all.
        progress: called after each load, see `carry_out`.

    Raises:
        PagesimError: a trace cannot be read, or the cost does not fit a figure.
    """
    loads = {(figure.name, *key): load for figure in wanted for key, load in figure.loads(setting).items()}
    # Errors in figures without replays must show up before other figures' replays, which take hours.
    values = {figure.name: values_of(figure, setting, {}) for figure in wanted if not figure.runs}
    with Workers(cores) as workers:
        outcomes = carry_out(loads, RunStore(out / "replays"), workers, progress=progress)
    made = []
    for figure in wanted:
        found = {run.key: outcomes[figure.name, *run.key] for run in figure.runs}
        if figure.runs:
            values[figure.name] = values_of(figure, setting, found)
        made.append(Reproduced(figure, setting, found, _numbers(figure.name, setting, values[figure.name])))
    return made


def _numbers(figure: str, setting: PaperSetting, values: Values) -> list[Number]:
    """Return the numbers of a figure, each with the paper's value and ours."""
    paper = published(figure)
    numbers = []
    for (series, x), ours in values.items():
        number = paper.get((series, x), Number(figure, series, x, None, "", None))
        bar = "" if number.bar == FITTED and not setting.fitted else number.bar
        numbers.append(replace(number, ours=ours, bar=bar))
    return numbers


def setting_text(setting: PaperSetting) -> str:
    """Return the stored form of a setting: sources of lengths and costs, by name rather than path."""
    files = {name: Path(setting.trace(name)).name for name in ("sharegpt", "alpaca") if setting.real(name)}
    return json.dumps({**asdict(setting), **files, "name": setting.name}, indent=1) + "\n"


def check(folder: Path, setting: PaperSetting) -> None:
    """Refuse a folder that contains figures of another setting.

    Raises:
        PagesimError: the folder contains such figures.
    """
    kept = folder / SETTING
    if kept.is_file() and kept.read_bytes() != setting_text(setting).encode():
        raise PagesimError(
            f"{folder}: holds figures of another setting ({_name(kept)}); choose another folder for "
            f"those with {setting.name}"
        )


def _name(kept: Path) -> str:
    """Return the name of a stored setting."""
    try:
        return str(parse_json(read_text(kept))["name"])
    except (OSError, ValueError, KeyError, TypeError):
        raise PagesimError(f"{kept}: cannot be read") from None
