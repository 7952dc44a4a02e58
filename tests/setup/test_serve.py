"""A ``vllm serve`` line: what it decides, what has no effect here, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from serve_lines import MODEL, listed_flags, refusal, rows_of
from serve_lines import vllm_options as options_of

import pagesim as ps
from pagesim.setup.engine_config import EngineConfig
from pagesim.setup.serve import ServeLine, read_serve
from pagesim.setup.system import System, checked


def test_every_flag_of_the_release_has_a_row_and_takes_what_it_takes_there() -> None:
    assert listed_flags("vllm-0.33.0") == rows_of("vllm")


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
        (
            "-dp 2 --all2all-backend deepep_high_throughput --enable-dbo --dbo-decode-token-threshold 32",
            {"data_parallel_size": 2},
        ),
    ],
)
def test_flags_of_several_ranks_are_taken(flags: str, options: dict[str, Any]) -> None:
    assert options_of(f"vllm serve mixtral-8x7b {flags}") == {"model": "mixtral-8x7b", **options}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("-dp 2 -dph -dpe", "vLLM does not start so"),
        ("-dp 2 --enable-dbo", "--enable-dbo needs --all2all-backend deepep_low_latency"),
        ("-dp 2 --ubatch-size 3 --all2all-backend naive", "--ubatch-size needs --all2all-backend"),
        ("-dp 2 --ubatch-size few", "--ubatch-size is 'few'; it must be a whole number"),
        ("-dp 2 --data-parallel-rank 1", "--data-parallel-rank 1 affects scheduling"),
        ("-dpl 4", "--data-parallel-size-local 4 affects scheduling and is not modelled; it goes with"),
    ],
)
def test_flags_of_ranks_that_are_not_modelled_are_refused(flags: str, said: str) -> None:
    assert said in refusal(f"vllm serve mixtral-8x7b {flags}")


def test_whole_experts_of_a_model_without_any_are_said_to_be_of_no_use() -> None:
    notes = read_serve(f"vllm serve {MODEL} -ep").notes
    assert notes[1].startswith("vLLM has no use for --enable-expert-parallel here")


def test_a_flag_that_is_misspelled_is_named_as_it_is_spelled() -> None:
    said = refusal(f"vllm serve {MODEL} --tool-cal-parser hermes")
    assert said.endswith("is no flag of vllm serve 0.33.0; did you mean --tool-call-parser?")
    assert "did you mean" not in refusal(f"vllm serve {MODEL} --wings")


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


def test_what_has_no_effect_here_is_named_in_a_note() -> None:
    line = f"CUDA_VISIBLE_DEVICES=0 vllm serve {MODEL} --port 8000 --trust-remote-code -dp 1 --no-enable-eplb"
    assert read_serve(line).notes == (
        "of the vllm serve 0.33.0 line without an effect here: CUDA_VISIBLE_DEVICES, --port, "
        "--trust-remote-code, --data-parallel-size, --enable-eplb",
    )
    assert read_serve(f"vllm serve {MODEL} -tp 2").notes == ()


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("", "--serve is ''; it must begin with vllm serve"),
        ("docker run vllm", "--serve is 'docker run vllm'; it must begin with vllm serve"),
        ("vllm serve 'opt-13b", "--serve cannot be parsed: no closing quotation"),
        ("vllm serve opt-13b < answers", "--serve holds '<', which means something to a shell only"),
        ("vllm serve opt-13b -tp `nproc`", "--serve holds '`nproc`', which means something to a shell only"),
        ("vllm serve $MODEL", "--serve holds '$MODEL', which means something to a shell only"),
        ("vllm serve", "--serve names no model; it must name one model, as in vllm serve MODEL"),
        ("vllm serve opt-13b opt-30b", "--serve names opt-13b and opt-30b; it must name one model"),
        ("vllm serve opt-13", "--serve: no model is named 'opt-13'; did you mean opt-13b"),
        ("vllm serve opt-13b --wings 2", "--serve: '--wings' is no flag of vllm serve 0.33.0"),
        ("vllm serve opt-13b --max-num 2", "--serve: '--max-num' is the beginning of several flags of vllm"),
        ("vllm serve opt-13b -tp", "--serve: -tp needs a value"),
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
        ("vllm serve opt-13b --kv-cache-dtype fp4", "--serve: --kv-cache-dtype 'fp4' is not modelled"),
        (
            "vllm serve opt-13b --fully-sharded-loras",
            "--serve: --fully-sharded-loras affects scheduling and is not",
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


@pytest.mark.parametrize(
    ("flags", "largest", "whole"),
    [
        # OPTIMIZATION_LEVEL_TO_CONFIG and _set_cudagraph_sizes (config/vllm.py).
        ("-O0", 0, False),
        ("-O1", None, False),
        ("-O2", None, True),
        ("-O0 -cc.cudagraph_mode FULL", None, True),
        ("-cc.cudagraph_mode=NONE", 0, False),
        ("-cc.cudagraph_mode PIECEWISE", None, False),
        ("""-cc '{"cudagraph_mode": "FULL_AND_PIECEWISE", "mode": 3}'""", None, True),
        ("""-cc '{"cudagraph_capture_sizes": [1, 8, 64]}'""", 64, True),
        ("-cc.cudagraph_capture_sizes+ 1,8 -cc.cudagraph_capture_sizes+ 96", 96, True),
        ("--compilation-config.max_cudagraph_capture_size 128", 128, True),
        # The parts are put behind the line's end, and the last of several objects wins.
        ("""-cc.max_cudagraph_capture_size 32 -cc '{"max_cudagraph_capture_size": 8}'""", 32, True),
    ],
)
def test_a_compilation_config_says_what_is_captured(flags: str, largest: int | None, whole: bool) -> None:
    served = read_serve(f"vllm serve {MODEL} {flags}")
    assert served.options.get("max_cudagraph_capture_size") == largest
    assert served.full_graphs is whole


def test_parts_of_an_object_are_joined_and_judged_one_by_one() -> None:
    off = "--limit-mm-per-prompt.image 0 --limit-mm-per-prompt.video 0"
    assert options_of(f"vllm serve {MODEL} {off}")["language_model_only"] is True
    config = """'{"use_prefill_query_quantization": true, "mla_prefill_backend": "FLASHINFER"}'"""
    (note,) = read_serve(f"vllm serve {MODEL} --attention-config {config}").notes
    assert "--attention-config.use_prefill_query_quantization, --attention-config.mla" in note
    said = refusal(f"vllm serve {MODEL} -ac.flash_attn_version 2 -ac.use_trtllm_attention true")
    assert said.startswith("--serve: --attention-config.flash_attn_version 2 affects scheduling and is not")


@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        # _get_and_verify_max_len (config/model.py): YaRN's factor is in max_position_embeddings already.
        ('{"max_position_embeddings": 8192}', 8192),
        ('{"rope_scaling": {"rope_type": "yarn", "factor": 4.0}, "max_position_embeddings": 8192}', 8192),
        ('{"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}', None),
        ('{"rope_parameters": {"rope_type": "linear", "factor": 2}}', 4096),
        ('{"text_config": {"max_position_embeddings": 4096, "index_topk_freq": 4}}', 4096),
        ("{}", None),
    ],
)
def test_overrides_of_the_config_say_how_long_requests_may_be(config: str, tokens: int | None) -> None:
    line = f"vllm serve opt-13b --hf-overrides '{config}'"
    assert options_of(line).get("max_model_len") == tokens
    longest = tokens or 2048
    assert options_of(f"{line} --max-model-len {longest}")["max_model_len"] == longest
    assert "vLLM does not start so" in refusal(f"{line} --max-model-len {longest + 1}")


def test_a_variable_lets_requests_be_longer_than_the_model_says() -> None:
    """``_get_and_verify_max_len`` (config/model.py 2677) then only warns; auto is the model's own."""
    longer = "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 vllm serve opt-13b --max-model-len"
    assert options_of(f"{longer} 4k")["max_model_len"] == 4000
    assert options_of(f"{longer} auto")["max_model_len"] == "auto"
    assert "more than the 2048 tokens" in refusal(f"{longer.replace('=1', '=0')} 4k")
    # A published line of 2026: YaRN does not lengthen the context by itself, and the variable lets it.
    yarn = """--hf-overrides '{"text_config": {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}}'"""
    line = f"vllm serve Qwen/Qwen3.6-27B-FP8 -tp 2 --max-model-len 1010000 {yarn}"
    assert "more than the 262144 tokens" in refusal(line)
    assert options_of(f"VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 {line}")["max_model_len"] == 1010000


def test_other_overrides_are_refused_one_by_one() -> None:
    line = """vllm serve opt-13b --hf-overrides '{"max_position_embeddings": 9000, "num_hidden_layers": 2}'"""
    said = refusal(line)
    assert said.startswith("""--serve: --hf-overrides {"num_hidden_layers": 2} affects scheduling""")
    sparse = "vllm serve deepseek-v3.2 -tp 8 --hf-overrides.index_topk_freq 4"
    assert "would change what the layers of 'deepseek-v3.2' keep" in refusal(sparse)


def test_a_mode_of_performance_doubles_the_defaults() -> None:
    """``_set_default_max_num_seqs_and_batched_tokens_args`` (engine/arg_utils.py): H100 has 1024 and 8192."""
    given = {"gpu": "h100", "max_model_len": 4096}

    def limits(flags: str) -> tuple[int, int]:
        served = read_serve(f"vllm serve {MODEL} {flags}").merged_with(given)
        options: Any = EngineConfig(checked(System, served)).options
        return options.max_num_seqs, options.max_num_batched_tokens

    assert limits("--performance-mode interactivity") == limits("") == (1024, 8192)
    assert limits("--performance-mode throughput") == (2048, 16384)
    assert limits("--performance-mode throughput --max-num-seqs 64") == (64, 16384)


def test_adapters_are_kept_memory_for_where_the_server_takes_any() -> None:
    assert "max_loras" not in options_of(f"vllm serve {MODEL} --max-loras 4 --max-lora-rank 64")
    assert options_of(f"vllm serve {MODEL} --enable-lora")["max_loras"] == 1
    line = f"vllm serve {MODEL} --enable-lora --max-loras 4 --max-lora-rank 64 --lora-modules a=/a b=/b"
    taken = options_of(line)
    assert (taken["max_loras"], taken["max_lora_rank"]) == (4, 64)
    assert read_serve(line).notes[0].endswith(": --lora-modules")


def test_weights_on_the_host_leave_their_memory_and_are_read_in_every_iteration() -> None:
    """``UVAOffloader`` (model_executor/offloader/uva.py); an H100's link to its host has 64 GB/s each way."""
    given = {"gpu": "h100", "max_model_len": 4096}

    def config(flags: str) -> EngineConfig:
        served = read_serve(f"vllm serve {MODEL} {flags}").merged_with(given)
        return EngineConfig(checked(System, served))

    whole, part = config("--cpu-offload-gb 0"), config("--cpu-offload-gb 4")
    moved = 4 * 2**30
    assert whole.capacity.weight_bytes_per_gpu - part.capacity.weight_bytes_per_gpu == moved
    more = (part.capacity.num_blocks - whole.capacity.num_blocks) * part.capacity.block_bytes
    assert moved - part.capacity.block_bytes < more <= moved
    seconds = part.engine_time.iteration_s - whole.engine_time.iteration_s
    assert seconds == pytest.approx(moved / whole.gpu.host.bytes_per_s)
