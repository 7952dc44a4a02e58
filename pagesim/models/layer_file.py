"""Layer files: a model described as a list of its layers, in TOML or JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from pagesim.errors import PagesimError, brief, reason
from pagesim.models.layers import (
    ChunkLayer,
    FullLayer,
    IndexerLayer,
    LatentLayer,
    Layer,
    RingLayer,
    StateLayer,
    WindowLayer,
)
from pagesim.models.model_spec import MOST_PARTS, ModelSpec
from pagesim.models.parts import LatentAttention, MixtureOfExperts
from pagesim.models.weights import GROUPS, Weights, weight_dtype
from pagesim.setup.reading import parse_json, parse_toml, read_text

_LAYERS = (FullLayer, WindowLayer, ChunkLayer, LatentLayer, IndexerLayer, StateLayer, RingLayer)
KINDS: dict[str, type[Layer]] = {each.kind: each for each in _LAYERS}
"""Layer classes by the name of their kind."""

DEEPEST = 8
"""Lists nested deeper than this are taken for a mistake."""

_TYPES: dict[str, tuple[Any, str]] = {
    "float": ((int, float), "a number"),
    "int": (int, "a whole number"),
    "bool": (bool, "true or false"),
    "str": (str, "a text"),
}
_PARTS = {"mla": LatentAttention, "moe": MixtureOfExperts}
_OWN = ("cached", "source", "recurrence", "left_out", "unread")

Spec = TypeVar("Spec")


def is_layer_file(path: str) -> bool:
    """Return whether a file is TOML, or readable JSON with a list of layers."""
    if path.endswith(".toml"):
        return True
    try:
        content = parse_json(read_text(Path(path)), finite=False)
    except (OSError, ValueError):
        return False
    return isinstance(content, Mapping) and isinstance(content.get("layers"), list)


def from_layers(path: str | Path) -> ModelSpec:
    """Read a model from a layer file.

    ``layers`` is a list of tables, in the model's order. Each table is a layer, with its ``kind`` and the
    fields of its class (`pagesim.models.layers`), or holds such a list under ``of``. ``repeat`` is how many
    times the table counts.

    ``mtp`` is such a list for the MTP modules, if they are not like the model's own full-attention layers;
    it is empty if they keep nothing.

    ``max_model_len`` is required; ``name`` defaults to the file's. Further fields of `ModelSpec` may be
    given: ``heads``, if GPUs outnumber KV heads; and ``hidden``, ``ffn``, ``vocab`` and others from which
    weights and a roofline are derived. ``depth`` is the number of transformer layers, if one of them is
    listed as several. ``weights`` is the name of a weight dtype, or a table of names by group of layers.

    Raises:
        PagesimError: the file cannot be read, a key is missing or unknown, or a value is invalid.
    """
    path = Path(path)
    language = "TOML" if path.suffix == ".toml" else "JSON"
    try:
        text = read_text(path)
        content = parse_toml(text) if language == "TOML" else parse_json(text)
    except OSError as error:
        raise PagesimError(
            f"cannot read {path}: {error.strerror}; name a file of a model's layers"
        ) from error
    except (ValueError, RecursionError) as error:
        raise PagesimError(f"{path} is not {language}: {reason(error)}") from error
    if not isinstance(content, Mapping) or not isinstance(content.get("layers"), list):
        raise PagesimError(f"{path} has no list of layers; give one, as layers = [{{kind = …}}, …]")
    for own in _OWN:
        if own in content:
            raise PagesimError(f"{path}: {own} is no key of a layer file; leave it out")
    given = dict(content)
    cached = tuple(_layers(given.pop("layers"), f"{path}: layers", 1))
    if not cached:
        raise PagesimError(f"{path}: layers is empty; a model has at least one")
    if "mtp" in given:
        given["mtp"] = tuple(_layers(given["mtp"], f"{path}: mtp", 1))
    listed = [layer for layer in cached if not isinstance(layer, IndexerLayer | RingLayer)]
    widest = max(
        (layer for layer in cached if isinstance(layer, FullLayer)),
        key=lambda layer: (layer.kv_heads, layer.head_dim),
        default=FullLayer(1, 1),
    )
    kv_heads = given.get("kv_heads", widest.kv_heads)
    for name, part in _PARTS.items():
        if name in given:
            given[name] = _made(part, given[name], f"{path}: {name}")
    weights = given.pop("weights", None)
    values = {
        "name": path.stem,
        "layers": given.pop("depth", max(1, len(listed))),
        "hidden": 0,
        "ffn": 0,
        "vocab": 0,
        "heads": kv_heads,
        "kv_heads": kv_heads,
        "head_dim": widest.head_dim,
        **given,
        "cached": cached,
        "source": str(path),
    }
    spec = _made(ModelSpec, values, str(path))
    return spec if weights is None else _weighed(spec, weights, f"{path}: weights")


def _layers(entries: Any, where: str, depth: int) -> list[Layer]:
    """Return the layers that a list of tables describes.

    Raises:
        PagesimError: it is not such a list, or describes too many layers.
    """
    if not isinstance(entries, list) or depth > DEEPEST:
        wanted = f"at most {DEEPEST} lists deep" if isinstance(entries, list) else "a list of tables"
        raise PagesimError(f"{where} is {brief(entries)}; it must be {wanted}")
    found: list[Layer] = []
    for number, entry in enumerate(entries, 1):
        at = f"{where}, entry {number}"
        if not isinstance(entry, Mapping):
            raise PagesimError(f"{at} is {brief(entry)}; it must be a table with kind, or with repeat and of")
        table = dict(entry)
        times = table.pop("repeat", 1)
        if isinstance(times, bool) or not isinstance(times, int) or not 1 <= times <= MOST_PARTS:
            raise PagesimError(
                f"{at}: repeat is {brief(times)}; it must be a whole number from 1 to {MOST_PARTS}"
            )
        if "of" in table:
            inner = _layers(table.pop("of"), f"{at}: of", depth + 1)
            if table:
                raise PagesimError(
                    f"{at}: {brief(next(iter(table)))} stands beside of; it is a layer's: move it there"
                )
        else:
            kind = table.pop("kind", None)
            if not isinstance(kind, str) or kind not in KINDS:
                raise PagesimError(f"{at}: kind is {brief(kind)}; it must be one of {', '.join(KINDS)}")
            inner = [_made(KINDS[kind], table, at)]
        if len(found) + times * len(inner) > MOST_PARTS:
            raise PagesimError(f"{at}: there are more than {MOST_PARTS} layers; lower repeat")
        found += inner * times
    return found


def _weighed(spec: ModelSpec, value: Any, where: str) -> ModelSpec:
    """Return a model with a named weight dtype, or with those of a table by group of layers.

    Raises:
        PagesimError: the value is neither, or a name is unknown.
    """
    if isinstance(value, str):
        return spec.with_weights(value)
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value.values()):
        raise PagesimError(f"{where} is {brief(value)}; it must be a weight dtype, or a table of them")
    for key in value:
        if key not in GROUPS:
            raise PagesimError(f"{where}: there is no key {brief(key)}; known are {', '.join(GROUPS)}")
    dtypes: dict[str, Any] = {group: weight_dtype(name) for group, name in value.items()}
    return replace(spec, weights=Weights(**dtypes))


def _made(kind: type[Spec], table: Any, where: str) -> Spec:
    """Return an instance of a dataclass with the fields of a table.

    Raises:
        PagesimError: a key is missing or unknown, or a value is invalid.
    """
    if not isinstance(table, Mapping):
        raise PagesimError(f"{where} is {brief(table)}; it must be a table")
    known = {f.name: f for f in fields(kind)}  # type: ignore[arg-type]
    values = {}
    for key, value in table.items():
        if key not in known:
            raise PagesimError(f"{where}: there is no key {brief(key)}; known are {', '.join(known)}")
        wanted, called = _TYPES.get(str(known[key].type), (object, ""))
        if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
            raise PagesimError(f"{where}: {key} is {brief(value)}; it must be {called}")
        values[key] = tuple(value) if isinstance(value, list) else value
    missing = [f.name for f in known.values() if f.default is MISSING and f.name not in values]
    if missing:
        raise PagesimError(f"{where}: {missing[0]} is missing; give it")
    try:
        return kind(**values)
    except PagesimError as error:
        raise PagesimError(f"{where}: {error}") from None
