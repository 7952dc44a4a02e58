"""``pagesim report --tree-at``: the radix tree of a stored run at an instant."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pagesim.cli import show
from pagesim.cli.printing import put_table

if TYPE_CHECKING:
    import pandas as pd

NAMED = 3
"""Requests that are named beside a node."""


def show_tree(folder: Path, at: float, nodes: int, *, json: bool) -> None:
    """Print which prefixes a run's radix tree holds at an instant, which requests hold them, and since when.

    Args:
        folder: a stored run under sglang, which is replayed.
        at: the instant, in seconds.
        nodes: that are printed, the largest first; JSON has all.
        json: whether JSON is printed.
    """
    from pagesim.results.result import load
    from pagesim.results.tree_snapshots import tree_at

    tree = tree_at(load(folder), at)
    if json:
        show.as_json({**tree.attrs, "nodes": tree.to_dict("records")})
    else:
        _show(tree, nodes)


def _show(tree: pd.DataFrame, most: int) -> None:

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
