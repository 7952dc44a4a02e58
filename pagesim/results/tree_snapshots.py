"""Tree snapshots: the radix tree at some instants, node by node: who holds it, and when it was used."""

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
"""The parent of a node that follows the root."""


class TreeNode(NamedTuple):
    """A node of the tree at an instant.

    Attributes:
        parent: its parent's index; `NO_NODE` where it begins with the first token.
        start, end: the stretch, in tokens from the beginning of the sequence.
        locks: sequences that hold it, or a node behind it.
        row: the trace's row of the request that inserted it, or the node that it was split from.
        inserted, used: ticks at which it was inserted, and touched last.
        hits: sequences that were inserted through it, each counted once.
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
        clock: ticks at which the iteration was scheduled; of an idle engine, since when it has been idle.
        iteration: its number; -1 while no request runs.
        nodes: a parent before its children, ``[N, 8]``, as `TreeNode` has them.
        requests: rows of requests, and the node up to which each holds the tree, ``[H, 2]``.
        capacity: tokens of the pool.
    """

    clock: int
    iteration: int
    nodes: Column
    requests: Column
    capacity: int


class TreeSnapshots(Looks[TreeSnapshot]):
    """Looks at an engine's radix tree."""

    def __init__(self, instants: Sequence[int]) -> None:
        super().__init__(instants)
        # The tree counts touches; these say when each of them was.
        self._touches, self._clocks = array("d"), array("q")
        self._row_of: dict[int, int] = {}  # by the identity of its content

    def begun(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._memory = cast(RadixManager, scheduler.memory)

    def planned(self, batch: Batch, now: int, start: int, ticks: int) -> None:
        for request in batch.prompts:
            self._row_of[id(request.content)] = request.row
        self._clock(now)
        super().planned(batch, now, start, ticks)

    def fast_forwarded(self, run: FastForward) -> None:
        self._clock(run.decided)  # what was touched was so before
        super().fast_forwarded(run)

    def advanced(self, run: FastForward) -> None:
        self._clock(run.start)  # when prompts were cached that ran as the first step was decided

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
            # A node is a hair older than the one behind it, with which it was touched.
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
    """Whether a run's policy caches prefixes in a radix tree."""
    return EngineConfig(result.scenario).caches_in_tree


def trees_of(result: Result, instants: Sequence[int], *observers: Observer) -> TreeSnapshots:
    """Replay a stored run; return its radix tree at some instants.

    Args:
        result: as `pagesim.load` returns it.
        instants: ticks, rising.
        observers: further ones of the replay.

    Raises:
        NotReplayed: the run cannot be replayed, what comes of it is not what was stored, or it has no tree.
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
    """Return the radix tree of a run at an instant, a row a node, a parent before its children.

    The run is replayed up to its end. Columns: ``parent`` (the row of the node before it, -1 for none),
    ``start`` and ``end`` (tokens from the beginning of the sequence), ``tokens``, ``state`` (``protected``
    while a running request holds it, else ``evictable``), ``requests`` (the ids of these requests),
    ``inserted_by`` (a request's id), ``inserted_s`` and ``used_s`` (when it was inserted, and touched last),
    ``hits`` (requests that were inserted through it). ``attrs`` has ``clock_s``, when the tree was so, the
    ``iteration`` (-1 while none runs), and the pool's ``capacity`` in tokens.

    Args:
        result: of a policy with a radix tree, whose scenario names its trace.
        at_s: seconds; the tree is that of the first iteration at or after them.

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
