"""Values of flags that are JSON objects, and their parts, which stand behind a dot: ``-cc.mode 3``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from pagesim.setup.reading import parse_json
from pagesim.setup.sizes import readable


def object_of(text: str) -> dict[str, Any]:
    """Return the object that a text is; an empty one where it is none."""
    found = None
    with suppress(ValueError):
        found = parse_json(text)
    return found if isinstance(found, dict) else {}


def add_part(whole: dict[str, Any], path: Sequence[str], text: str) -> None:
    """Put a part of an object to the parts that were named before.

    Source: vLLM 0.33.0, ``FlexibleArgumentParser.parse_args`` (utils/argparse_utils.py).

    Args:
        whole: the object.
        path: the names of the objects in which the part is, the outermost first, and its own; with a ``+``
            behind, the text is one of several with commas between them, and they are put to a list.
        text: its value: JSON, a number with a suffix, or anything else for a string.
    """
    *outer, name = path
    for each in outer:
        if not isinstance(whole.get(each), dict):
            whole[each] = {}
        whole = whole[each]
    value: Any = text
    with suppress(ValueError):
        value = readable(text)
    with suppress(ValueError):
        value = parse_json(text)
    if name.endswith("+"):
        name, value = name[:-1], text.split(",")
    if isinstance(value, list) and isinstance(whole.get(name), list):
        value = [*whole[name], *value]
    whole[name] = value


def without_part(whole: dict[str, Any], path: Sequence[str]) -> dict[str, Any]:
    """Return an object without one of its parts, and without the objects that held nothing else."""
    name, *inner = path
    kept = {each: value for each, value in whole.items() if each != name}
    if inner and isinstance(whole.get(name), dict) and (rest := without_part(whole[name], inner)):
        kept[name] = rest
    return kept


def text_of(value: Any) -> str:
    """Return a part's value as it would be written behind a dot."""
    return value if isinstance(value, str) else json.dumps(value)
