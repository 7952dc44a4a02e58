"""What `vllm-v1` takes for options that are left out: the defaults of its release's server on the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pagesim as ps
from pagesim.hardware import GpuSpec, gpu
from pagesim.scheduling.options import Machine
from pagesim.scheduling.vllm_releases import GIB, RELEASES
from pagesim.scheduling.vllm_v1_options import VllmV1Options, resolved

ONE = ps.Trace(np.zeros(1), np.array([20]), np.array([5]))


def options_of(**options: Any) -> dict[str, dict[str, Any]]:
    given = {"policy": "vllm-v1", "model": "llama-3.1-8b", "gpu": "h100", **options}
    found: dict[str, dict[str, Any]] = ps.simulate(ONE, steps="none", **given).summary["options"]
    return found


def limits(version: str, name: str, gib: float, longest: int = 32768, **options: Any) -> tuple[Any, Any]:
    machine = Machine(name, int(gib * GIB), longest)
    found = resolved(VllmV1Options(vllm_version=version, **options), machine)
    return found.max_num_batched_tokens, found.max_num_seqs


@pytest.mark.parametrize(
    ("name", "gib", "newest", "older"),
    [
        ("h100", 79.2, (8192, 1024), (8192, 1024)),
        ("b200", 178.0, (16384, 1024), (8192, 1024)),
        ("mine", 160.0, (16384, 1024), (8192, 1024)),
        ("mine", 70.0, (8192, 1024), (8192, 1024)),
        ("mine", 69.9, (2048, 256), (2048, 256)),
        ("NVIDIA A100-SXM4-80GB", 79.2, (2048, 256), (2048, 256)),
        ("GB10", 119.7, (2048, 256), (8192, 1024)),
        ("", 0, (2048, 256), (2048, 256)),
    ],
)
def test_a_server_takes_limits_by_the_memory_and_the_name_of_its_gpu(name, gib, newest, older) -> None:
    assert limits("0.33.0", name, gib) == newest
    assert limits("0.19.0", name, gib) == limits("0.11.2", name, gib) == older


@pytest.mark.parametrize("version", RELEASES)
def test_the_default_of_each_limit_heeds_the_other_and_the_longest_request(version: str) -> None:
    assert limits(version, "", 0, enable_chunked_prefill=False) == (32768, 256)
    assert limits(version, "", 0, 512, max_num_seqs=2) == (1024, 2)
    assert limits(version, "", 0, max_num_batched_tokens=100) == (100, 100)
    assert limits(version, "", 0, max_num_batched_tokens=4096) == (4096, 256)


def test_a_bare_run_is_what_the_newest_release_serves_on_that_gpu() -> None:
    assert options_of() == {
        "given": {},
        "defaults": {
            "vllm_version": "0.33.0",
            "max_num_seqs": 1024,
            "max_num_batched_tokens": 8192,
            "max_cudagraph_capture_size": 512,
            "watermark": 0.0,
            "enable_prefix_caching": True,
            "prefix_cache_retention_interval": 0,
            "enable_chunked_prefill": True,
            "long_prefill_token_threshold": 0,
            "scheduler_reserve_full_isl": True,
            "scheduling_policy": "fcfs",
            "async_scheduling": True,
            "max_model_len": 131072,
            "sizing": "vllm",
            "gpu_memory_utilization": 0.92,
        },
    }


def test_an_older_release_has_defaults_of_its_own_and_none_for_options_it_does_not_know() -> None:
    found = options_of(vllm_version="0.11.2")
    assert found["given"] == {"vllm_version": "0.11.2"}
    assert found["defaults"]["gpu_memory_utilization"] == 0.9
    assert found["defaults"]["async_scheduling"] is False
    assert not {"watermark", "scheduler_reserve_full_isl"} & set(found["defaults"])


def test_options_that_are_given_are_told_from_those_that_were_taken() -> None:
    found = options_of(max_num_seqs=64, gpu_memory_utilization=0.5, enable_prefix_caching=False)
    assert found["given"] == {
        "max_num_seqs": 64,
        "enable_prefix_caching": False,
        "gpu_memory_utilization": 0.5,
    }


def test_a_gpu_of_somebody_else_is_of_a_tier_by_its_memory() -> None:
    large = gpu("h200")
    values = {name: getattr(large, name) for name in GpuSpec.__slots__}
    ps.register("gpu", "giant", GpuSpec(**{**values, "name": "giant", "memory_bytes": 200 * GIB}))
    assert options_of(gpu="giant")["defaults"]["max_num_batched_tokens"] == 16384


def test_a_note_says_what_was_taken_for_the_gpu_at_hand() -> None:
    notes = ps.simulate(ONE, "vllm-v1", gpu="h100", num_blocks=100).notes
    assert any(note.startswith("vllm-v1 on h100 takes by default max_num_seqs 1024") for note in notes)
    of_paper = ps.simulate(ONE, "vllm-sosp", num_blocks=100, cost="affine:0.01,1e-5,1e-7").notes
    assert not of_paper


def test_policies_that_are_compared_are_sized_by_one_rule() -> None:
    found = ps.compare(ONE, ["vllm-sosp", "vllm-v1"], steps="none")
    assert {result.summary["memory"]["num_blocks"] for result in found.values()} == {983, 982}  # a null block
    alone = ps.compare(ONE, ["vllm-v1"], steps="none")["vllm-v1"]
    assert alone.summary["options"]["defaults"]["sizing"] == "vllm"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"vllm_version": "0.12.0"},
            "vllm_version is '0.12.0': input should be '0.1.7', '0.2.0', '0.2.7', '0.11.2', ",
        ),
        ({"vllm_version": "0.19.0", "watermark": 0.1}, "watermark is no option of vLLM 0.19.0; leave it out"),
        (
            {"vllm_version": "0.11.2", "scheduler_reserve_full_isl": False},
            "scheduler_reserve_full_isl is no option of vLLM 0.11.2; leave it out",
        ),
        (
            {"max_num_batched_tokens": 64, "max_num_seqs": 65},
            "max_num_seqs is 65, more than the 64 of max_num_batched_tokens; vLLM does not start so",
        ),
        (
            {"max_num_seqs": 9000},
            "max_num_seqs is 9000, more than the 8192 of max_num_batched_tokens; vLLM does not start so",
        ),
        (
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 512},
            "max_num_batched_tokens is 512, less than the 131072 of max_model_len; without enable_chunked",
        ),
        (
            {"long_prefill_token_threshold": 101, "max_model_len": 100},
            "long_prefill_token_threshold is 101, more than the 100 of max_model_len; vLLM 0.33.0 does not",
        ),
        (
            {"vllm_version": "0.11.2", "async_scheduling": True},
            "async_scheduling of vLLM 0.11.2 is in no log of its decisions; leave it out",
        ),
        (
            {"vllm_version": "0.19.0", "scheduling_policy": "priority"},
            "scheduling_policy priority of vLLM 0.19.0 is in no log of its decisions; leave it out",
        ),
        ({"model": "llama-3.1-405b"}, "llama-3.1-405b with tensor_parallel_size 1 does not fit on h100"),
        (
            {"gpu_memory_utilization": 0.3},
            "max_model_len is 131072 tokens, but the KV cache of llama-3.1-8b on 1 × h100 holds",
        ),
    ],
)
def test_what_a_release_does_not_know_or_does_not_start_with_is_refused(options, sentence) -> None:
    with pytest.raises(ps.PagesimError) as caught:
        options_of(**options)
    assert str(caught.value).startswith(sentence)
