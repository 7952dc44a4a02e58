"""Messages for models without a row: similar names, how to give a config, or why it is out of scope."""

from __future__ import annotations

import json
import re
from difflib import get_close_matches
from pathlib import Path

from pagesim.errors import PagesimError, brief
from pagesim.models.catalogue.rows import ids, names

_ROWS = Path(__file__).with_name("not_known.json")

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
"""A Hugging Face ID, ORG/NAME."""


def unknown(name: str, most: int = 1000) -> PagesimError:
    """Return the error for an unknown model name, shown up to ``most`` characters, with what to do."""
    return PagesimError(f"no model is named {brief(name, most)}; {_advice(name)}")


def out_of_scope(name: str) -> str | None:
    """Return what a model does, by its name, if it is not a language model with a KV cache; else None."""
    return _row_of(name).get("what")


def _row_of(name: str) -> dict[str, str]:
    """Return the row about a model that the catalogue deliberately leaves out; else an empty one."""
    rows: list[dict[str, str]] = json.loads(_ROWS.read_text(encoding="utf-8"))
    return next((row for row in rows if re.search(row["pattern"], name[:200].lower())), {})


def _advice(name: str) -> str:
    if (what := out_of_scope(name)) is not None:
        return f"by its name it {what}: pagesim is about models that write text from a KV cache"
    if why := _row_of(name).get("why"):
        return (
            f"{why}: put its config.json and its hf_quant_config.json into a folder, and name that folder in "
            "its place"
        )
    asked = name.lower()[:100]
    if HUB_ID.fullmatch(name):
        near = [_written(each) for each in get_close_matches(asked, ids(), n=3, cutoff=0.8)]
        did = f"did you mean {' or '.join(near)}? Else " if near else ""
        return (
            f"{did}give its config.json: download https://huggingface.co/{name}/blob/main/config.json into a "
            "folder, hf_quant_config.json too if there is one, and name that folder in its place, or let "
            "pagesim plan --fetch take it"
        )
    near = get_close_matches(asked, names(), n=5, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return "pagesim list models shows those that are known; others are given by their config.json"


def _written(hub_id: str) -> str:
    """Return an ID with the capitalization of its row."""
    return next(str(each) for each in names()[ids()[hub_id]]["ids"] if each.lower() == hub_id)
