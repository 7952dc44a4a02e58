"""Pack: arrays and names as text that a page can hold and no reader of HTML takes for anything else."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt


def pack(column: npt.ArrayLike) -> dict[str, str]:
    """Return whole numbers as 32 bits if they fit, all others as 64-bit floats, deflated, in base64.

    ``data.js`` reads it: ``type`` names the array, ``deflated`` holds little-endian numbers.
    """
    values = np.asarray(column)
    fits = values.dtype.kind != "f" and (not values.size or abs(values).max() < 1 << 31)
    kind, name = ("<i4", "Int32Array") if fits else ("<f8", "Float64Array")
    raw = np.ascontiguousarray(values, dtype=kind).tobytes()
    return {"type": name, "deflated": deflated(raw)}


def deflated(raw: bytes) -> str:
    """Return bytes deflated, in base64."""
    return base64.b64encode(zlib.compress(raw, 9)).decode("ascii")


def embed(value: Any) -> str:
    """Return JSON for a script element: nothing in it can end the element or begin a comment."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
