"""Families: what the code of a model family fixes without naming it in a ``config.json``, a row each.

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
class Family:
    """A family whose parameters are counted exactly.

    Attributes:
        aliases: other names, most of them of the language model of one that takes images too.
        traits: fields of its ModelSpec.
        flags: likewise those that a key decides on, with what is taken where the config is silent.
        defaults: what its code takes where the config is silent and other than LLaMA's code would take it.
        skips: keys that say nothing, as its code does not look at them or something else tells the same.
        latent: its layers may have latent attention.
        experts: fields of its MixtureOfExperts; None if its layers have none.
        expert_ffn: keys of which the first that is there says how wide an expert is.
        shared_ffn: likewise all shared experts together; of other families their number alone is given.
        ffn: likewise a plain MLP.
        reads: keys that speak of unusual attention (`hf_layers.SIGNS`) and are read.
        pattern: how it lays its layers out where ``layer_types`` does not say so (`hf_layers.PATTERNS`).
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


OTHER = Family(
    flags={
        "qkv_bias": ("attention_bias", False),
        "out_bias": ("attention_bias", False),
        "mlp_bias": ("mlp_bias", False),
    },
    latent=True,
    experts={},
    shared_ffn=("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"),
)
"""Any other, which is read like LLaMA."""

FAMILIES: dict[str, Family] = {
    name: Family(**row)
    for name, row in json.loads(Path(__file__).with_name("families.json").read_text(encoding="utf-8")).items()
}
"""The families by ``model_type``."""

BUILT_AS = {alias: name for name, family in FAMILIES.items() for alias in family.aliases}
