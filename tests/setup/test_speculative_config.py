"""What command lines with drafts mean, as vLLM 0.33.0's sources have it, and what of them is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pagesim.errors import PagesimError
from pagesim.models import model
from pagesim.models.drafters import draft_bytes
from pagesim.scheduling.speculative_config import DraftRules, read_speculative_config
from pagesim.setup.engine_config import EngineConfig
from pagesim.setup.serve import read_serve
from pagesim.setup.system import System

NO_LIMIT = DraftRules(1).max_concurrency


def rules(*, caches: bool = True, connects: bool = False, **config: Any) -> tuple[int, ...]:
    """K, LK, PL, HL, DS and whether a hit drops a block."""
    found = read_speculative_config(json.dumps(config)).rules(
        caches=caches, connects=connects, max_num_batched_tokens=2048
    )
    return (
        *(found.num_speculative_tokens, found.lookahead, found.prefill_lookahead),
        *(found.hash_lookahead, found.draft_slots, found.drops_block),
    )


@pytest.mark.parametrize(
    ("config", "numbers"),
    [
        ({"method": "mtp"}, (4, 4, 1, 1, 0, False)),
        ({"method": "deepseek_mtp"}, (4, 4, 1, 1, 0, False)),
        ({"method": "qwen3_next_mtp"}, (4, 4, 1, 1, 0, False)),
        ({"method": "mtp", "n_predict": 2}, (4, 4, 4, 4, 0, False)),
        ({"method": "eagle3", "model": "a/head"}, (4, 4, 1, 1, 0, False)),
        ({"method": "eagle3", "parallel-drafting": True}, (4, 4, 1, 1, 3, False)),
        ({"method": "draft_model", "parallel_drafting": True}, (4, 4, 0, 0, 4, False)),
        ({"method": "ngram", "prompt_lookup_max": 4}, (4, 0, 0, 0, 0, False)),
        ({"method": "ngram_gpu"}, (4, 0, 0, 0, 0, False)),
        ({"method": "suffix"}, (4, 0, 0, 0, 0, False)),
        ({"method": "dflash"}, (4, 5, 1, 0, 0, False)),
        ({"method": "dspark"}, (4, 4, 1, 0, 0, False)),
        ({"model": "[ngram]"}, (4, 0, 0, 0, 0, False)),
        ({"model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"}, (4, 4, 1, 1, 0, False)),
        ({"model": "yuhuili/EAGLE-LLaMA3-Instruct-8B"}, (4, 4, 1, 1, 0, False)),
        ({"model": "z-lab/Qwen3-8B-DFlash-b16"}, (4, 5, 1, 0, 0, False)),
        ({"model": "google/gemma-4-31B-it-assistant"}, (4, 4, 1, 1, 0, False)),
        ({"model": "Qwen/Qwen3-0.6B"}, (4, 4, 0, 0, 1, False)),
        ({"method": "mtp", "connects": True}, (4, 4, 1, 0, 0, True)),
        ({"method": "mtp", "caches": False}, (4, 4, 1, 0, 0, False)),
        ({"method": "mtp", "disable_lookahead_block_hashes": True}, (4, 4, 1, 0, 0, True)),
        ({"method": "mtp", "disable_eagle_block_drop": True}, (4, 4, 1, 0, 0, False)),
    ],
    ids=str,
)
def test_a_method_has_the_five_numbers_of_the_release(
    config: dict[str, Any], numbers: tuple[int, ...]
) -> None:
    assert rules(num_speculative_tokens=4, **config) == numbers


def test_the_drafts_of_the_next_step_follow_the_requests_of_this_one_and_gaps_carry_the_last_on() -> None:
    schedule = [[9, 16, 1], [2, 4, 3]]
    config = {
        "method": "ngram",
        "num_speculative_tokens": 2,
        "num_speculative_tokens_per_batch_size": schedule,
    }
    found = read_speculative_config(json.dumps(config)).rules(
        caches=True, connects=False, max_num_batched_tokens=64
    )
    assert [found.drafts_after(requests) for requests in (1, 2, 4, 5, 8, 9, 16, 40)] == [
        0,
        2,
        2,
        2,
        2,
        1,
        1,
        1,
    ]


def test_a_mask_of_drafts_bounds_the_requests_that_run() -> None:
    config = read_speculative_config('{"method": "dflash", "model": "x", "num_speculative_tokens": 15}')
    found = config.rules(caches=True, connects=False, max_num_batched_tokens=2048)
    assert (found.lookahead, found.max_concurrency) == (16, 128)
    assert DraftRules(3).max_concurrency == NO_LIMIT


def test_unconditional_rates_and_a_mean_length_say_the_acceptance_by_position() -> None:
    def acceptance(**config: Any) -> tuple[float, ...]:
        given = {"method": "mtp", "num_speculative_tokens": 3, **config}
        return read_speculative_config(json.dumps(given)).acceptance(None)

    assert acceptance(synthetic_acceptance_rates=[0.8, 0.4, 0.0]) == (0.8, 0.5, 0.0)
    (rate,) = acceptance(synthetic_acceptance_length=2.5)
    assert 1 + rate + rate**2 + rate**3 == pytest.approx(2.5)
    assert acceptance() == (0.85, 0.75, 0.65)
    assert read_speculative_config('{"method": "mtp"}').acceptance(0.3) == (0.3,)


@pytest.mark.parametrize(
    "words",
    [
        """--speculative-config '{"method": "mtp", "num_speculative_tokens": 2}'""",
        """-sc '{"method": "qwen3_next_mtp", "num-speculative-tokens": 2}'""",
        "--speculative-config.method mtp --speculative-config.num_speculative_tokens 2",
        "--spec-method mtp --spec-tokens 2",
        """-sc '{"method": "mtp"}' --spec-tokens 2""",
    ],
)
def test_all_spellings_of_a_line_plan_the_same_blocks(words: str) -> None:
    line = read_serve(f"vllm serve Qwen/Qwen3-Next-80B-A3B-Instruct -tp 4 {words}")
    config = EngineConfig(System(**line.options, gpu="h100"))
    plan = config.blocks
    assert plan is not None
    assert [len(group.layers) for group in plan.groups] == [12, 12, 12, 13]
    assert config.options.draft_rules.lookahead == 2


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("""-sc '{"method": "mtp", "num_speculative_tokens": 2}' --spec-tokens 2""", "which is a flag, too"),
        ("--speculative-config []", "it must be a JSON object with a method"),
    ],
)
def test_lines_that_contradict_themselves_are_refused(line: str, sentence: str) -> None:
    with pytest.raises(PagesimError, match=sentence):
        read_serve(f"vllm serve llama-3.1-8b {line}")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"speculative_config": '{"method": "mtp"}'}, "has no num_speculative_tokens"),
        (
            {
                "speculative_config": '{"method": "suffix", "num_speculative_tokens": 8}',
                "async_scheduling": True,
            },
            "async_scheduling is on, and vLLM drafts with suffix in its V1 model runner",
        ),
        (
            {"speculative_config": '{"model": "no/such-model", "num_speculative_tokens": 3}'},
            "the model that drafts is not known",
        ),
        (
            {
                "model": "step-3.5-flash",
                "speculative_config": '{"method": "mtp", "num_speculative_tokens": 4}',
            },
            "with 3 MTP modules it must be a multiple of them",
        ),
    ],
)
def test_what_the_server_or_the_plan_cannot_start_with_is_refused(
    options: dict[str, Any], sentence: str
) -> None:
    config = EngineConfig(System(policy="vllm-v1", num_blocks=4000, **options))
    with pytest.raises(PagesimError, match=sentence):
        _ = config.capacity


def test_a_drafters_layers_are_its_models_or_like_the_targets_last() -> None:
    def layers(target: str, **config: Any) -> list[str]:
        given = json.dumps({"num_speculative_tokens": 3, **config})
        return [
            f"{layer.kind} {layer.kv_heads}×{layer.head_dim}" if layer.kind != "latent" else "latent"
            for layer in EngineConfig(
                System(policy="vllm-v1", model=target, speculative_config=given)
            ).drafting.layers
        ]

    assert layers("llama-3.1-8b", method="ngram") == []
    assert layers("llama-3.1-8b", method="eagle3", model="some/head") == ["full 8×128"]
    assert layers("llama-3.1-8b", model="llama-3.2-1b") == ["full 8×64"] * 16
    assert layers("deepseek-v3", method="mtp") == ["latent"]
    assert layers("gpt-oss-20b", method="eagle3") == ["full 8×64"]
    assert layers("step-3.5-flash", method="mtp") == ["window 8×128"] * 3
    assert layers("gemma-4-31b", method="mtp") == []
    assert layers("qwen3-8b", method="dflash") == ["full 8×128"] * 5


def test_a_drafters_weights_leave_the_cache() -> None:
    # DeepSeek-V3's README_WEIGHTS.md: 11.5 billion parameters of the module's own, in FP8 but for a few.
    assert draft_bytes("mtp", model("deepseek-v3"), None, 1, 1) == pytest.approx(11.5e9, rel=0.03)
    small = model("qwen3-0.6b")
    assert draft_bytes("draft_model", model("qwen3-8b"), small, 1, 1) == small.weight_bytes_per_gpu(1)
    assert draft_bytes("ngram", model("qwen3-8b"), None, 1, 1) == 0

    def left(**options: Any) -> int:
        return EngineConfig(
            System(policy="vllm-v1", model="qwen3-8b", gpu="h100", **options)
        ).capacity.num_blocks

    config = json.dumps({"model": "qwen3-0.6b", "num_speculative_tokens": 4})
    block, drafters = 36 * 16 * 4096, 28 * 16 * 4096
    lost = left() * block - left(speculative_config=config) * (block + drafters)
    assert lost == pytest.approx(small.weight_bytes_per_gpu(1), abs=block + drafters)
