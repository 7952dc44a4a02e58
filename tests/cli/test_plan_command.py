"""``pagesim plan``: as a table, as JSON and as a picture; and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import pagesim as ps

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "plan.md"


SHAPE = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}
GEMMA_4 = """
max_model_len = 262144
layers = [
    { repeat = 5, of = [
        { repeat = 5, kind = "window", kv_heads = 8, head_dim = 256, window = 1024 },
        { kind = "full", kv_heads = 2, head_dim = 512 },
    ] },
]
"""


def test_a_model_whose_config_is_refused_is_planned_from_the_layer_file_that_the_error_asks_for(
    succeeds, refused, tmp_path
):
    """Gemma-4-26B-A4B on an H100: vLLM 0.33.0 itself makes 32,768 blocks, 165,982 tokens and 5.065x."""
    config = {**SHAPE, "model_type": "llama", "global_head_dim": 512}
    (tmp_path / "config.json").write_text(json.dumps(config))
    how = ("--gpu", "h100", "--available-gib", "20", "--max-model-len", "32768")
    error = refused("plan", "--model", tmp_path, *how)
    page, heading = re.search(r'\((docs/\S+), "(.+)"\)', " ".join(error.split())).groups()
    assert PAGE.as_posix().endswith(page)
    assert f"\n## {heading}\n" in PAGE.read_text()
    file = tmp_path / "gemma.toml"
    file.write_text(GEMMA_4)
    told = succeeds("plan", "--model", file, *how).out
    assert "32,768 blocks of 655,360 bytes each" in told
    assert "GPU KV cache size: 165,982 tokens" in told
    assert "Maximum concurrency for 32,768 tokens per request: 5.07x" in told


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


@pytest.mark.parametrize(
    ("config", "known", "said"),
    [
        ({**SHAPE, "model_type": "llama"}, "exact", None),
        (
            {**SHAPE, "model_type": "llama", "num_new_experts": 8},
            "estimated",
            "has num_new_experts, which may",
        ),
        ({**SHAPE, "model_type": "of_tomorrow"}, "estimated", "counted as if it were LLaMA"),
        (
            {
                "model_type": "llava",
                "text_config": {**SHAPE, "model_type": "llama"},
                "vision_config": {"a": 1},
            },
            "language model only",
            "its vision tower is left out",
        ),
    ],
)
def test_a_plan_and_a_run_say_how_far_the_weights_can_be_trusted(config, known, said, succeeds, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    served = ("--model", tmp_path, "--gpu", "h100")
    plan = succeeds("plan", *served)
    (line,) = [line for line in plan.out.splitlines() if line.strip().startswith("weights")]
    assert line.strip().endswith(known)
    load = ("--trace", "fixed:100,10", "--arrivals", "poisson", "--rate", "1", "--num-requests", "2")
    run = succeeds("run", "--policy", "vllm-v1", *served, *load)
    for outcome in (plan, run):
        assert said is None or said in " ".join(outcome.err.split())


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


LAYOUTS = Path(__file__).parents[1] / "golden" / "layouts"


def of_layers(name: str, *flags: str, gib: float = 40) -> tuple[object, ...]:
    file = LAYOUTS / f"{name}.toml"
    return (
        *("plan", "--model", file, "--gpu", "h100", "--max-model-len", "32768", "--available-gib", gib),
        *("--max-num-batched-tokens", "8192", "--kv-cache-dtype", "bf16", *flags, "--json"),
    )


@pytest.mark.slow_but("gpt-oss-20b", "gemma3-27b half", "qwen3-next-80b", "deepseek-v3")
@pytest.mark.parametrize(
    ("asked", "blocks", "block_bytes", "concurrency", "at_once"),
    [
        pytest.param(of_layers(name, *flags, gib=gib), *printed, id=" ".join([name, *said]))
        for name, said, flags, gib, printed in [
            ("gpt-oss-20b", (), (), 40, (109226, 393216, "35.45", 53)),
            ("gemma3-27b", (), (), 40, (32768, 1310720, "3.82", 13)),
            ("gemma3-27b", ["2048"], ["--max-num-batched-tokens", "2048"], 40, (32768, 1310720, "8.25", 13)),
            ("gemma3-27b", ["off"], ["--disable-hybrid-kv-cache-manager"], 40, (5285, 8126464, "2.58", 2)),
            ("gemma3-27b", ["half"], (), 20, (16384, 1310720, "1.91", 6)),
            ("gemma3-27b", ["half sync"], ["--no-async-scheduling"], 20, (16384, 1310720, "2.97", 6)),
            ("llama4-scout", (), (), 40, (54613, 786432, "8.21", 15)),
            (
                *("llama4-scout", ["off"], ["--disable-hybrid-kv-cache-manager"], 40),
                (13653, 3145728, "6.67", 6),
            ),
            ("qwen3-next-80b", (), (), 40, (3034, 14155776, "45.97", 48)),
            ("qwen3-next-80b", ["fp8"], ["--kv-cache-dtype", "fp8"], 40, (3212, 13369344, "80.30", 86)),
            ("qwen3-next-80b", ["none"], ["--no-enable-prefix-caching"], 40, (3212, 13369344, "50.19", 50)),
            ("jamba-1.5-mini", (), (), 40, (32768, 1310720, "77.28", 77)),
            ("deepseek-v3", (), (), 40, (38199, 1124352, "18.65", 18)),
            ("deepseek-v3.2", (), ["--kv-cache-dtype", "fp8"], 40, (13961, 3076352, "27.27", 27)),
        ]
    ],
)
def test_a_list_of_layers_has_the_blocks_and_the_concurrency_that_vllm_prints(
    succeeds, asked, blocks, block_bytes, concurrency, at_once
):
    plan = succeeds(*asked).json
    assert (plan["num_blocks"], plan["block_bytes"]) == (blocks, block_bytes)
    assert plan["log"][2] == f"Maximum concurrency for 32,768 tokens per request: {concurrency}x"
    assert f"{plan['tokens']:,}" in plan["log"][1]
    assert plan["at_once"] == at_once


def test_json_has_a_plan_of_each_group_and_how_many_run_at_once(succeeds):
    plan = succeeds(*of_layers("gemma3-27b")).json
    *windows, full = plan["groups"]
    assert [group["layers"] for group in windows] == [9, 9, 9, 9, 8, 8]
    assert {(group["kind"], group["window"], group["block_size"]) for group in windows} == {
        ("window", 1024, 16)
    }
    assert (full["kind"], full["layers"], full["blocks_per_request"]) == ("full", 10, 2048)
    assert [round(group["padding"], 3) for group in windows[3:]] == [0.1, 0.2, 0.2]
    assert round(plan["padding"], 3) == 0.114
    # A window counts with all that can be in flight, and holds little of it once prompts have run.
    assert (plan["at_once"], round(plan["max_concurrency"], 2)) == (13, 3.82)
    assert plan["options"]["async_scheduling"] is True


def test_the_blocks_of_each_group_are_shown_with_like_groups_in_a_row(succeeds):
    said = succeeds(*of_layers("gemma3-27b")[:-1]).out
    rows = [line.split() for line in said.splitlines() if " × " in line]
    assert rows == [
        ["4", "×", "window", "1,024", "9", "16", "131,072", "10.0", "1,089"],
        ["2", "×", "window", "1,024", "8", "16", "131,072", "20.0", "1,089"],
        ["1", "×", "full", "10", "16", "131,072", "0.0", "2,048"],
    ]
    assert "32,768 blocks of 1,310,720 bytes each on each GPU, 11.4 % of them padding" in said
    assert "GPU KV cache size: 125,115 tokens" in said
    assert "Found by replaying them: 13 requests" in said


def test_layers_kept_by_another_rule_than_their_own_are_named(succeeds):
    off = of_layers("llama4-scout", "--disable-hybrid-kv-cache-manager")
    assert "1 × full and chunk" in succeeds(*off[:-1]).out
    assert "1 × latent and indexer" in succeeds(*of_layers("deepseek-v3.2")[:-1]).out


def test_a_list_of_layers_without_weights_needs_the_memory_of_the_cache(refused):
    said = refused("plan", "--model", LAYOUTS / "gemma3-27b.toml", "--gpu", "h100")
    assert said.startswith("model gemma3-27b says only what its layers keep")
    assert "available_gib" in said


@pytest.mark.parametrize("name", ["plan", "plan.png", "my.plan.svg"])
def test_a_plan_is_drawn_as_a_bar_in_two_files(succeeds, tmp_path, name):
    succeeds("plan", "--model", "llama-3.1-8b", "--gpu", "h100", "--plot", tmp_path / "out" / name)
    stem = name.removesuffix(".png").removesuffix(".svg")
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [f"{stem}.png", f"{stem}.svg"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--model", "llama-3.1-8b", "--gpu", "l4"), "lower max_model_len to at most "),
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


def test_the_page_shows_what_the_layers_on_it_print(succeeds, tmp_path):
    text = PAGE.read_text(encoding="utf-8")
    layers = text.split("```toml\n")[1].split("```")[0]
    (tmp_path / "gemma.toml").write_text(layers, encoding="utf-8")
    flags = ("--gpu", "h100", "--available-gib", "40")
    said = succeeds("plan", "--model", tmp_path / "gemma.toml", *flags).out.replace(f"{tmp_path}/", "")
    shown = [line.rstrip() for line in said.strip().splitlines()]
    assert "\n".join(shown) in text
    one_at_a_time = succeeds("plan", "--model", tmp_path / "gemma.toml", *flags, "--no-async-scheduling").out
    (concurrency,) = [line for line in one_at_a_time.splitlines() if line.startswith("Maximum concurrency")]
    assert f"with `--no-async-scheduling` it is {concurrency.split()[-1].rstrip('x')}." in text


def test_a_plan_of_a_model_whose_config_was_not_seen_says_so_beside_the_output(cli):
    flags = ("plan", "--model", "mistral-small-3", "--gpu", "h200", "--tensor-parallel-size", "8")
    shown = cli(*flags)
    assert "note: model mistral-small-3 is unverified: " in shown.err
    assert "unverified" not in shown.out
    (note,) = cli(*flags, "--json").json["notes"]
    assert note.startswith("model mistral-small-3 is unverified: ")


GRID = ("plan", "--model", "llama-3.1-70b", "--gpu", "h100", "--max-model-len", "8192")


def test_plans_stand_side_by_side_and_one_that_does_not_fit_says_why(succeeds, tmp_path):
    done = succeeds(*GRID, "--grid", "tensor_parallel_size=1,2,4", "--plot", tmp_path / "gpus.png")
    rows = [line.split() for line in done.out.splitlines() if line.split()[:1] in (["1"], ["2"], ["4"])]
    assert [row[0] for row in rows] == ["1", "2", "4"]
    assert rows[0][-1] == "0"
    assert "tensor_parallel_size 1: llama-3.1-70b with tensor_parallel_size 1 does not fit" in done.out
    assert {path.name for path in tmp_path.iterdir()} == {"gpus.png", "gpus.svg"}


def test_a_point_of_a_grid_is_the_plan_alone(succeeds):
    alone = succeeds(*GRID, "--tensor-parallel-size", "4", "--json").json
    first, second = succeeds(*GRID, "--grid", "tensor_parallel_size=1,4", "--json").json
    assert first["plan"] is None
    assert "does not fit" in first["refusal"]
    assert second == {"point": {"tensor_parallel_size": 4}, "plan": alone, "refusal": None}


def test_a_point_that_cannot_be_planned_is_a_row_that_says_why(succeeds, refused):
    grid = ("plan", "--gpu", "h100", "--grid")
    there, absent = succeeds(*grid, "model=llama-3.1-8b,llama-9-9b", "--json").json
    assert there["plan"]["model"] == "llama-3.1-8b"
    assert "no model is named 'llama-9-9b'" in absent["refusal"]
    assert "no model is named 'llama-9-9b'" in refused(*grid, "model=llama-9-9b")


def test_what_a_plan_does_not_depend_on_cannot_vary(refused):
    assert "rate cannot vary in a plan" in refused("plan", "--grid", "rate=1,2")
    many = ",".join(str(size) for size in range(1, 70))
    assert "the bound is 60" in refused("plan", "--grid", f"max_num_seqs={many}")


def test_a_servers_line_gives_the_plan_of_its_flags(succeeds):
    line = (
        "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 32k --kv-cache-dtype fp8 -tp 2 --port 1"
    )
    served = succeeds("plan", "--gpu", "h100", "--serve", line, "--json")
    flags = ("--max-model-len", "32000", "--kv-cache-dtype", "fp8", "--tensor-parallel-size", "2")
    named = succeeds("plan", "--gpu", "h100", "--model", "llama-3.1-8b", *flags, "--json")
    assert served.json == named.json
    assert "without an effect here: --port" in served.err


def test_what_is_of_vllms_plans_alone_is_refused_with_a_line_of_sglangs(refused):
    line = ("plan", "--gpu", "h100", "--serve", "sglang serve Qwen/Qwen3-8B")
    for flag in (("--available-gib", "40"), ("--plot", "x")):
        assert "are for plans of vLLM; leave them out" in refused(*line, *flag)
    assert "a plan is one of vLLM's memory" in refused(*line, "--grid", "tensor_parallel_size=1,2")
    assert "--serve needs the GPU" in refused("plan", "--serve", "vllm serve Qwen/Qwen3-8B")


def test_the_bytes_of_the_cache_may_have_a_unit(succeeds):
    """A token of Llama 3.1 8B takes 2 · 32 layers · 8 heads · 128 · 2 bytes: 20 GiB hold 163,840."""
    told = succeeds(
        "plan", "--model", "llama-3.1-8b", "--gpu", "h100", "--kv-cache-memory-bytes", "20GiB"
    ).out
    assert "GPU KV cache size: 163,840 tokens" in told


STEPPED = ("plan", "--gpu", "h100", "--model", "llama-3.1-8b", "--kv-cache-dtype", "fp8")


def test_a_step_takes_what_its_terms_add_up_to(succeeds):
    """64 decodes at 4,096 tokens read 64 · 4,096 · 65,536 bytes of an FP8 cache at 3.35 TB/s at best."""
    step = succeeds(*STEPPED, "--step", "64x4096", "--json").json["step"]
    assert sum(step["parts"].values()) == pytest.approx(step["seconds"], rel=1e-6)
    least = 64 * 4096 * (32 * 2 * 8 * 128) / 3.35e12
    assert least < step["parts"]["decode attention"] < 1.5 * least
    shown = succeeds(*STEPPED, "--step", "64x4096").out
    assert re.search(rf"decode attention +{1e3 * step['parts']['decode attention']:.3f} ", shown)
    assert re.search(rf"in all +{1e3 * step['seconds']:.3f} +100.0", shown)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gpt-oss-20b", "llama4-scout"])
def test_a_step_takes_as_long_as_in_a_run(model, succeeds):
    """Of gpt-oss every second layer looks back on 128 tokens; Llama 4 attends within chunks."""
    trace = ps.make_trace("fixed:300,40", arrivals="all-at-once", num_requests=4)
    steps = ps.simulate(
        trace, model=model, gpu="h100", tensor_parallel_size=8, num_blocks=2000, steps="iterations"
    ).steps
    (row,) = steps[steps["sum_context_tokens"] == 4 * 320].to_dict("records")
    of_model = ("--model", model, "--tensor-parallel-size", 8, "--max-model-len", 8192)
    priced = succeeds("plan", "--gpu", "h100", *of_model, "--step", "4x320", "--json").json["step"]
    assert priced["seconds"] == pytest.approx(row["step_s"], rel=1e-9)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--step", "64"), "step is '64'; it must be NxCONTEXT or NxCONTEXT+PROMPT, such as 64x4096+512"),
        (("--step", "64x0"), "nothing decodes, and there is no prompt"),
        (("--step", "1x100", "--grid", "kv_cache_dtype=fp8,bf16"), "step is for one plan"),
    ],
)
def test_what_is_no_step_is_refused(given, said, refused):
    assert said in refused(*STEPPED, *given)
