"""Rows of the catalogue: a released model each, in the JSON files of `FOLDER`, one a family of models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, JsonValue

from pagesim.models.huggingface import from_hf_config
from pagesim.models.model_spec import ModelSpec

FOLDER = Path(__file__).parent / "families"
"""Where the files are."""


class Row(BaseModel):
    """A row of the catalogue: a released model.

    Attributes:
        name: what users call it here; that of its first id, in small letters, where it is left out.
        ids: its ids on Hugging Face, variants with the same numbers among them; the first is where the config
            stands.
        like: the name of another row whose config is taken, changed by this one's.
        config: the keys of its ``config.json`` by which it is sized.
        weights: weight dtype, where no config says how its linear layers are quantized.
        kv_dtype: of the KV cache, where the checkpoint says one beside ``weights``.
        source: where the numbers were seen.
        date: when.
        unverified: neither the file nor a copy with all these keys was seen.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = ""
    ids: tuple[str, ...] = ()
    like: str = ""
    config: dict[str, JsonValue] = {}
    weights: str = ""
    kv_dtype: str = ""
    source: str
    date: date
    unverified: bool = False


@cache
def names() -> dict[str, Mapping[str, Any]]:
    """Return the rows by name, unchecked, file by file."""
    return {
        row.get("name") or row["ids"][0].partition("/")[2].lower(): row
        for path in sorted(FOLDER.glob("*.json"))
        for row in json.loads(path.read_text(encoding="utf-8"))
    }


@cache
def ids() -> dict[str, str]:
    """Return the names of the rows by their ids in small letters."""
    return {each.lower(): name for name, row in names().items() for each in row.get("ids", ())}


def spec_of(name: str) -> ModelSpec:
    """Return the model of the row of that name.

    Raises:
        ValueError: the row is not as the schema has it.
    """
    row = Row.model_validate(names()[name])
    spec = from_hf_config(config_of(name), name)
    if row.weights:
        spec = replace(spec.with_weights(row.weights), kv_dtype=row.kv_dtype)
    quantized = row.weights or row.config.get("quantization_config")
    return replace(spec, base=row.like if quantized else "", source=row.source, unverified=row.unverified)


def config_of(name: str) -> dict[str, Any]:
    """Return the config of the row of that name, with what it takes from the row that it is ``like``."""
    row = names()[name]
    like, own = row.get("like"), row.get("config", {})
    return _changed(config_of(like), own) if like else own


def _changed(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with other values at some keys; objects are changed key by key."""
    found = {**config, **changes}
    for key in config.keys() & changes.keys():
        if isinstance(config[key], Mapping) and isinstance(changes[key], Mapping):
            found[key] = _changed(config[key], changes[key])
    return found
