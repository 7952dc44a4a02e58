"""Which ``quantization_config`` of a checkpoint takes effect: its config's, or that of ModelOpt's file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pagesim.errors import PagesimError, reason
from pagesim.setup.reading import parse_json, read_text

FILE = "hf_quant_config.json"
"""File in which older versions of ModelOpt wrote what is now in ``config.json``."""


def with_file(content: Mapping[str, Any], folder: Path | None = None) -> tuple[Mapping[str, Any], str]:
    """Return a config with the ``quantization_config`` that takes effect, and where else it was read from.

    That is the config's own, else the content of `FILE` next to it, else ``compression_config``, else the one
    in ``text_config``. ModelOpt's KV cache dtype counts only in the first two. A missing list of layers in
    mixed precision is also read from `FILE` (vllm/transformers_utils/config.py and
    model_loader/weight_utils.py of 0.33.0).

    Args:
        content: content of a ``config.json``.
        folder: folder of that file, or None if it is not a file.

    Raises:
        PagesimError: `FILE` cannot be read.
    """
    text = content.get("text_config")
    inner = text.get("quantization_config") if isinstance(text, Mapping) else None
    section, beside = content.get("quantization_config"), ""
    if section is None and (section := _filed(folder)) is not None:
        beside = f" with {FILE}"
    elif section is None:
        section = content.get("compression_config")
        section = inner if section is None else section
        if isinstance(section, Mapping) and str(section.get("quant_method")).lower().startswith("modelopt"):
            section = {key: value for key, value in section.items() if not key.startswith("kv_cache_")}
    elif isinstance(section, Mapping) and lacks_layers(section) and (filed := _filed(folder)) is not None:
        of_cache = {key: section.get(key) for key in ("kv_cache_scheme", "kv_cache_quant_algo")}
        nested = filed.get("quantization")
        section = {
            **filed,
            **(nested if isinstance(nested, Mapping) else {}),
            "quantization": None,
            **of_cache,
        }
        section["quant_method"], beside = "modelopt", f" with {FILE}"
    if section is None:
        return content, ""
    content = {**content, "quantization_config": section}
    if isinstance(text, Mapping) and inner is not None:
        content["text_config"] = {key: text[key] for key in text if key != "quantization_config"}
    return content, beside


def lacks_layers(section: Mapping[str, Any]) -> bool:
    """Return whether a ModelOpt config in mixed precision does not list the layers' dtypes."""
    mixed = str(section.get("quant_algo")).upper() == "MIXED_PRECISION"
    return (
        mixed
        and str(section.get("quant_method")).startswith("modelopt")
        and not section.get("quantized_layers")
    )


def _filed(folder: Path | None) -> Mapping[str, Any] | None:
    """Return the content of ModelOpt's file next to a config; None if there is none."""
    path = folder and folder / FILE
    if path is None or not path.exists():
        return None
    try:
        found = parse_json(read_text(path))
    except OSError as error:
        raise PagesimError(f"cannot read {path}: {error.strerror}; it stands beside config.json") from error
    except (ValueError, RecursionError) as error:
        raise PagesimError(f"{path} is not JSON: {reason(error)}") from error
    if not isinstance(found, Mapping):
        raise PagesimError(f"{path} holds a {type(found).__name__}; a {FILE} holds an object")
    return found
