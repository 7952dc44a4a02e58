"""Page: results side by side, with a memory map from a replay."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pagesim.accounting.fragmentation import categories
from pagesim.accounting.metrics import entries_in
from pagesim.errors import PagesimError
from pagesim.results.replay import NotReplayed, Say, requests_over
from pagesim.results.report import run_tables
from pagesim.results.report.assemble import options_of, write_page
from pagesim.results.report.frames import frames
from pagesim.results.report.pack import pack
from pagesim.results.report.snapshots import Snapshots, snapshots_of
from pagesim.results.report.sources import Source, find, is_cluster
from pagesim.results.report.trees import tree_instants, trees
from pagesim.results.result import Result, end_of
from pagesim.results.style import PARTS, drawn, key_of
from pagesim.results.tree_snapshots import TreeSnapshots, has_tree, trees_of
from pagesim.sim.clock import LONGEST_S, to_tick_column

INSTANTS, FEW_INSTANTS = 400, 60
"""Default number of frames of the memory map, and its minimum where frames hold many changes."""

MOST_CHANGES = 150_000
"""Limit on block changes between frames, in total, for the default; each adds about 3 bytes to the page."""

MOST_INSTANTS = 5000

SECTIONS = (
    "headline",
    "map",
    "tree",
    "ledger",
    "load",
    "latency",
    "preemptions",
    "requests",
    "scenario",
)
"""Ids of the page's sections, from top to bottom."""

SCRIPTS = (
    "data.js",
    "parts.js",
    "headline.js",
    "frames.js",
    "pane.js",
    "map.js",
    "tree.js",
    "charts.js",
    "tiers.js",
    "waterfall.js",
    "theme.js",
    "main.js",
)
"""Scripts, concatenated within one function so that they share a private scope."""


def write_report(
    folders: Sequence[Path],
    out: Path,
    *,
    window: tuple[float, float] | None = None,
    instants: int | None = None,
    progress: Say = lambda _: None,
) -> None:
    """Write a page that shows one or several results side by side.

    Args:
        folders: results of ``pagesim run``, ``pagesim run --policies`` or `Result.save`; or only results of
            ``pagesim run --replicas``, whose page has no memory map.
        out: HTML file, written completely or not at all.
        window: first and last second of the memory map; None for the whole run.
        instants: frames of the memory map, 2 to 5000; 0 omits it without a replay. None for 400, or fewer if
            many blocks change between frames, to keep the page small.
        progress: callback for progress messages.

    Raises:
        PagesimError: a folder holds no result, an argument is out of bounds, or the file cannot be written.
    """
    if instants is not None and instants != 0 and not 2 <= instants <= MOST_INSTANTS:
        raise PagesimError(f"instants is {instants}; it must be 0 or from 2 to {MOST_INSTANTS}")
    if out.is_dir():
        raise PagesimError(f"{out}: cannot be written (it is a folder); name a file")
    clusters = [folder for folder in folders if is_cluster(folder)]
    if clusters:
        if len(clusters) < len(folders):
            raise PagesimError(
                f"{clusters[0]}: is the result of a cluster, and others are not; make a page of each kind"
            )
        from pagesim.results.report.clusters import write_cluster_report

        write_cluster_report(folders, out)
        return
    sources = find(folders)
    if instants is None:
        instants = _instants_of([source.result for source in sources])
    end = max(end_of(source.result) for source in sources)
    start, stop = (0.0, end) if window is None else window
    seconds = np.linspace(start, min(stop, LONGEST_S), instants)
    ticks = to_tick_column(seconds).tolist()
    systems = []
    for source in sources:
        shown: Snapshots | TreeSnapshots | str = "it was not asked for"
        if instants:
            shown = _looked_at(source, ticks, progress)
        systems.append(_system(source, shown))
    progress("writing the page")
    entries = entries_in([source.result.summary for source in sources])
    data = {
        "end": end,
        "window": window,
        "instants": pack(seconds),
        "entries": drawn(PARTS, entries),
        "categories": rows_of(entries),
        "systems": systems,
    }
    write_page(data, out, SECTIONS, SCRIPTS, title="Where the KV cache went", first="map")


def rows_of(entries: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of a memory table in the form that pages draw, see `categories`."""
    return [
        {"key": key_of(row), "label": row.label, "keys": row.entries, "part": row.is_part}
        for row in categories(entries)
    ]


def _looked_at(source: Source, ticks: list[int], progress: Say) -> Snapshots | TreeSnapshots | str:
    """Replay a run and return snapshots of its memory or tree, or the reason why there are none."""
    result, over = source.result, requests_over(source.name, source.result, progress)
    try:
        if has_tree(result):
            return trees_of(result, tree_instants(ticks), over)
        return snapshots_of(result, ticks, over)
    except NotReplayed as reason:
        return str(reason)


def _system(source: Source, shown: Snapshots | TreeSnapshots | str) -> dict[str, Any]:
    result = source.result
    snapshots = shown if isinstance(shown, Snapshots) else None
    no_frames = shown if isinstance(shown, str) else "its pages are counted and have no numbers"
    return {
        "name": source.name,
        "scenario": options_of(result.scenario, result.summary),
        "summary": {name: value for name, value in result.summary.items() if name not in ("sim", "live")},
        "over_time": run_tables.over_time(result),
        "tiers": run_tables.tiers(result),
        "distributions": run_tables.distributions(result),
        "preemptions": run_tables.preemptions(result, snapshots),
        "waterfall": run_tables.waterfall(result, snapshots),
        "frames": None if snapshots is None else frames(snapshots, result),
        "no_frames": no_frames if snapshots is None else None,
        "trees": trees(shown, result) if isinstance(shown, TreeSnapshots) else None,
    }


def _instants_of(results: Sequence[Result]) -> int:
    """Return the default number of frames of a page."""
    blocks = changes = 0
    for result in results:
        memory = result.summary["memory"]
        blocks += memory["num_blocks"]
        columns = result.request_columns
        # Each block is allocated and released once.
        changes += (
            2 * int((columns["prompt_tokens"] + columns["output_tokens"]).sum()) // memory["block_size"]
        )
    if min(blocks * INSTANTS, changes) <= MOST_CHANGES:
        return INSTANTS
    return min(INSTANTS, max(FEW_INSTANTS, MOST_CHANGES // blocks))
