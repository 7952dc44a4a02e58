"""``--kv-transfer-config`` on a line of vLLM: the options that connectors decide, and which are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from serve_lines import refusal

from pagesim.setup.serve import read_serve

MODEL = "llama-3.1-8b"
GIB = 2**30


def decided(config: dict[str, Any], flags: str = "", model: str = MODEL) -> dict[str, Any]:
    """Return what a line with such a connector decides besides what every line does."""
    options = read_serve(line_of(config, flags, model)).options
    return {name: value for name, value in options.items() if name not in ("policy", "vllm_version", "model")}


def line_of(config: dict[str, Any], flags: str = "", model: str = MODEL) -> str:
    return f"vllm serve {model} {flags} --kv-transfer-config '{json.dumps(config)}'"


def offloading(**extra: Any) -> dict[str, Any]:
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": extra,
    }


@pytest.mark.parametrize(
    ("extra", "options"),
    [
        # CPUOffloadingSpec (v1/kv_offload/cpu/spec.py), build_offloading_config (offloading/config.py).
        ({"cpu_bytes_to_use": 8 * GIB}, {"kv_offloading_size": 8.0}),
        (
            {"cpu_bytes_to_use": GIB, "block_size": 64, "eviction_policy": "arc"},
            {"kv_offloading_size": 1.0, "kv_offloading_chunk_blocks": 4, "kv_offloading_eviction": "arc"},
        ),
        (
            {"cpu_bytes_to_use": GIB, "blocks_per_chunk": 8, "store_threshold": 2},
            {"kv_offloading_size": 1.0, "kv_offloading_chunk_blocks": 8, "kv_offloading_threshold": 2},
        ),
        (
            {"cpu_bytes_to_use": GIB, "offload_prompt_only": False, "spec_name": "CPUOffloadingSpec"},
            {"kv_offloading_size": 1.0, "kv_offloading_prompt_only": False},
        ),
    ],
)
def test_vllms_own_store_is_taken_with_what_its_config_says(
    extra: dict[str, Any], options: dict[str, Any]
) -> None:
    assert decided(offloading(**extra)) == options


def test_the_size_as_a_flag_puts_the_store_in_the_connectors_place() -> None:
    """``_post_init_kv_transfer_config`` (config/vllm.py) keeps the config and replaces the bytes in it."""
    config = {"kv_connector_extra_config": {"blocks_per_chunk": 2, "cpu_bytes_to_use": GIB}}
    assert decided(config, "--kv-offloading-size 4") == {
        "kv_offloading_size": 4.0,
        "kv_offloading_chunk_blocks": 2,
    }


def test_a_chunks_tokens_are_blocks_of_the_lines_own_size() -> None:
    config = offloading(cpu_bytes_to_use=GIB, block_size=256)
    assert decided(config, "--block-size 64")["kv_offloading_chunk_blocks"] == 4
    assert decided(config, "--block-size 64", "deepseek-v3")["kv_offloading_chunk_blocks"] == 4
    assert "give blocks_per_chunk" in refusal(line_of(config, model="deepseek-v3"))
    assert "block_size 250 must be a multiple of the 16" in refusal(
        line_of(offloading(cpu_bytes_to_use=GIB, block_size=250))
    )


@pytest.mark.parametrize("name", ["NixlConnector", "NixlPullConnector"])
def test_nixl_alone_fences_blocks(name: str) -> None:
    assert decided({"kv_connector": name, "kv_role": "kv_both"}) == {"kv_connector": "nixl"}


def test_of_several_connectors_the_store_says_what_is_kept() -> None:
    nixl = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
    several = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": [nixl, offloading(cpu_bytes_to_use=GIB)]},
    }
    assert decided(several) == {"kv_offloading_size": 1.0}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}, "LMCache keeps and evicts chunks by"),
        ({"kv_connector": "NixlConnector", "kv_role": "kv_producer"}, "give --prefill and --decode beside"),
        ({"kv_connector": "MooncakeConnector", "kv_role": "kv_both"}, "NixlConnector, which pulls"),
        (
            {"kv_connector": "MyConnector", "kv_role": "kv_both"},
            "'MyConnector' is no connector that is",
        ),
        (offloading(), "OffloadingConnector needs cpu_bytes_to_use"),
        (offloading(cpu_bytes_to_use="much"), "it holds a value of another type"),
        (
            {"kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": [3]}},
            "it holds a value",
        ),
        (
            offloading(cpu_bytes_to_use=GIB, spec_name="TieringOffloadingSpec"),
            "spec_name 'TieringOffl",
        ),
        (
            {
                "kv_connector": "MultiConnector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {"connectors": [{"kv_connector": "LMCacheMPConnector"}]},
            },
            "LMCache keeps and evicts",
        ),
    ],
)
def test_other_connectors_are_refused_with_the_reason(config: dict[str, Any], said: str) -> None:
    whole = refusal(line_of(config))
    assert whole.startswith("--serve: --kv-transfer-config affects scheduling and is not modelled; ")
    assert said in whole
