"""Rows of the catalogue, one per released model, in the JSON files of `FOLDER`, one per family."""

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
"""Folder of these files."""


class Row(BaseModel):
    """A row of the catalogue: a released model.

    Attributes:
        name: its name in pagesim; by default the name part of its first ID, in lower case.
        ids: its Hugging Face IDs, including variants with the same numbers; the config is from the first.
        like: name of another row whose config is used, with this row's keys replaced.
        config: the keys of its ``config.json`` that determine its size.
        weights: weight dtype, if no config specifies how its linear layers are quantized.
        kv_dtype: KV cache dtype, if the checkpoint specifies one in addition to ``weights``.
        source: where the numbers were seen.
        date: when they were seen.
        unverified: whether neither the file nor a copy with all these keys was seen.
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
    """Return the rows by name, not validated, file by file."""
    return {
        row.get("name") or row["ids"][0].partition("/")[2].lower(): row
        for path in sorted(FOLDER.glob("*.json"))
        for row in json.loads(path.read_text(encoding="utf-8"))
    }


@cache
def ids() -> dict[str, str]:
    """Return the names of the rows by their IDs in lower case."""
    return {each.lower(): name for name, row in names().items() for each in row.get("ids", ())}


def spec_of(name: str) -> ModelSpec:
    """Return the model of the row of that name.

    Raises:
        ValueError: the row does not match the schema.
    """
    row = Row.model_validate(names()[name])
    spec = from_hf_config(config_of(name), name)
    if row.weights:
        spec = replace(spec.with_weights(row.weights), kv_dtype=row.kv_dtype)
    quantized = row.weights or row.config.get("quantization_config")
    return replace(spec, base=row.like if quantized else "", source=row.source, unverified=row.unverified)


def config_of(name: str) -> dict[str, Any]:
    """Return the config of the row of that name, including what it inherits from its ``like`` row."""
    row = names()[name]
    like, own = row.get("like"), row.get("config", {})
    return _changed(config_of(like), own) if like else own


def _changed(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with some keys replaced; nested objects are merged recursively."""
    found = {**config, **changes}
    for key in config.keys() & changes.keys():
        if isinstance(config[key], Mapping) and isinstance(changes[key], Mapping):
            found[key] = _changed(config[key], changes[key])
    return found
