"""``pagesim tree``: the radix tree of a stored run at an instant."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pagesim.cli.options import JSON

if TYPE_CHECKING:
    import pandas as pd

FOLDER = Annotated[
    Path,
    typer.Argument(metavar="RESULT_DIR", help="Folder that pagesim run or compare wrote with --out."),
]
AT = Annotated[
    float | None,
    typer.Option("--at", help="Instant to show, in seconds. Defaults to the middle of the run.", min=0),
]
NODES = Annotated[int, typer.Option("--nodes", help="Number of nodes to show, the largest first.", min=1)]

NAMED = 3
"""Requests that are named beside a node."""


def command(folder: FOLDER, at: AT = None, nodes: NODES = 20, json: JSON = False) -> None:
    """Show the radix tree of a run at an instant.

    It shows which prefixes are cached, which requests hold them, and since when.

    The run is replayed. --json prints every node; pagesim report draws the tree.

    Example: pagesim tree out/sglang --at 30
    """
    from pagesim.cli import show
    from pagesim.results.result import end_of, load
    from pagesim.results.tree_snapshots import tree_at

    result = load(folder)
    tree = tree_at(result, end_of(result) / 2 if at is None else at)
    if json:
        show.as_json({**tree.attrs, "nodes": tree.to_dict("records")})
    else:
        _show(tree, nodes)


def _show(tree: pd.DataFrame, most: int) -> None:
    from pagesim.cli import show
    from pagesim.cli.tables import put_table

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
