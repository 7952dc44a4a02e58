"""``--kv-transfer-config``: the connectors of a line, and the options that they set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagesim.errors import brief, reason
from pagesim.hardware.gpu_spec import GIB
from pagesim.models import model
from pagesim.setup.presets import BLOCK_SIZE
from pagesim.setup.serve_parts import object_of, text_of
from pagesim.setup.serve_words import FlagRefused

FLAG = "kv-transfer-config"

SIZE = "kv_offloading_size"

NIXL = ("NixlConnector", "NixlPullConnector")
"""Connectors that pull KV from other engines if a router adds ``kv_transfer_params`` to a request."""

NOT_MODELLED = {
    **dict.fromkeys(
        ("LMCacheConnectorV1", "LMCacheMPConnector"),
        "LMCache keeps and evicts chunks by rules of its own; --kv-offloading-size stores in host memory",
    ),
    **dict.fromkeys(
        ("MooncakeStoreConnector", "HF3FSKVConnector", "FlexKVConnectorV1", "UMBPStoreConnector"),
        "a store that engines share keeps and evicts chunks by rules of its own; --kv-offloading-size stores "
        "in host memory",
    ),
    **dict.fromkeys(
        ("NixlPushConnector", "MooncakeConnector", "MoRIIOConnector"),
        "prefill apart from decode is modelled with NixlConnector, which pulls",
    ),
    "SimpleCPUOffloadConnector": "its store is scheduled by other rules than OffloadingConnector's",
    "HiSparseConnector": "it keeps blocks on the host, and rows of them on the device",
    "DecodeBenchConnector": "it fills blocks with no KV at all",
}
"""Reasons why other connectors are refused."""

_EXTRAS = "kv_connector_extra_config"

_EXTRA = {
    "blocks_per_chunk": "kv_offloading_chunk_blocks",
    "eviction_policy": "kv_offloading_eviction",
    "store_threshold": "kv_offloading_threshold",
    "offload_prompt_only": "kv_offloading_prompt_only",
}
"""Keys of OffloadingConnector's extra config, with the equivalent options."""

_HARMLESS = {"spec_name": "CPUOffloadingSpec", "sync_load_budget_bytes": 0, "max_tracker_size": 64_000}
"""Its other keys, with the values that change nothing."""


def transfers(flags: Mapping[str, list[str]], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that the connectors of a line set.

    Source: ``_post_init_kv_transfer_config`` (config/vllm.py), ``build_offloading_config`` and
    ``CPUOffloadingSpec`` (distributed/kv_transfer, v1/kv_offload/cpu/spec.py).

    Args:
        flags: flags with their values.
        options: options that the line has set so far.

    Raises:
        FlagRefused: a connector or its configuration is not modelled.
    """
    if FLAG not in flags:
        return {}
    config = object_of(flags[FLAG][-1])
    try:
        if SIZE in options:  # vLLM's own store replaces the connector
            found = _offloading(config.get(_EXTRAS, {}), options)
            return {name: value for name, value in found.items() if name != SIZE}
        return _connector(config, options)
    except (AttributeError, TypeError, ValueError, OverflowError) as wrong:
        if isinstance(wrong, FlagRefused):
            raise
        raise _refused(f"it holds a value of another type than vLLM's: {reason(wrong)}") from None


def _connector(config: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a connector; a store among several takes precedence, as it fences blocks, too."""
    name, role = config.get("kv_connector"), config.get("kv_role")
    extra = config.get(_EXTRAS, {})
    if name == "MultiConnector":
        parts = extra.get("connectors", ())
        several = [_connector({"kv_role": role, **each}, options) for each in parts]
        merged = {key: value for each in several for key, value in each.items()}
        if SIZE in merged:
            merged.pop("kv_connector", None)
        return merged
    if role in ("kv_producer", "kv_consumer"):
        raise _refused(
            f"{name} as {role} is one half of disaggregated prefill; leave it out, and give --prefill and "
            "--decode beside the line"
        )
    if name in NIXL:
        if extra:
            raise _refused(f"{name} with {brief(extra, 80)} is not modelled; leave that out")
        return {"kv_connector": "nixl"}
    if name == "OffloadingConnector":
        return _offloading(extra, options)
    why = NOT_MODELLED.get(str(name), f"{brief(name, 80)} is no connector that is known here")
    raise _refused(f"{why}: leave it out")


def _offloading(extra: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of vLLM's own host store."""
    if SIZE not in options and not extra.get("cpu_bytes_to_use"):
        raise _refused("OffloadingConnector needs cpu_bytes_to_use, or vLLM does not start: give it")
    found: dict[str, Any] = {}
    for key, value in extra.items():
        if key == "cpu_bytes_to_use":
            found[SIZE] = float(value) / GIB
        elif key == "block_size":
            found["kv_offloading_chunk_blocks"] = _chunk_blocks(value, options)
        elif key in _EXTRA:
            found[_EXTRA[key]] = value
        elif _HARMLESS.get(key) != value:
            raise _refused(f"{key} {brief(text_of(value), 80)} is not modelled; leave it out")
    return found


def _chunk_blocks(tokens: Any, options: Mapping[str, Any]) -> int:
    """Return the number of blocks in a chunk of this many tokens."""
    block: int = options.get("block_size", BLOCK_SIZE)
    if "block_size" not in options and model(options["model"]).mla is not None:
        raise _refused("block_size of a chunk says blocks only beside --block-size; give blocks_per_chunk")
    if not isinstance(tokens, int) or tokens % block:
        raise _refused(f"block_size {brief(tokens, 80)} must be a multiple of the {block} tokens of a block")
    return int(tokens // block)


def _refused(why: str) -> FlagRefused:
    return FlagRefused(FLAG, f"--{FLAG} affects scheduling and is not modelled; {why}")
