"""``pagesim plan``: as a table, as JSON and as a picture; and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "plan.md"


def test_a_plan_ends_with_the_lines_of_the_engines_log_and_with_what_really_runs(succeeds):
    said = succeeds("plan", "--model", "qwen3-14b", "--gpu", "l40s", "--available-gib", "11.06").out
    *_, available, tokens, concurrency, rounding, at_once = said.splitlines()
    assert available == "Available KV cache memory: 11.06 GiB"
    assert tokens == "GPU KV cache size: 72,480 tokens"
    assert concurrency == "Maximum concurrency for 40,960 tokens per request: 1.77x"
    assert rounding == "A log's GiB have two decimals: behind these are 72,448 to 72,512 tokens"
    assert at_once == "Found by replaying them: 1 request of 40,960 tokens at once, none preempted"


def test_what_is_estimated_is_said_to_be(succeeds):
    said = succeeds("plan", "--model", "llama-3.1-8b", "--gpu", "h100").out
    for part, known in (("weights", "exact"), ("activations", "estimated"), ("CUDA graphs", "estimated")):
        (line,) = [line for line in said.splitlines() if line.strip().startswith(part)]
        assert line.split()[-1] == known
    assert "rounding" not in said


def test_json_holds_the_same_and_nothing_else_is_printed(succeeds):
    plan = succeeds("plan", "--model", "llama-3.1-8b", "--gpu", "h100", "--json").json
    assert sum(plan["memory"].values()) == 85_045_477_376
    assert plan["num_blocks"] == plan["memory"]["kv_cache_bytes"] // plan["block_bytes"]
    assert plan["log"][2].endswith(f"{plan['max_concurrency']:.2f}x")
    assert plan["at_once"] == int(plan["max_concurrency"])
    assert plan["options"]["gpu_memory_utilization"] == 0.92


def test_a_config_of_ones_own_is_a_model(succeeds, tmp_path):
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps(
            {
                **{"model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192},
                **{"num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8},
                **{"vocab_size": 128256, "max_position_embeddings": 131072, "tie_word_embeddings": True},
            }
        )
    )
    mine, named = (
        succeeds("plan", "--model", name, "--gpu", "l4", "--json").json for name in (config, "llama-3.2-1b")
    )
    assert mine["memory"] == named["memory"]
    assert mine["at_once"] == named["at_once"] == 4


@pytest.mark.parametrize("name", ["plan", "plan.png", "my.plan.svg"])
def test_a_plan_is_drawn_as_a_bar_in_two_files(succeeds, tmp_path, name):
    succeeds("plan", "--model", "llama-3.1-8b", "--gpu", "h100", "--plot", tmp_path / "out" / name)
    stem = name.removesuffix(".png").removesuffix(".svg")
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [f"{stem}.png", f"{stem}.svg"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--model", "llama-3.1-8b", "--gpu", "l4"), "lower max_model_len to at most "),
        (("--model", "opt-66b", "--gpu", "l4"), "that fits is 8"),
        (("--available-gib", "0"), "available_gib is 0.0; it must be above 0"),
        (("--available-gib", "nan"), "available_gib is nan; it must be above 0"),
        (("--max-num-seqs", "0"), "max_num_seqs"),
    ],
)
def test_what_does_not_start_is_refused_in_a_sentence_that_says_what_to_change(refused, arguments, sentence):
    assert sentence in refused("plan", *arguments)


def test_the_page_shows_what_the_commands_print(succeeds, refused):
    text = PAGE.read_text(encoding="utf-8")
    said = succeeds("plan", "--model", "llama-3.1-8b", "--gpu", "h100", "--max-model-len", "32768").out
    assert "\n".join(line.rstrip() for line in said.strip().splitlines()) in text
    assert refused("plan", "--model", "llama-3.1-8b", "--gpu", "l4") in text
