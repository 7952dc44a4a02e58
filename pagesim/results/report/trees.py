"""Trees: snapshots of a radix tree in the form that a page draws."""

from __future__ import annotations

from typing import Any

import numpy as np

from pagesim.results.report.pack import pack, pack_names
from pagesim.results.result import Result
from pagesim.results.tree_snapshots import NO_NODE, Column, TreeNode, TreeSnapshot, TreeSnapshots
from pagesim.sim.clock import TICKS_PER_SECOND

MOST_TREES = 60
"""Maximum number of tree snapshots on a page, spread over its instants."""

MOST_NODES = 1500
"""Maximum number of nodes of a snapshot on a page: those with the most tokens in their subtrees."""

PARENT, START, END, LOCKS, ROW, INSERTED, USED, HITS = range(len(TreeNode._fields))


def tree_instants(ticks: list[int]) -> list[int]:
    """Return the subset of the instants at which a page shows trees."""
    chosen = np.unique(np.linspace(0, len(ticks) - 1, min(len(ticks), MOST_TREES)).round().astype(int))
    return [ticks[i] for i in chosen]


def trees(snapshots: TreeSnapshots, result: Result) -> dict[str, Any]:
    """Return snapshots for the page; ``tree.js`` documents the format.

    Args:
        snapshots: snapshots from a replay of the result.
        result: result that provides the names of requests.
    """
    drawn = [_drawn(each) for each in snapshots.taken]
    nodes = np.concatenate([each.nodes for each, _ in drawn])
    requests = np.concatenate([each.requests for each, _ in drawn])
    rows, request = np.unique(np.concatenate([nodes[:, ROW], requests[:, 0]]), return_inverse=True)
    per_ms = TICKS_PER_SECOND // 1000
    return {
        "capacity": snapshots.taken[0].capacity,
        "instants": pack(np.array(snapshots.instants) / TICKS_PER_SECOND),
        "shown": pack(snapshots.shown),
        "clock": pack(np.array([each.clock for each in snapshots.taken]) / TICKS_PER_SECOND),
        "iteration": pack([each.iteration for each in snapshots.taken]),
        "left_out": pack(np.array([left for _, left in drawn]).ravel()),
        "names": pack_names(result.request_columns["request_id"][rows].tolist()),
        "sizes": pack([len(each.nodes) for each, _ in drawn]),
        "parent": pack(nodes[:, PARENT]),
        "start": pack(nodes[:, START]),
        "end": pack(nodes[:, END]),
        "locks": pack(nodes[:, LOCKS]),
        "by": pack(request[: len(nodes)]),
        "inserted_ms": pack(nodes[:, INSERTED] // per_ms),
        "used_ms": pack(nodes[:, USED] // per_ms),
        "hits": pack(nodes[:, HITS]),
        "held": {
            "sizes": pack([len(each.requests) for each, _ in drawn]),
            "by": pack(request[len(nodes) :]),
            "node": pack(requests[:, 1]),
        },
    }


def _drawn(snapshot: TreeSnapshot) -> tuple[TreeSnapshot, tuple[int, int]]:
    """Return a snapshot without nodes too small to see, and the numbers of nodes and tokens left out."""
    nodes = snapshot.nodes
    if len(nodes) <= MOST_NODES:
        return snapshot, (0, 0)
    tokens = nodes[:, END] - nodes[:, START]
    behind = tokens.copy()
    for node in range(len(nodes) - 1, -1, -1):
        if nodes[node, PARENT] != NO_NODE:
            behind[nodes[node, PARENT]] += behind[node]
    # A node's subtree has at least the tokens of any descendant's, so the kept nodes form a tree.
    kept = np.sort(np.argsort(-behind, kind="stable")[:MOST_NODES])
    number = np.full(len(nodes) + 1, NO_NODE)  # the last entry is for the root
    number[kept] = np.arange(len(kept))
    table: Column = nodes[kept]
    table[:, PARENT] = number[table[:, PARENT]]
    requests = snapshot.requests.copy()
    requests[:, 1] = [_nearest(node, nodes[:, PARENT], number) for node in requests[:, 1]]
    left = len(nodes) - len(kept), int(tokens.sum() - tokens[kept].sum())
    return TreeSnapshot(snapshot.clock, snapshot.iteration, table, requests, snapshot.capacity), left


def _nearest(node: int, parent: Column, number: Column) -> int:
    """Return the number of a node's closest kept ancestor, or of the node itself if it is kept."""
    while node != NO_NODE and number[node] == NO_NODE:
        node = parent[node]
    return int(number[node])
