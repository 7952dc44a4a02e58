"""Reading: what a page holds, as its scripts read it."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from pagesim.api import run, trace_of
from pagesim.setup.scenario import Scenario

SMALL = {"trace": "sharegpt", "rate": 3.0, "num_requests": 60, "num_blocks": 250, "max_model_len": 1024}


def data_of(page: Path) -> Any:
    found = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', page.read_text("utf-8"), re.S
    )
    assert len(found) == 1
    return json.loads(found[0])


def unpacked(packed: dict[str, Any]) -> Any:
    """As ``data.js`` does."""
    kind = np.dtype("<f8" if packed["type"] == "Float64Array" else "<i4")
    raw = zlib.decompress(base64.b64decode(packed["deflated"]))
    values = np.frombuffer(raw, kind)
    if packed["type"] in ("Float64Array", "Int32Array"):
        return values
    values = np.cumsum(values)
    if packed["type"] == "Names":
        return values.astype(str)
    return np.select([values == -1, values == -2], [np.nan, np.inf], values / packed["scale"])


def stored(folder: Path, **options: Any) -> Path:
    """Store the result of `SMALL` with other options in a folder; return it."""
    chosen = Scenario(**{**SMALL, **options})
    return run(chosen, trace_of(chosen), steps="stretches").save(folder)


def stamp(browser: Any) -> str:
    """What the map's canvases show, as text that differs when they do."""
    return browser.run("pagesimReport.map.panes.map(pane => pane.canvas.toDataURL()).join()")


ADD_UP = """(() => {
        let wrong = [], looked = 0;
        for (const pane of pagesimReport.map.panes) {
            for (const slot of [...Array(120).keys(), 60, 3, 119]) {
                pane.frames.seek(slot);
                const sums = pane.frames.ledger.map(() => 0);
                for (let b = 0; b < pane.frames.device.size; b += 1) {
                    pane.frames.parts(b).forEach((slots, i) => { sums[i] += slots; });
                }
                looked += 1;
                const ledger = [...pane.frames.ledger];
                if (sums.join() !== ledger.join()) wrong.push([slot, sums, ledger]);
            }
        }
        return [looked, wrong];
    })()"""
"""Adds up the states of all cells of two maps, at every instant, winding back and forth."""
