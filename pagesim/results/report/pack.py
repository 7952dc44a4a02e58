"""Pack: encode arrays and names as text that is safe to embed in HTML."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

NEVER, NOT_KNOWN = -2, -1
"""Codes of times that are infinite or NaN."""

_MOST = (1 << 31) - 1

LEVEL = 6
"""Level of zlib; on columns of blocks, 9 takes up to twenty times as long and saves 3 %."""


def pack(column: npt.ArrayLike) -> dict[str, Any]:
    """Return integers as 32 bits if they fit, and anything else as 64-bit floats, deflated, in base64.

    ``data.js`` decodes it: ``type`` names the JavaScript array, ``deflated`` holds little-endian numbers.
    """
    values = np.asarray(column)
    fits = values.dtype.kind != "f" and (not values.size or abs(values).max() <= _MOST)
    kind, name = ("<i4", "Int32Array") if fits else ("<f8", "Float64Array")
    return {"type": name, "deflated": deflated(values.astype(kind).tobytes())}


def pack_times(seconds: npt.ArrayLike) -> dict[str, Any]:
    """Return times as differences, in the smallest decimal fraction of a second that fits into 32 bits."""
    values = np.asarray(seconds, np.float64)
    there = np.isfinite(values)
    latest = float(values[there].max(initial=0.0))
    scale = 10 ** max(0, min(9, int(np.floor(np.log10(_MOST / max(latest, 1e-9))))))
    parts = np.where(np.isnan(values), NOT_KNOWN, NEVER)
    parts[there] = np.round(values[there] * scale)
    return {"type": "Times", "scale": scale, "deflated": _steps(parts)}


def pack_names(names: Iterable[Any]) -> list[str] | dict[str, Any]:
    """Return names as text, or as packed numbers if all of them are integers of up to 9 digits."""
    texts = [str(name) for name in names]
    if all(text.isdecimal() and len(text) < 10 and str(int(text)) == text for text in texts):
        return {"type": "Names", "deflated": _steps(np.array(texts, np.int64))}
    return texts


def _steps(values: npt.NDArray[np.int64]) -> str:
    return deflated(np.diff(values, prepend=0).astype("<i4").tobytes())


def deflated(raw: bytes) -> str:
    """Return bytes deflated, in base64."""
    return base64.b64encode(zlib.compress(raw, LEVEL)).decode("ascii")


def embed(value: Any) -> str:
    """Return JSON for a script element, escaped so that it cannot end the element or begin a comment."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
