"""``pagesim report``: results as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pagesim.cli import show
from pagesim.cli.flags import FORCE, JSON
from pagesim.cli.printing import put_table
from pagesim.errors import PagesimError
from pagesim.setup.files import check_file
from pagesim.setup.system import System, checked

if TYPE_CHECKING:
    import pandas as pd

FOLDERS = Annotated[
    list[Path],
    typer.Argument(metavar="RESULT_DIR...", help="Folders that pagesim run or compare wrote with --out."),
]
OUT = Annotated[Path, typer.Option("--out", metavar="FILE", help="HTML file to write.")]
WINDOW = Annotated[
    str | None,
    typer.Option(
        metavar="START:END",
        help="Part of the run that the memory map shows, in seconds. Defaults to the whole run.",
    ),
]
PICTURES = Annotated[
    int | None,
    typer.Option(
        "--instants",
        help="Number of frames of the memory map; 0 omits the map and replays nothing. Defaults "
        "to 400, or fewer where most blocks change in between.",
    ),
]


TREE_AT = Annotated[
    float | None,
    typer.Option(
        "--tree-at",
        metavar="SECONDS",
        help="Print the radix tree at this instant of a run under sglang instead of writing a page.",
        min=0,
    ),
]
NODES = Annotated[
    int, typer.Option("--nodes", help="Number of nodes to print under --tree-at, the largest first.", min=1)
]


def command(
    folders: FOLDERS,
    out: OUT = Path("report.html"),
    window: WINDOW = None,
    instants: PICTURES = None,
    force: FORCE = False,
    tree_at: TREE_AT = None,
    nodes: NODES = 20,
    json: JSON = False,
) -> None:
    """Write one HTML page about one or several results.

    The page opens from disk and fetches nothing.

    Example: pagesim report out/first --out report.html
    """
    from pagesim.results.report import write_report

    if tree_at is not None:
        if len(folders) > 1:
            raise PagesimError("tree_at is of one result; give one folder")
        _tree(folders[0], tree_at, nodes, json=json)
        return
    check_file(out, "page", force=force)
    seconds = None if window is None else checked(System, {"window": window}).window_s
    if seconds is not None and seconds[0] == seconds[1]:
        raise PagesimError(f"window is {window!r}: it must have a length")
    with show.doing("reading") as progress:
        write_report(folders, out, window=seconds, instants=instants, progress=progress)
    show.say(f"{out}: {out.stat().st_size / 1e6:.1f} MB, opens in any browser")


NAMED = 3
"""Requests that are named beside a node."""


def _tree(folder: Path, at: float, nodes: int, *, json: bool) -> None:
    """Print the prefixes in a run's radix tree at an instant, the requests that use them, and since when.

    Args:
        folder: a stored run under sglang; it is replayed.
        at: the instant, in simulated seconds.
        nodes: number of nodes to print, the largest first; JSON has all.
        json: whether to print JSON.
    """
    from pagesim.results.result import load
    from pagesim.results.tree_snapshots import tree_at

    tree = tree_at(load(folder), at)
    if json:
        show.as_json({**tree.attrs, "nodes": tree.to_dict("records")})
    else:
        _show_tree(tree, nodes)


def _show_tree(tree: pd.DataFrame, most: int) -> None:

    clock, capacity = tree.attrs["clock_s"], tree.attrs["capacity"]
    when = "no request runs" if tree.attrs["iteration"] < 0 else f"iteration {tree.attrs['iteration']}"
    shares = (
        f"{100 * tree['tokens'][tree['state'] == state].sum() / capacity:.1f} % {state}"
        for state in ("protected", "evictable")
    )
    show.say(f"{when} at {clock:.2f} s, {len(tree)} nodes; of the pool {', '.join(shares)}")
    largest = tree.nlargest(most, "tokens").sort_index()
    rows = [
        (
            str(number),
            "" if node["parent"] < 0 else str(node["parent"]),
            *(f"{node[name]:,}" for name in ("tokens", "start", "end")),
            _named(node["holders"]),
            str(node["inserted_by"]),
            f"{clock - node['used_s']:.2f}",
            str(node["hits"]),
        )
        for number, node in largest.to_dict("index").items()
    ]
    put_table(
        "",
        ("node", "follows", "tokens", "from", "to", "held by", "inserted by", "used, s ago", "hits"),
        rows,
        texts=(5,),
    )


def _named(requests: list[str]) -> str:
    if not requests:
        return "no request"
    some = ", ".join(requests[:NAMED])
    return f"{some} and {len(requests) - NAMED} more" if len(requests) > NAMED else some
