"""Caches in int8 and FP8 with a scale a token and head: what they take, cost, and where they are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pagesim as ps
from pagesim.costs import EngineTime, Roofline, step_shape
from pagesim.errors import PagesimError
from pagesim.experiments.plan import plan
from pagesim.hardware import gpu
from pagesim.models import model
from pagesim.models.layers import FullLayer, StateLayer
from pagesim.setup.engine_config import EngineConfig
from pagesim.setup.prepare import prepare
from pagesim.setup.system import System
from pagesim.sizing import plan_blocks

DTYPES = ("int8_per_token_head", "fp8_per_token_head")
ONE = ps.Trace(np.zeros(1), np.array([20]), np.array([5]))


def page(block: int, kv_heads: int, head_dim: int) -> int:
    """Return the bytes of a layer's page by the rule of vLLM's Triton backend.

    ``num_heads · tokens · content``, of which the content of a head's token are the bytes of its key and
    of its value, and a float32 behind each.
    """
    return kv_heads * block * (head_dim + head_dim + 2 * 4)


def system(policy: str = "vllm-v1", **options: Any) -> System:
    given = {"model": "llama-3.1-8b", "gpu": "h100", "kv_cache_dtype": DTYPES[0], **options}
    return System(policy=policy, **given)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_page_holds_a_float32_behind_every_key_and_every_value(dtype):
    assert plan(system(kv_cache_dtype=dtype)).blocks.bytes_per_block == 32 * page(16, 8, 128)
    halved = system(kv_cache_dtype=dtype, tensor_parallel_size=2, block_size=32)
    assert plan(halved).blocks.bytes_per_block == 32 * page(32, 4, 128)
    replicated = system(model="llama-3.1-70b", tensor_parallel_size=16, kv_cache_dtype=dtype)
    assert EngineConfig(replicated).block.bytes == 80 * page(16, 1, 128)


def test_a_state_gets_a_block_of_as_many_tokens_as_their_bytes_with_scales_need():
    state = StateLayer((3, 8192), (32, 128, 128), checkpoint=64)
    how = {"max_model_len": 8192, "in_flight_tokens": 2048, "num_blocks": 100, "kv_dtype": DTYPES[0]}
    blocks = plan_blocks([state, FullLayer(2, 256)], **how)
    tokens = 64 * -(-state.state_bytes() // (64 * page(1, 2, 256)))
    assert {group.block_size for group in blocks.groups} == {tokens}
    assert blocks.bytes_per_block == page(tokens, 2, 256)


@pytest.mark.parametrize("dtype", DTYPES)
def test_decoding_reads_the_scales_of_every_token_too(dtype):
    def time_of_context(kv_dtype: str) -> int:
        cost = Roofline(model("llama-3.1-8b"), gpu("h100"), kv_dtype=kv_dtype, engine=EngineTime())
        return cost.iteration(step_shape(8, 8 * 60_000)) - cost.iteration(step_shape(8, 8 * 20_000))

    assert time_of_context(dtype) / time_of_context("fp8") == pytest.approx((128 + 4) / 128, rel=1e-4)


def test_a_run_has_as_many_blocks_as_fit_with_scales():
    def blocks(kv_dtype: str) -> int:
        sized = EngineConfig(system(kv_cache_dtype=kv_dtype)).capacity
        return sized.num_blocks

    assert blocks(DTYPES[0]) == blocks(DTYPES[1])
    assert blocks(DTYPES[0]) / blocks("fp8") == pytest.approx(128 / 132, rel=1e-4)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"vllm_version": "0.19.0"},
            "int8_per_token_head, and what a block of vLLM 0.19.0 takes with a scale of each token and head "
            "is not known: choose vllm_version 0.33.0",
        ),
        ({"policy": "vllm-sosp"}, "what a block of policy vllm-sosp takes"),
        ({"policy": "sglang"}, "what a block of policy sglang takes"),
        ({"policy": "jenga", "vllm_version": "0.19.0"}, "vLLM 0.19.0"),
        (
            {"model": "deepseek-v3", "tensor_parallel_size": 8},
            "no kernel of vLLM keeps latent vectors \\(MLA\\) so: choose fp16, bf16 or fp8",
        ),
    ],
)
def test_what_is_not_known_is_refused_in_a_sentence(given, says):
    with pytest.raises(PagesimError, match=says):
        prepare(system(**given), ONE)
