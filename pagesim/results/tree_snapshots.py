"""Tree snapshots: the radix tree at given instants, with each node's holders and time of last use."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from pagesim.accounting.request_log import RequestLog
from pagesim.errors import PagesimError
from pagesim.kvcache.radix import Node, RadixManager
from pagesim.results.replay import Looks, NotReplayed, replayed, server_of
from pagesim.results.result import Result, end_of
from pagesim.scheduling.arrivals import NEVER
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.observer import FastForward, Observer
from pagesim.setup.engine_config import EngineConfig
from pagesim.setup.prepare import PreparedSystem
from pagesim.sim.clock import TICKS_PER_SECOND, to_ticks

Column = npt.NDArray[np.int64]

NO_NODE = -1
"""Parent of the root's children."""


class TreeNode(NamedTuple):
    """A node of the tree at an instant.

    Attributes:
        parent: index of its parent; `NO_NODE` if the node starts with the first token.
        start, end: token range of the node, counted from the beginning of the sequence.
        locks: sequences that hold the node or one of its descendants.
        row: trace row of the request that inserted the node, or the node from which it was split.
        inserted, used: ticks at which the node was inserted and last touched.
        hits: sequences inserted through the node, each counted once.
    """

    parent: int
    start: int
    end: int
    locks: int
    row: int
    inserted: int
    used: int
    hits: int


@dataclass(frozen=True, slots=True)
class TreeSnapshot:
    """The tree in one iteration, after scheduling.

    Attributes:
        clock: ticks at which the iteration was scheduled, or since when the engine has been idle.
        iteration: number of the iteration; -1 while no request runs.
        nodes: rows of `TreeNode`, ``[N, 8]``, parents before their children.
        requests: trace row of each running request and the last node that it holds, ``[H, 2]``.
        capacity: tokens of the pool.
    """

    clock: int
    iteration: int
    nodes: Column
    requests: Column
    capacity: int


class TreeSnapshots(Looks[TreeSnapshot]):
    """Takes snapshots of an engine's radix tree."""

    def __init__(self, instants: Sequence[int]) -> None:
        super().__init__(instants)
        # The tree counts touches; these give the times of the counts.
        self._touches, self._clocks = array("d"), array("q")
        self._row_of: dict[int, int] = {}  # by the identity of the request's content

    def begun(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._memory = cast(RadixManager, scheduler.memory)

    def planned(self, batch: Batch, now: int, start: int, ticks: int) -> None:
        for request in batch.prompts:
            self._row_of[id(request.content)] = request.row
        self._clock(now)
        super().planned(batch, now, start, ticks)

    def fast_forwarded(self, run: FastForward) -> None:
        self._clock(run.decided)  # any touches happened before the fast-forward
        super().fast_forwarded(run)

    def advanced(self, run: FastForward) -> None:
        self._clock(run.start)  # caches prompts that ran while the first step was decided

    def idle(self, now: int, until: int) -> None:
        self._clock(now)
        super().idle(now, until)

    def _clock(self, now: int) -> None:
        self._touches.append(self._memory.tree.touches)
        self._clocks.append(now)

    def look(self, number: int, now: int, batch: Batch | None) -> TreeSnapshot:
        memory = self._memory
        index: dict[Node | None, int] = {memory.tree.root: NO_NODE}
        nodes = []
        for node in memory.tree:
            row = self._row_of[id(node.content)]
            nodes.append(
                (
                    *(index[node.parent], node.start, node.end, node.lock_ref, row),
                    *(node.created, node.last_access, node.hit_count),
                )
            )
            index[node] = len(index) - 1
        table = np.array(nodes, np.float64).reshape(-1, len(TreeNode._fields))
        for column in (TreeNode._fields.index("inserted"), TreeNode._fields.index("used")):
            # A node's counter is a fraction below that of the child with which it was touched.
            table[:, column] = np.array(self._clocks)[
                np.searchsorted(self._touches, np.ceil(table[:, column]))
            ]
        requests = [
            (request.row, index[request.block_state.node])
            for request in self._scheduler.running.values()
            if request.block_state.node is not memory.tree.root
        ]
        capacity = memory.num_blocks * memory.block_size
        held = np.array(requests, np.int64).reshape(-1, 2)
        return TreeSnapshot(now, number, table.astype(np.int64), held, capacity)


def has_tree(result: Result) -> bool:
    """Return whether a run's policy caches prefixes in a radix tree."""
    return EngineConfig(result.scenario).caches_in_tree


def trees_of(result: Result, instants: Sequence[int], *observers: Observer) -> TreeSnapshots:
    """Replay a stored run and return its radix tree at given instants.

    Args:
        result: result as returned by `pagesim.load`.
        instants: ticks, ascending.
        observers: further observers of the replay.

    Raises:
        NotReplayed: the run cannot be replayed, its outcome differs from the stored one, or it has no tree.
    """

    def replay(setting: PreparedSystem, log: RequestLog) -> TreeSnapshots:
        if not setting.config.caches_in_tree:
            raise NotReplayed(f"policy {result.scenario.policy} caches no prefixes in a radix tree")
        trees = TreeSnapshots(instants)
        server = server_of(setting, log, trees, *observers)
        server.replay()
        trees.idle(server.engine.over_at, NEVER)
        return trees

    return replayed(result, replay)


def tree_at(result: Result, at_s: float) -> pd.DataFrame:
    """Return a run's radix tree at an instant, one row per node, parents before their children.

    The whole run is replayed. Columns: ``parent`` (row of the parent, -1 for none), ``start`` and ``end``
    (tokens from the beginning of the sequence), ``tokens``, ``state`` (``protected`` while a running request
    holds the node, else ``evictable``), ``holders`` (ids of these requests), ``inserted_by`` (id of a
    request), ``inserted_s`` and ``used_s`` (when it was inserted and last touched), ``hits`` (sequences
    inserted through it). ``attrs`` has ``clock_s`` (time of the snapshot), ``iteration`` (-1 while no request
    runs) and ``capacity`` (tokens of the pool).

    Args:
        result: result of a policy with a radix tree, whose scenario names its trace.
        at_s: seconds; the tree is that of the first iteration at or after this instant.

    Raises:
        PagesimError: there is no such run or instant.
    """
    end = end_of(result)
    if not 0 <= at_s <= end:
        raise PagesimError(f"at is {at_s:g} s; the run lasts from 0 to {end:.2f} s")
    try:
        snapshots = trees_of(result, [to_ticks(at_s)])
    except NotReplayed as reason:
        raise PagesimError(f"the tree cannot be shown: {reason}") from None
    snapshot = snapshots.taken[snapshots.shown[0]]
    ids = result.request_columns["request_id"].astype(str)
    table = pd.DataFrame(snapshot.nodes, columns=list(TreeNode._fields))
    requests: list[list[str]] = [[] for _ in range(len(table))]
    parent = table["parent"].tolist()
    for row, node in snapshot.requests.tolist():
        while node != NO_NODE:
            requests[node].append(str(ids[row]))
            node = parent[node]
    shown = pd.DataFrame(
        {
            "parent": table["parent"],
            "start": table["start"],
            "end": table["end"],
            "tokens": table["end"] - table["start"],
            "state": np.where(table["locks"] > 0, "protected", "evictable"),
            "holders": requests,
            "inserted_by": ids[table["row"].to_numpy()],
            "inserted_s": table["inserted"] / TICKS_PER_SECOND,
            "used_s": table["used"] / TICKS_PER_SECOND,
            "hits": table["hits"],
        }
    )
    shown.attrs |= {
        "clock_s": snapshot.clock / TICKS_PER_SECOND,
        "iteration": snapshot.iteration,
        "capacity": snapshot.capacity,
    }
    return shown
