"""The pool on the host of SGLang's hierarchical cache: its size, and what is refused beside it."""

from __future__ import annotations

from typing import Any

import pytest
from serve_lines import MODEL, refusal

import pagesim as ps
from pagesim.experiments.sglang_plan import plan_sglang
from pagesim.setup.build import new_scheduler
from pagesim.setup.engine_config import EngineConfig
from pagesim.setup.serve import read_serve
from pagesim.setup.system import System, checked

TOKEN = 2 * 32 * 8 * 128 * 2
"""Bytes of a token of Llama 3.1 8B: keys and values of 32 layers, 8 heads of 128 numbers of 2 bytes."""


def slots(line: str = "", **beside: Any) -> tuple[int, int]:
    """Return the tokens on the device and on the host."""
    served = read_serve(f"sglang serve {MODEL} --enable-hierarchical-cache {line}")
    found = plan_sglang(checked(System, served.merged_with({"gpu": "h100", **beside})))
    return found.pools["all layers"][0], found.pools["host"][0]


def test_the_host_has_a_multiple_of_the_devices_tokens_or_its_own_gigabytes() -> None:
    device, host = slots()
    assert host == 2 * device + 1
    assert slots("--hicache-ratio 1.5") == (device, device * 3 // 2 + 1)
    assert slots("--hicache-size 80") == (device, int(80e9) // TOKEN + 1)
    device, host = slots("--page-size 64")
    assert host == (2 * device // 64 + 1) * 64
    assert slots("--tp 2 --hicache-size 120")[1] == int(120e9) // (TOKEN // 2) + 1  # on each GPU


def test_a_host_may_have_fewer_tokens_than_the_device() -> None:
    device, host = slots("--hicache-ratio 0.5")
    assert host == device // 2 + 1


@pytest.mark.parametrize(
    ("line", "token"),
    # 0.5.23, base_spec_worker.py: layers of an MTP drafter are packed with those of the target, 61 of 576
    # numbers here; another drafter has a pool of its own for as many tokens.
    [
        ("deepseek-ai/DeepSeek-V3 --tp 8 --speculative-algorithm NEXTN", 62 * 576 * 2),
        (f"{MODEL} --speculative-algorithm EAGLE3 --speculative-draft-model-path some-head", TOKEN),
    ],
)
def test_gigabytes_on_the_host_hold_the_layers_of_an_mtp_drafter(line: str, token: int) -> None:
    served = read_serve(f"sglang serve {line} --enable-hierarchical-cache --hicache-size 100")
    found = plan_sglang(checked(System, served.merged_with({"gpu": "h200"})))
    assert found.pools["host"][0] == int(100e9) // token + 1


def test_a_line_says_when_prefixes_are_copied() -> None:
    line = f"sglang serve {MODEL} --hicache-write-policy write_back --hicache-ratio 3"
    served = read_serve(f"{line} --enable-hierarchical-cache --hicache-io-backend direct")
    assert served.options["enable_hierarchical_cache"]
    assert served.options["hicache_write_policy"] == "write_back"
    assert served.options["hicache_ratio"] == 3
    assert served.notes[0].endswith(": --hicache-io-backend")
    alone = read_serve(line)
    assert not {"hicache_ratio", "hicache_write_policy"} & alone.options.keys()
    assert alone.notes[0].endswith(": --hicache-write-policy, --hicache-ratio")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model": "qwen3-next-80b", "max_mamba_cache_size": 50}, "layers of qwen3-next-80b keep a state"),
        ({"model": "gpt-oss-20b"}, "layers of gpt-oss-20b keep a window"),
        (
            {"attn_dp_size": 2, "tensor_parallel_size": 2, "hicache_write_policy": "write_back"},
            "with hicache_write_policy write_back a rank waits for its copies alone",
        ),
        ({"disable_radix_cache": True}, "keeps what the radix cache has: leave disable_radix_cache out"),
    ],
)
def test_what_is_not_simulated_is_refused_by_name(options: dict[str, Any], said: str) -> None:
    system = {
        "policy": "sglang",
        "model": "llama-3.1-8b",
        "gpu": "h200",
        "num_blocks": 1000,
        "max_model_len": 512,
        "enable_hierarchical_cache": True,
        **options,
    }
    with pytest.raises(ps.PagesimError) as caught:
        new_scheduler(EngineConfig(checked(System, system)))
    assert said in str(caught.value)


@pytest.mark.parametrize("backend", ["file", "mooncake", "hf3fs", "nixl"])
def test_storage_behind_the_host_is_refused_by_name(backend: str) -> None:
    line = f"sglang serve {MODEL} --enable-hierarchical-cache --hicache-storage-backend {backend}"
    assert refusal(line) == (
        f"--serve: --hicache-storage-backend {backend} affects scheduling and is not modelled; leave it out. "
        "The flag keeps prefixes in a storage behind the host, from which they come when the clock allows."
    )
