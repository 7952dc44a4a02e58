"""The models that pagesim knows by name."""

from __future__ import annotations

from pathlib import Path

from pagesim.costs.specs.catalogue.quantized import QUANTIZED, quantized
from pagesim.costs.specs.catalogue.releases import RELEASES, released
from pagesim.costs.specs.catalogue.shapes import SHAPES, TINY, hub_ids
from pagesim.costs.specs.huggingface import from_hf_config
from pagesim.costs.specs.layer_file import from_layers, is_layer_file
from pagesim.costs.specs.models import ModelSpec
from pagesim.costs.specs.names import find

_RELEASED = {spec.name: spec for spec in (*SHAPES, *map(released, RELEASES))}
_MODELS = {
    **_RELEASED,
    **{release.name: quantized(release, _RELEASED) for release in QUANTIZED},
    TINY.name: TINY,
}
_HUB_IDS = hub_ids() | {
    hub_id.lower(): release.name for release in (*RELEASES, *QUANTIZED) for hub_id in release.hub_ids
}


def known_as(name: str) -> str | None:
    """Return the name here of a model by its name or its id on Hugging Face; None if it is not known."""
    name = name.lower()
    return name if name in _MODELS else _HUB_IDS.get(name)


def is_config(name: str) -> bool:
    """Say whether a model is a path: of a ``config.json``, of its folder, or of a layer file."""
    try:
        return known_as(name) is None and (name.endswith((".json", ".toml")) or Path(name).is_dir())
    except (OSError, ValueError):  # too long to be a path, say
        return False


def model(name: str) -> ModelSpec:
    """Return the model of that name or id on Hugging Face, or read it from a file.

    A file is a ``config.json``, named by its path or its folder's, or a layer file (`from_layers`).

    Raises:
        PagesimError: no such model, the message listing names like it; or a file that cannot be read.
    """
    if not is_config(name):
        return find("model", known_as(name) or name, _MODELS)
    return from_layers(name) if is_layer_file(name) else from_hf_config(name)


def models() -> tuple[ModelSpec, ...]:
    """Return every model that is known by name, family by family, small to large; one to try on last."""
    return tuple(_MODELS.values())
