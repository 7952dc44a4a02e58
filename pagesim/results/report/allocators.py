"""Allocators on a page: one workload under several allocators, played side by side, slot by slot."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from pagesim.accounting.fragmentation import fragmentation_of
from pagesim.accounting.metrics import entries_in
from pagesim.results.replay import Say, requests_over
from pagesim.results.report.assemble import options_of, write_page
from pagesim.results.report.frames import frames
from pagesim.results.report.pack import pack
from pagesim.results.report.page import rows_of
from pagesim.results.report.snapshots import snapshots_of
from pagesim.results.result import load
from pagesim.results.style import drawn_categories
from pagesim.sim.clock import to_tick_column

INSTANTS = 300

SECTIONS = ("map", "fragmentation", "headline", "scenario")

SCRIPTS = (
    "data.js",
    "parts.js",
    "headline.js",
    "frames.js",
    "pane.js",
    "map.js",
    "theme.js",
    "allocators.js",
)


def write_allocators_page(
    folders: Mapping[str, Path],
    out: Path,
    *,
    window: tuple[float, float],
    instants: int = INSTANTS,
    progress: Say = lambda _: None,
) -> None:
    """Write a page that plays the memory of several results over the same window, with their fragmentation.

    A slot is used, reserved, lost to internal or external fragmentation, cached or free.

    Args:
        folders: results of ``pagesim run`` whose blocks have numbers, by their names on the page, from left
            to right.
        out: HTML file, written completely or not at all.
        window: first and last second to play.
        instants: frames of the memory map, at least 2, spread evenly over the window.
        progress: callback for progress messages.

    Raises:
        PagesimError: a folder holds no result, or the file cannot be written.
        NotReplayed: a run cannot be reproduced.
    """
    seconds = np.linspace(*window, instants)
    results = {name: load(folder) for name, folder in folders.items()}
    systems = []
    for name, result in results.items():
        over = requests_over(name, result, progress)
        snapshots = snapshots_of(result, to_tick_column(seconds).tolist(), over)
        systems.append(
            {
                "name": name,
                "scenario": options_of(result.scenario, result.summary),
                "summary": {key: value for key, value in result.summary.items() if key != "sim"},
                "fragmentation": fragmentation_of(result.summary["memory"]),
                "frames": frames(snapshots, result),
            }
        )
    progress("writing the page")
    entries = entries_in([result.summary for result in results.values()])
    data = {
        "instants": pack(seconds),
        "entries": drawn_categories(entries),
        "categories": rows_of(entries),
        "systems": systems,
        "beside": True,
        "cells": "slot",
    }
    write_page(data, out, SECTIONS, SCRIPTS, title=_title(len(systems)), first="map")


def _title(systems: int) -> str:
    number = {2: "two", 3: "three", 4: "four"}.get(systems, str(systems))
    return f"One load, {number} allocators"
