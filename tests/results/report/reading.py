"""Reading: what a page holds, as its scripts read it."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np


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
    if packed.get("planes"):
        raw = np.frombuffer(raw, np.uint8).reshape(kind.itemsize, -1).T.tobytes()
    values = np.frombuffer(raw, kind)
    if packed["type"] in ("Float64Array", "Int32Array"):
        return values
    values = np.cumsum(values)
    if packed["type"] == "Names":
        return values.astype(str)
    return np.select([values == -1, values == -2], [np.nan, np.inf], values / packed["scale"])
