"""What one request holds: of a window what it reaches, of states a block a group, all in whole blocks."""

from __future__ import annotations

import pytest

from pagesim.errors import PagesimError
from pagesim.experiments.holdings import Holding, holding
from pagesim.setup.system import System


def of(model: str, tokens: int, **options: object) -> Holding:
    asked = {"policy": "vllm-v1", "model": model, "gpu": "h100", "num_blocks": 20_000, "max_model_len": 32768}
    return holding(System.model_validate({**asked, **options}), tokens)


@pytest.mark.parametrize(
    ("model", "block_bytes"),
    [("llama-3.1-8b", 2_097_152), ("gemma3-27b", 1_310_720), ("qwen3-next-80b", 14_155_776)],
)
def test_its_bytes_are_its_blocks(model: str, block_bytes: int) -> None:
    one = of(model, 5000)
    assert one.all_bytes == one.blocks * block_bytes
    assert one.tokens == 4999


def test_full_attention_keeps_every_token() -> None:
    assert of("llama-3.1-8b", 4096).bytes["used"] == 4095 * 131_072


def test_a_window_keeps_no_more_of_a_longer_request() -> None:
    """Gemma 3 27B: six groups of windows of 1,024 tokens, which reach into 65 blocks of 16."""
    shorter, longer = of("gemma3-27b", 8192), of("gemma3-27b", 16384)
    assert shorter.blocks == 6 * 65 + 8192 // 16
    assert longer.blocks - shorter.blocks == (16384 - 8192) // 16


def test_all_that_is_in_flight_is_held_while_a_prompt_is_computed() -> None:
    small, large = (of("gemma3-27b", 16384, max_num_batched_tokens=tokens) for tokens in (2048, 8192))
    assert small.blocks == large.blocks < small.most_blocks < large.most_blocks


def test_of_states_every_group_has_one_however_long_the_request() -> None:
    """Qwen3-Next: three groups of states beside one of full attention in blocks of 576 tokens."""
    shorter, longer = of("qwen3-next-80b", 1000), of("qwen3-next-80b", 10_000)
    assert shorter.bytes["state"] == longer.bytes["state"] > 0
    assert (shorter.blocks, longer.blocks) == (3 + 2, 3 + 18)


def test_a_request_that_is_longer_than_the_longest_is_refused() -> None:
    with pytest.raises(PagesimError, match="max_model_len"):
        of("llama-3.1-8b", 40_000)


def test_one_without_a_prompt_is_refused() -> None:
    with pytest.raises(PagesimError, match="must be above the 128"):
        of("llama-3.1-8b", 128)
