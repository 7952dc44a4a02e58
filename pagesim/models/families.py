"""Families: what a model family's code fixes without a key in ``config.json``, one row per family.

Source of ``families.json``: the modeling and configuration files of transformers 5.23, and vLLM 0.33.0's for
routers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """A family whose parameters are counted exactly.

    Attributes:
        aliases: other ``model_type`` names, mostly of the language model inside a multimodal one.
        traits: fixed fields of its ModelSpec.
        flags: fields of its ModelSpec set by a config key: that key, and the default if it is missing.
        defaults: values its code uses for missing keys, where they differ from those of LLaMA's code.
        skips: keys to ignore: its code does not read them, or another key gives the same information.
        latent: whether its layers may have latent attention.
        experts: fields of its MixtureOfExperts; None if it has no experts.
        expert_ffn: keys for the width of an expert; the first one present counts.
        shared_ffn: likewise for all shared experts together; empty if only their number is given.
        ffn: likewise for a plain MLP.
        reads: keys of unusual attention (`hf_layers.SIGNS`) that are read for this family.
        pattern: order of its layers if there is no ``layer_types`` (a key of `hf_layers.PATTERNS`).
    """

    aliases: tuple[str, ...] = ()
    traits: Mapping[str, Any] = field(default_factory=dict)
    flags: Mapping[str, tuple[str, bool]] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    skips: tuple[str, ...] = ()
    latent: bool = False
    experts: Mapping[str, Any] | None = None
    expert_ffn: tuple[str, ...] = ("moe_intermediate_size", "intermediate_size")
    shared_ffn: tuple[str, ...] = ()
    ffn: tuple[str, ...] = (
        *("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "moe_intermediate_size"),
    )
    reads: tuple[str, ...] = ()
    pattern: str = "full"


OTHER = ModelFamily(
    flags={
        "qkv_bias": ("attention_bias", False),
        "out_bias": ("attention_bias", False),
        "mlp_bias": ("mlp_bias", False),
    },
    latent=True,
    experts={},
    shared_ffn=("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"),
)
"""Any other family, which is read like LLaMA."""

FAMILIES: dict[str, ModelFamily] = {
    name: ModelFamily(**row)
    for name, row in json.loads(Path(__file__).with_name("families.json").read_text(encoding="utf-8")).items()
}
"""Families by ``model_type``."""

BUILT_AS = {alias: name for name, family in FAMILIES.items() for alias in family.aliases}
