"""The models that pagesim knows by name."""

from __future__ import annotations

from functools import cache, lru_cache
from pathlib import Path

from pagesim.models.catalogue.rows import ids, names, spec_of
from pagesim.models.catalogue.unknown import unknown
from pagesim.models.hf_quant_file import FILE
from pagesim.models.huggingface import from_hf_config
from pagesim.models.layer_file import from_layers, is_layer_file
from pagesim.models.model_spec import ModelSpec


def known_as(name: str) -> str | None:
    """Return a model's name in the catalogue, given that or its Hugging Face ID; None if unknown."""
    name = name.lower()
    return name if name in names() else ids().get(name)


def is_config(name: str) -> bool:
    """Return whether a model is given by a path: of a ``config.json``, its folder, or a layer file."""
    try:
        return known_as(name) is None and (name.endswith((".json", ".toml")) or Path(name).is_dir())
    except (OSError, ValueError):  # such as one too long for a path
        return False


def model(name: str) -> ModelSpec:
    """Return the model of that name or Hugging Face ID, or read it from a file.

    A file is a ``config.json``, given by its path or its folder's, or a layer file (`from_layers`).

    Raises:
        PagesimError: the model is unknown (the message lists similar names), or the file cannot be read.
    """
    if not is_config(name):
        if (known := known_as(name)) is None:
            raise unknown(name)
        return _worked_out(known)
    if is_layer_file(name):
        return from_layers(name)
    # A run looks up its model many times, and a long list of quantized layers is slow to parse.
    contents = _contents(name)
    return _read(name, *contents) if contents else from_hf_config(name)


def _contents(name: str) -> tuple[str, bytes, bytes] | None:
    """Return a config's path, its content and that of `FILE` next to it; None if it cannot be read twice."""
    try:
        path = Path(name).resolve()
        path = path / "config.json" if path.is_dir() else path
        beside = path.with_name(FILE)
        if path.is_file():
            return str(path), path.read_bytes(), beside.read_bytes() if beside.is_file() else b""
    except (OSError, ValueError, RuntimeError):  # `from_hf_config` then reports why
        pass
    return None


@lru_cache(maxsize=16)
def _read(name: str, path: str, *contents: bytes) -> ModelSpec:
    """Return a config's model; ``path`` and ``contents`` are only cache keys, for files that change."""
    return from_hf_config(name)


def models() -> tuple[ModelSpec, ...]:
    """Return all models in the catalogue, by family and from small to large."""
    return tuple(map(_worked_out, names()))


def matching(pattern: str) -> tuple[ModelSpec, ...]:
    """Return the models whose name or Hugging Face ID contains a text, ignoring case."""
    part = pattern.lower()
    named = [name for name in names() if part in name]
    by_id = [name for hub_id, name in ids().items() if part in hub_id]
    return tuple(_worked_out(name) for name in names() if name in {*named, *by_id})


@cache
def _worked_out(name: str) -> ModelSpec:
    return spec_of(name)
