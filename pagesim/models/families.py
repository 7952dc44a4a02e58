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
        defaults: what its code takes where the config is silent and other than LLaMA's code would take it.
        skips: keys that say nothing, as its code does not look at them or something else tells the same.
        latent: its layers may have latent attention.
        experts: fields of its MixtureOfExperts; None if its layers have none.
        expert_ffn: keys of which the first that is there says how wide an expert is.
        shared_ffn: likewise all shared experts together; of other families their number alone is given.
        ffn: likewise a plain MLP.
        attention_bias: its code makes biases of attention where ``attention_bias`` says so.
        qkv_bias: likewise of queries, keys and values alone, and what is taken where the config is silent.
        mlp_bias: likewise of MLPs, where ``mlp_bias`` says so.
        reads: keys that speak of unusual attention (`hf_layers.SIGNS`) and are read.
        pattern: how it lays its layers out where ``layer_types`` does not say so (`hf_layers.PATTERNS`).
    """

    aliases: tuple[str, ...] = ()
    traits: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    skips: tuple[str, ...] = ()
    latent: bool = False
    experts: Mapping[str, Any] | None = None
    expert_ffn: tuple[str, ...] = ("moe_intermediate_size", "intermediate_size")
    shared_ffn: tuple[str, ...] = ()
    ffn: tuple[str, ...] = (
        *("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "moe_intermediate_size"),
    )
    attention_bias: bool = False
    qkv_bias: bool | None = None
    mlp_bias: bool = False
    reads: tuple[str, ...] = ()
    pattern: str = "full"


OTHER = Family(
    latent=True,
    experts={},
    shared_ffn=("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"),
    attention_bias=True,
    mlp_bias=True,
)
"""Any other, which is read like LLaMA."""

FAMILIES: dict[str, Family] = {
    name: Family(**row)
    for name, row in json.loads(Path(__file__).with_name("families.json").read_text(encoding="utf-8")).items()
}
"""The families by ``model_type``."""

BUILT_AS = {alias: name for name, family in FAMILIES.items() for alias in family.aliases}
