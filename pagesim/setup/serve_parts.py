"""Flag values that are JSON objects, and their parts, named after a dot: ``-cc.mode 3``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from pagesim.setup.reading import parse_json
from pagesim.setup.sizes import readable


def object_of(text: str) -> dict[str, Any]:
    """Return the JSON object in a text; an empty one if there is none."""
    found = None
    with suppress(ValueError):
        found = parse_json(text)
    return found if isinstance(found, dict) else {}


def add_part(whole: dict[str, Any], path: Sequence[str], text: str) -> None:
    """Add a part of an object to the parts that were named before.

    Source: vLLM 0.33.0, ``FlexibleArgumentParser.parse_args`` (utils/argparse_utils.py).

    Args:
        whole: object to change.
        path: names of the enclosing objects, outermost first, and of the part itself; if it ends in ``+``,
            the text is a comma-separated list whose items are appended to a list.
        text: value of the part: JSON, a number with a suffix, or any other text as a string.
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
    """Return an object without one of its parts, and without objects left empty by its removal."""
    name, *inner = path
    kept = {each: value for each, value in whole.items() if each != name}
    if inner and isinstance(whole.get(name), dict) and (rest := without_part(whole[name], inner)):
        kept[name] = rest
    return kept


def text_of(value: Any) -> str:
    """Return a part's value as written on a command line."""
    return value if isinstance(value, str) else json.dumps(value)
