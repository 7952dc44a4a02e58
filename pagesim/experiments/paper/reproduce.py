"""The driver: replay what figures need, each load once, over all cores."""

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
"""By name, the paper's in its order."""

BEYOND = {name for name in FIGURES if name.startswith("beyond")}
"""Questions that the paper's readers ask and no figure answers."""

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


def reproduce(
    wanted: Sequence[PaperFigure],
    setting: PaperSetting,
    out: Path,
    *,
    cores: int | None = None,
    progress: ProgressCallback | None = None,
) -> list[Reproduced]:
    """Replay what figures need and return their numbers.

    Args:
        wanted: which.
        setting: with what.
        out: folder that keeps what loads gave, so that the same command goes on where it was stopped.
        cores: at once; None for all.
        progress: called after each load, see `carry_out`.

    Raises:
        PagesimError: a trace cannot be read, or the cost does not fit a figure.
    """
    loads = {(figure.name, *key): load for figure in wanted for key, load in figure.loads(setting).items()}
    # What is refused of a figure without replays is refused before hours of those of others.
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
    """Return the numbers of a figure, the paper's beside ours."""
    paper = published(figure)
    numbers = []
    for (series, x), ours in values.items():
        number = paper.get((series, x), Number(figure, series, x, None, "", None))
        bar = "" if number.bar == FITTED and not setting.fitted else number.bar
        numbers.append(replace(number, ours=ours, bar=bar))
    return numbers


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


def _name(kept: Path) -> str:
    """Return the name of a setting that is kept."""
    try:
        return str(parse_json(read_text(kept))["name"])
    except (OSError, ValueError, KeyError, TypeError):
        raise PagesimError(f"{kept}: cannot be read") from None
