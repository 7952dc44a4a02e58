"""``pagesim reproduce``: the PagedAttention paper's figures, with its numbers next to ours."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pagesim.cli import show
from pagesim.cli.printing import put_table
from pagesim.errors import PagesimError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pagesim.experiments.paper import Reproduced

NAMES = Annotated[
    list[str],
    typer.Argument(metavar="FIGURE…", help="fig2, table1, fig11, …, fig19b, beyond-…, or all."),
]
FOLDER = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for figures, tables and replays.")]
SHAREGPT = Annotated[
    str,
    typer.Option("--trace-sharegpt", help="File with the paper's ShareGPT lengths, or the bundled model."),
]
ALPACA = Annotated[
    str, typer.Option("--trace-alpaca", help="File with Alpaca's lengths, or the bundled model.")
]
COST = Annotated[
    str,
    typer.Option(
        help="Costs: imported, analytic (both with the fitted engine), or a value of pagesim run's --cost."
    ),
]
QUICK = Annotated[bool, typer.Option("--quick", help="Replay the first twentieth of each trace.")]
JOBS = Annotated[int, typer.Option("--jobs", help="Number of parallel replays; -1 for one per core.")]
DOCUMENT = Annotated[
    Path | None,
    typer.Option(help="File to write the document to. Defaults to reproduction.md in the folder."),
]


def command(
    *,
    figures: NAMES,
    out: FOLDER,
    trace_sharegpt: SHAREGPT = "sharegpt",
    trace_alpaca: ALPACA = "alpaca",
    cost: COST = "imported",
    quick: QUICK = False,
    jobs: JOBS = -1,
    document: DOCUMENT = None,
) -> None:
    """Reproduce figures of the PagedAttention paper.

    The paper's numbers stand beside ours, in figures and in a document.

    Example: pagesim reproduce fig2 fig13 --quick --out out/paper
    """
    from pagesim.experiments.paper import PaperSetting, chosen, csv, reproduce
    from pagesim.experiments.paper.document import document as text_of
    from pagesim.experiments.paper.reproduce import SETTING, check, setting_text
    from pagesim.experiments.paper.setting import absolute

    if jobs == 0 or jobs < -1:
        raise PagesimError(f"jobs is {jobs}; it must be at least 1, or -1 for one a core")
    wanted = chosen(figures)
    setting = PaperSetting(absolute(trace_sharegpt), absolute(trace_alpaca), cost, quick)
    show.make_folder(out)
    check(out, setting)
    with show.bar() as progress:
        made = reproduce(wanted, setting, out, cores=None if jobs == -1 else jobs, progress=progress)
    show.write_text(out / SETTING, setting_text(setting))
    pictures = {}
    target = document or out / "reproduction.md"
    for each in made:
        name = each.figure.name
        show.write_text(out / f"{name}.csv", csv(each.numbers))
        drawn = each.draw()
        if drawn is not None:
            show.put_figure(drawn, out, name)
            pictures[name] = Path(os.path.relpath(out / f"{name}.png", target.parent)).as_posix()
    text = text_of(made, setting, pictures=pictures)
    show.write_text(target, text)
    _show(made)
    show.stored(out)


def _show(made: Sequence[Reproduced]) -> None:
    from pagesim.experiments.paper.numbers import CERTAINTIES, shown, shown_range

    for each in made:
        put_table(
            f"{each.figure.name}: {each.figure.title}",
            ("", "paper", "", "ours", "error", "verdict"),
            [
                (
                    f"{n.series}, {n.x}",
                    shown_range(n.paper),
                    n.certainty,
                    shown(n.ours),
                    shown(n.error),
                    n.verdict,
                )
                for n in each.numbers
            ],
            texts=(0, 2, 5),
        )
        if each.figure.missing:
            show.say(f"not drawn: {each.figure.missing}")
    letters = {number.certainty for each in made for number in each.numbers}
    sure = [f"{letter}: {text}" for letter, text in CERTAINTIES.items() if letter and letter in letters]
    if sure:
        show.say(f"The paper's numbers, {'; '.join(sure)}")
