"""A ``vllm serve`` line: what it decides, what has no effect here, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from serve_lines import listed_flags, refusal

import pagesim as ps
from pagesim.setup.serve import ServeLine, read_serve
from pagesim.setup.serve_vllm import readable
from pagesim.setup.serve_vllm_flags import (
    ALIASES,
    FLAGS,
    HARMLESS,
    LAYERED,
    NOTED,
    OLDER,
    REFUSED,
    TAKEN,
    WITHIN_A_REPLICA,
)

MODEL = "meta-llama/Llama-3.1-8B-Instruct"


def options_of(line: str) -> dict[str, Any]:
    """Return what a line decides besides what every line does."""
    options = dict(read_serve(line).options)
    assert options.pop("policy") == "vllm-v1"
    assert options.pop("vllm_version") == "0.33.0"
    return options


def test_every_flag_of_the_release_is_in_exactly_one_class_and_takes_what_it_takes_there() -> None:
    assert listed_flags("vllm-0.33.0") == FLAGS
    classes = (TAKEN, NOTED, WITHIN_A_REPLICA, LAYERED, REFUSED, HARMLESS)
    assert sum(map(len, classes)) == len(FLAGS)
    assert {*ALIASES.values(), *LAYERED} <= set(FLAGS)


def test_whole_experts_change_no_decision_within_a_replica() -> None:
    """Mixtral's 8 experts go evenly on 2 GPUs and not on 3; SGLang deals them over --ep-size of --tp-size."""
    moe = "mixtral-8x7b"
    for line in (f"vllm serve {moe} -tp 2 -ep", f"sglang serve {moe} --tp-size 4 --ep-size 2"):
        (note,) = read_serve(line).notes
        assert re.search(r"without an effect here: --(enable-expert-parallel|ep-size)$", note)
    line = f"sglang serve {moe} --tp-size 2 --ep-size 3"
    assert "would deal the 8 experts of 'mixtral-8x7b' unevenly over 3 of" in refusal(line)
    assert options_of(f"vllm serve {moe} -tp 3 -ep")["enable_expert_parallel"] is True


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        ("-dp 8 -ep", {"data_parallel_size": 8, "enable_expert_parallel": True}),
        (
            "--data-parallel-size 4 --data-parallel-size-local 2 -dph --api-server-count 3",
            {
                "data_parallel_size": 4,
                "data_parallel_size_local": 2,
                "data_parallel_lb": "hybrid",
                "api_server_count": 3,
            },
        ),
        ("-dp 2 -dpe", {"data_parallel_size": 2, "data_parallel_lb": "external"}),
        (
            "-dp 2 --data-parallel-address 10.0.0.1 -dpp 13345 -dpb ray --dp-sync-interval 4",
            {"data_parallel_size": 2, "dp_sync_interval": 4},
        ),
        (
            "-dp 2 -ep --all2all-backend deepep_low_latency",
            {"data_parallel_size": 2, "enable_expert_parallel": True, "max_num_batched_tokens": 256},
        ),
        ("-dp 2 --all2all-backend deepep_low_latency", {"data_parallel_size": 2}),
    ],
)
def test_flags_of_several_ranks_are_taken(flags: str, options: dict[str, Any]) -> None:
    assert options_of(f"vllm serve mixtral-8x7b {flags}") == {"model": "mixtral-8x7b", **options}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("-dp 2 -dph -dpe", "vLLM does not start so"),
        ("-dp 2 --enable-dbo", "--enable-dbo beside --data-parallel-size affects scheduling"),
        ("-dp 2 --data-parallel-rank 1", "--data-parallel-rank 1 affects scheduling"),
        ("-dpl 4", "--data-parallel-size-local 4 affects scheduling and is not modelled; it goes with"),
    ],
)
def test_flags_of_ranks_that_are_not_modelled_are_refused(flags: str, said: str) -> None:
    assert said in refusal(f"vllm serve mixtral-8x7b {flags}")


def test_whole_experts_of_a_model_without_any_are_said_to_be_of_no_use() -> None:
    notes = read_serve(f"vllm serve {MODEL} -ep").notes
    assert notes[1].startswith("vLLM has no use for --enable-expert-parallel here")


@pytest.mark.parametrize(
    ("flags", "remedy"),
    [
        ("--swap-space 4", "recomputed and never swapped; leave it out"),
        ("--swap_space=4", "recomputed and never swapped; leave it out"),
        ("--cuda-graph-sizes 512", "its name is --cudagraph-capture-sizes"),
        ("--use-v2-block-manager", "there is one block manager"),
    ],
)
def test_a_flag_of_an_older_release_is_explained(flags: str, remedy: str) -> None:
    said = refusal(f"vllm serve {MODEL} {flags}")
    assert "is a flag of older releases, which vllm serve 0.33.0 refuses: " in said
    assert remedy in said


def test_no_flag_of_the_release_is_called_older() -> None:
    assert not set(OLDER) & set(FLAGS)


def test_the_cadence_of_prompts_is_taken() -> None:
    assert options_of(f"vllm serve {MODEL} --prefill-schedule-interval 4")["prefill_schedule_interval"] == 4


@pytest.mark.parametrize(
    ("text", "asked"), [("2K", 2 * 1024), ("2k", 2000), ("1.5k", 1500), ("3G", 3 << 30), ("123", 123)]
)
def test_the_bytes_of_the_cache_are_taken_as_people_write_them(text: str, asked: int) -> None:
    line = f"vllm serve {MODEL} --kv-cache-memory-bytes {text}"
    assert options_of(line)["kv_cache_memory_bytes"] == asked


@pytest.mark.parametrize("text", ["auto", "AUTO", "-1"])
def test_the_longest_request_may_be_what_fits(text: str) -> None:
    assert options_of(f"vllm serve {MODEL} --max-model-len {text}")["max_model_len"] == "auto"


@pytest.mark.parametrize(
    "flags",
    [
        "--mamba-cache-mode all",
        "--mamba-block-size 1024",
        "--no-enable-prefix-caching --mamba-block-size 4096 --max-model-len 4096",
    ],
)
def test_how_states_are_cached_has_no_effect(flags: str) -> None:
    """The server sets the mode itself, and the size of a hybrid's blocks of states."""
    layouts = Path(__file__).parents[1] / "golden" / "layouts"
    read = read_serve(f"vllm serve {layouts / 'qwen3-next-80b.toml'} {flags}")
    assert not {name for name in read.options if name.startswith("mamba")}
    assert "without an effect here: --mamba-" in read.notes[0]


@pytest.mark.parametrize(
    "flag", ["-pp 2", "-pp=2", "--pipeline-parallel-size 2", "--pipeline_parallel_size=2"]
)
def test_pipeline_parallelism_is_taken(flag: str) -> None:
    """Beside tensor and expert parallelism, and whatever starts the workers."""
    read = read_serve(f"vllm serve deepseek-v3 -tp 8 {flag} -ep --distributed-executor-backend ray")
    assert read.options["pipeline_parallel_size"] == 2


def test_decode_context_parallelism_is_taken() -> None:
    assert options_of("vllm serve deepseek-v3 -tp 8 -dcp 4")["decode_context_parallel_size"] == 4


def test_a_switch_about_layers_may_be_off_where_a_model_has_such_layers() -> None:
    layouts = Path(__file__).parents[1] / "golden" / "layouts"
    assert options_of(f"vllm serve {layouts / 'gpt-oss-20b.toml'} --no-use-replayssm")


def test_the_hybrid_manager_and_the_retention_of_prefixes_are_taken() -> None:
    def taken(flags: str) -> dict[str, Any]:
        return {
            name: value
            for name, value in options_of(f"vllm serve {MODEL} {flags}").items()
            if name != "model"
        }

    off = "disable_hybrid_kv_cache_manager"
    assert taken("--disable-hybrid-kv-cache-manager") == {off: True}
    assert taken("--no-disable-hybrid-kv-cache-manager") == {off: False}
    assert taken("--enable-hybrid-kv-cache-manager") == {off: False}
    interval = "prefix_cache_retention_interval"
    assert taken("--prefix-cache-retention-interval 1024") == {interval: 1024}
    assert taken("--prefix-cache-retention-interval None") == {interval: -1}
    assert "it must be a whole number" in refusal(f"vllm serve {MODEL} --prefix-cache-retention-interval -1")


def test_a_line_decides_what_its_flags_say() -> None:
    line = (
        f"vllm serve {MODEL} --max-model-len 32768 --kv-cache-dtype fp8 --tensor-parallel-size 2 "
        "--gpu-memory-utilization 0.95 --block-size 32 --max-num-batched-tokens 4k --max-num-seqs 64 "
        "--no-enable-prefix-caching --enable-chunked-prefill --long-prefill-token-threshold 512 "
        "--no-scheduler-reserve-full-isl --watermark 0.01 --async-scheduling --num-gpu-blocks-override 900 "
        "--scheduling-policy priority"
    )
    assert options_of(line) == {
        "model": "llama-3.1-8b",
        "max_model_len": 32768,
        "kv_cache_dtype": "fp8",
        "tensor_parallel_size": 2,
        "gpu_memory_utilization": 0.95,
        "block_size": 32,
        "max_num_batched_tokens": 4000,
        "max_num_seqs": 64,
        "enable_prefix_caching": False,
        "enable_chunked_prefill": True,
        "long_prefill_token_threshold": 512,
        "scheduler_reserve_full_isl": False,
        "watermark": 0.01,
        "async_scheduling": True,
        "num_blocks": 900,
        "scheduling_policy": "priority",
    }


@pytest.mark.parametrize(
    "spelling",
    [
        f"vllm serve {MODEL} --tensor-parallel-size 2",
        f"vllm serve {MODEL} --tensor-parallel-size=2",
        f"vllm serve {MODEL} --tensor_parallel_size 2",
        f"vllm serve {MODEL} --tensor-par 2",
        f"vllm serve {MODEL} -tp 2",
        f"vllm serve -tp=2 {MODEL}",
        f"vllm serve {MODEL} -tp 4 -tp 2",
        f"vllm serve --model {MODEL} -tp 2",
        f"/opt/venv/bin/vllm serve {MODEL} \\\n  -tp 2",
        f"python -m vllm.entrypoints.openai.api_server --model {MODEL} -tp 2",
        "HF_HOME=/data VLLM_LOGGING_LEVEL=DEBUG "
        f"python3.12 -m vllm.entrypoints.openai.api_server --model={MODEL} "
        "-tp 2",
        f"vllm serve '{MODEL}' -O3 -tp 2 --served-model-name one two --api-key abc",
        f"vllm serve {MODEL} -O 3 -tp 2 --compilation-config.mode 3 --hf-token",
    ],
)
def test_a_line_may_be_spelled_as_a_shell_and_vllm_allow(spelling: str) -> None:
    assert options_of(spelling) == {"model": "llama-3.1-8b", "tensor_parallel_size": 2}


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--enable-prefix-caching", True),
        ("--no-enable-prefix-caching", False),
        ("--disable-prefix-caching", False),
        ("--no_enable_prefix_caching", False),
    ],
)
def test_a_switch_is_turned_on_and_off_in_each_of_its_spellings(flag: str, value: bool) -> None:
    assert options_of(f"vllm serve {MODEL} {flag}")["enable_prefix_caching"] is value


@pytest.mark.parametrize(
    ("text", "number"),
    [("32k", 32_000), ("32K", 32_768), ("25.6k", 25_600), ("1m", 1_000_000), ("2G", 2 << 30), (" 7 ", 7)],
)
def test_numbers_are_read_as_vllm_reads_them(text: str, number: int) -> None:
    assert readable(text) == number


def test_what_has_no_effect_here_is_named_in_a_note() -> None:
    line = f"CUDA_VISIBLE_DEVICES=0 vllm serve {MODEL} --port 8000 --trust-remote-code -dp 1 --no-enable-lora"
    assert read_serve(line).notes == (
        "of the vllm serve 0.33.0 line without an effect here: CUDA_VISIBLE_DEVICES, --port, "
        "--trust-remote-code, --data-parallel-size, --enable-lora",
    )
    assert read_serve(f"vllm serve {MODEL} -tp 2").notes == ()


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("", "--serve is ''; it must begin with vllm serve"),
        ("vllm bench latency", "--serve is 'vllm bench latency'; it must begin with vllm serve"),
        ("docker run vllm", "--serve is 'docker run vllm'; it must begin with vllm serve"),
        ("vllm serve 'opt-13b", "--serve cannot be parsed: no closing quotation"),
        ("vllm serve opt-13b &", "--serve holds '&', which means something to a shell only"),
        ("vllm serve opt-13b > log", "--serve holds '>', which means something to a shell only"),
        ("vllm serve $MODEL", "--serve holds '$MODEL', which means something to a shell only"),
        ("vllm serve", "--serve names no model; it must name one model, as in vllm serve MODEL"),
        ("vllm serve opt-13b opt-30b", "--serve names opt-13b and opt-30b; it must name one model"),
        (
            "vllm serve some/model",
            "--serve: no model is named 'some/model'; give its config.json: download ",
        ),
        ("vllm serve opt-13", "--serve: no model is named 'opt-13'; did you mean opt-13b"),
        ("vllm serve opt-13b --wings 2", "--serve: '--wings' is no flag of vllm serve 0.33.0"),
        ("vllm serve opt-13b -x", "--serve: '-x' is no flag of vllm serve 0.33.0"),
        ("vllm serve opt-13b --max-num 2", "--serve: '--max-num' is the beginning of several flags of vllm"),
        ("vllm serve opt-13b --", "--serve: '--' is no flag of vllm serve 0.33.0"),
        ("vllm serve opt-13b -tp", "--serve: -tp needs a value"),
        ("vllm serve opt-13b -tp --port 1", "--serve: -tp needs a value"),
        ("vllm serve opt-13b -tp two", "--serve: --tensor-parallel-size is 'two'; it must be a whole number"),
        ("vllm serve opt-13b --max-model-len 2.5K", "--serve: --max-model-len is '2.5K'; it must be a whole"),
        ("vllm serve opt-13b --watermark x", "--serve: --watermark is 'x'; it must be a number"),
        ("vllm serve opt-13b --enforce-eager=1", "--serve: --enforce-eager takes no value, and has '1'"),
        (
            "vllm serve opt-13b --no-enable-prefix-caching --mamba-block-size 1024",
            "--serve: --mamba-block-size is 1024; without prefix caching it must be the 2048 tokens",
        ),
        (
            "vllm serve opt-13b --kv-cache-memory-bytes 1.5K",
            "--serve: --kv-cache-memory-bytes is '1.5K'; it must be a whole number",
        ),
        (
            "vllm serve opt-13b --max-model-len 4096",
            "--serve: --max-model-len is 4096, more than the 2048 tokens",
        ),
        ("vllm serve opt-13b --kv-cache-dtype fp4", "--serve: --kv-cache-dtype 'fp4' is not modelled"),
        ("vllm serve opt-13b -pp x", "--serve: --pipeline-parallel-size is 'x'; it must be a whole number"),
        (
            "vllm serve opt-13b --enable-lora",
            "--serve: --enable-lora affects scheduling and is not",
        ),
        ("vllm serve opt-13b -q awq", "--serve: --quantization awq affects scheduling and is not"),
        (
            "vllm serve opt-13b --speculative-config ngram",
            "--serve: --speculative-config is 'ngram'; it must be a JSON object with a method",
        ),
        (
            "VLLM_USE_V2_MODEL_RUNNER=0 vllm serve opt-13b",
            "--serve: VLLM_USE_V2_MODEL_RUNNER may affect scheduling",
        ),
    ],
)
def test_a_line_that_cannot_be_run_as_it_stands_is_refused_in_a_sentence(line: str, sentence: str) -> None:
    assert refusal(line).startswith(sentence)


def test_a_model_may_be_its_config(tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "intermediate_size": 128,
        "vocab_size": 100,
        "max_position_embeddings": 512,
    }
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for path in (tmp_path, tmp_path / "config.json"):
        assert options_of(f"vllm serve {path} --max-model-len 500") == {
            "model": str(path),
            "max_model_len": 500,
        }
    assert refusal(f"vllm serve {tmp_path} --max-model-len 513").startswith(
        "--serve: --max-model-len is 513, more"
    )


@pytest.mark.parametrize(
    ("hub", "name"),
    [
        ("facebook/opt-13b", "opt-13b"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"),
        ("meta-llama/Llama-3.2-1B", "llama-3.2-1b"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("Qwen/Qwen3-32B", "qwen3-32b"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"),
    ],
)
def test_models_are_known_by_their_ids_on_hugging_face(hub: str, name: str) -> None:
    from pagesim.models import model

    assert model(hub) is model(name)
    assert options_of(f"vllm serve {hub}") == {"model": name}


def test_what_is_given_beside_a_line_must_not_contradict_it() -> None:
    served = ServeLine({"policy": "vllm-v1", "model": "opt-13b", "max_num_seqs": 64})
    assert served.merged_with({"gpu": "h100", "rate": 2.0, "max_num_seqs": 64}) == {
        "gpu": "h100",
        "rate": 2.0,
        "policy": "vllm-v1",
        "model": "opt-13b",
        "max_num_seqs": 64,
    }
    for given, sentence in (
        ({}, "--serve needs the GPU that is served on; name it with --gpu"),
        (
            {"gpu": "h100", "max_num_seqs": 65},
            "--serve says max_num_seqs 64, and beside it max_num_seqs is 65",
        ),
        (
            {"gpu": "h100", "policy": "orca-max"},
            "--serve says policy vllm-v1, and beside it policy is orca-max",
        ),
        ({"gpu": "h100", "scheduler": "orca"}, "--serve is about vLLM as it is; leave scheduler orca out"),
    ):
        with pytest.raises(ps.PagesimError) as caught:
            served.merged_with(given)
        assert str(caught.value).startswith(sentence)


def test_fp8_quantizes_a_checkpoint_of_16_bits_when_it_is_loaded() -> None:
    assert options_of(f"vllm serve {MODEL} --quantization fp8")["weight_dtype"] == "fp8"
    assert "weight_dtype" not in options_of(f"vllm serve {MODEL} -q none")


@pytest.mark.parametrize(("name", "method"), [("deepseek-v3", "fp8"), ("gpt-oss-20b", "mxfp4")])
def test_a_method_that_a_checkpoint_has_already_changes_nothing(name, method) -> None:
    assert "weight_dtype" not in options_of(f"vllm serve {name} -q {method}")


@pytest.mark.parametrize(
    ("name", "method"), [("deepseek-v3", "awq"), ("gpt-oss-20b", "fp8"), ("opt-13b", "gguf")]
)
def test_a_method_that_a_checkpoint_does_not_have_is_refused(name, method) -> None:
    assert f"--quantization {method} affects scheduling" in refusal(f"vllm serve {name} -q {method}")
