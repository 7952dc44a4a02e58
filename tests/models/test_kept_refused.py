"""Configs of families that say by keys of their own what a layer keeps, with a value that is off."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pagesim.errors import PagesimError
from pagesim.models.catalogue import rows
from pagesim.models.huggingface import from_hf_config

CONFIGS = {config["model_type"]: config for config in map(rows.config_of, rows.names())}


def changed(content: Any, path: tuple[str | int, ...], value: object) -> Any:
    """Return a copy in which a value stands at a path; without the key there where it is ``...``."""
    key, rest = path[0], path[1:]
    copy: Any = list(content) if isinstance(content, list) else dict(content)
    if rest:
        copy[key] = changed(copy[key], rest, value)
    elif value is ...:
        del copy[key]
    else:
        copy[key] = value
    return copy


@pytest.mark.parametrize(
    ("family", "path", "value", "said"),
    [
        ("nemotron-nas", ("block_configs", 0, "attention", "n_heads_in_group"), ..., "n_heads_in_group"),
        ("nemotron-nas", ("block_configs", 0, "attention", "n_heads_in_group"), 7, "a divisor of the"),
        ("nemotron-nas", ("block_configs", 0, "attention"), 7, "attention is 7; it must be an object"),
        ("nemotron-nas", ("block_configs", 0), None, "block_configs is None; it must be an object"),
        ("nemotron-nas", ("block_configs", 0, "ffn", "ffn_mult"), "wide", "ffn_mult is 'wide'"),
        ("nemotron-nas", ("block_configs", 0, "ffn", "ffn_mult"), ..., "ffn_mult is None"),
        ("nemotron-nas", ("block_configs",), {}, "one for each of the"),
        ("glm_moe_dsa", ("index_topk_pattern",), "FS", "a letter for each of the"),
    ],
)
def test_a_value_that_is_off_is_refused_by_its_key(
    family: str, path: tuple[str | int, ...], value: object, said: str
) -> None:
    with pytest.raises(PagesimError, match=re.escape(said)):
        from_hf_config(changed(CONFIGS[family], path, value), name="m")
