"""A line of SGLang's server: what it decides, what has no effect here, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from serve_lines import listed_flags, refusal, rows_of

import pagesim as ps
from pagesim.setup.engine_config import EngineConfig
from pagesim.setup.serve import ServeLine, read_serve
from pagesim.setup.serve_sglang import EVICTIONS, ORDERS, readable
from pagesim.setup.system import System, checked

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
LAUNCH = f"python -m sglang.launch_server --model-path {MODEL}"


def options_of(flags: str) -> dict[str, Any]:
    """Return what flags decide besides what every line does."""
    options = dict(read_serve(f"{LAUNCH} {flags}").options)
    assert options.pop("policy") == "sglang"
    assert options.pop("model") == "llama-3.1-8b"
    return options


def test_every_flag_of_the_release_has_a_row_and_takes_what_it_takes_there() -> None:
    assert listed_flags("sglang-0.5.23") == rows_of("sglang")
    assert len(rows_of("sglang")) == 532


@pytest.mark.parametrize(
    "command",
    [
        f"python -m sglang.launch_server --model-path {MODEL}",
        f"python3 -m sglang.launch_server --model {MODEL}",
        f"CUDA_VISIBLE_DEVICES=0 /opt/venv/bin/python3.12 -m sglang.launch_server --model={MODEL}",
        f"sglang serve {MODEL}",
        f"sglang serve --model-path {MODEL}",
        f"sglang serve --model-type llm {MODEL}",
        f"sglang serve \\\n  --model {MODEL}",
    ],
)
def test_the_server_is_started_by_each_of_its_commands(command: str) -> None:
    assert read_serve(command).options == {"policy": "sglang", "model": "llama-3.1-8b"}


def test_a_line_decides_what_its_flags_say() -> None:
    assert options_of(
        "--tp 2 --mem-fraction-static 0.85 --max-total-tokens 64k --chunked-prefill-size 4096 "
        "--max-prefill-tokens 8Ki --context-length 8192 --kv-cache-dtype fp8_e5m2 --page-size 16 "
        "--schedule-policy lpm --schedule-conservativeness 0.3 --max-running-requests=128 "
        "--prefill-max-requests 4 --radix-eviction-policy lfu --disable-overlap-schedule "
        "--enable-mixed-chunk --disable-radix-cache --cuda-graph-max-bs-decode 64 "
        "--cuda-graph-max-bs-prefill 2048 --disable-prefill-cuda-graph"
    ) == {
        "tensor_parallel_size": 2,
        "mem_fraction_static": 0.85,
        "max_total_tokens": 64_000,
        "chunked_prefill_size": 4096,
        "max_prefill_tokens": 8192,
        "max_model_len": 8192,
        "kv_cache_dtype": "fp8",
        "block_size": 16,
        "schedule_policy": "lpm",
        "schedule_conservativeness": 0.3,
        "max_running_requests": 128,
        "prefill_max_requests": 4,
        "radix_eviction_policy": "lfu",
        "disable_overlap_schedule": True,
        "enable_mixed_chunk": True,
        "disable_radix_cache": True,
        "cuda_graph_max_bs_decode": 64,
        "cuda_graph_max_bs_prefill": 2048,
        "disable_prefill_cuda_graph": True,
    }
    assert options_of("--chunked-prefill-size -1 --tp-size 4 --tp-size 8") == {
        "chunked_prefill_size": -1,
        "tensor_parallel_size": 8,
    }
    assert options_of("--quantization fp8 --kv-cache-dtype auto --dtype bfloat16") == {"weight_dtype": "fp8"}


def test_flags_are_spelled_as_the_release_reads_them() -> None:
    # Its parser takes the beginning of a flag, where only one begins so, and no underscores.
    assert options_of("--mem-frac 0.8 --disable-radix --tensor-parallel-size 2") == {
        "mem_fraction_static": 0.8,
        "disable_radix_cache": True,
        "tensor_parallel_size": 2,
    }
    assert "is no flag of SGLang 0.5.23" in refusal(f"{LAUNCH} --mem_fraction_static 0.8")
    assert "is the beginning of several flags" in refusal(f"{LAUNCH} --cuda-graph-max 8")
    assert "is no flag of SGLang 0.5.23" in refusal(f"{LAUNCH} --gpu-memory-utilization 0.9")
    assert "is no flag of SGLang 0.5.23" in refusal(f"{LAUNCH} --no-disable-radix-cache")
    assert "takes no value" in refusal(f"{LAUNCH} --disable-radix-cache=1")
    assert "needs a value" in refusal(f"{LAUNCH} --page-size --tp 2")
    assert refusal(f"{LAUNCH} stray").startswith("--serve: 'stray' belongs to no flag")
    assert refusal(f"{LAUNCH} --tp two").startswith("--serve: --tp-size is 'two'; it must be a whole number")


def test_counts_of_tokens_have_the_releases_suffixes() -> None:
    # utils/common.py, human_readable_int.
    read = {"1k": 1000, "25.6k": 25_600, "1Ki": 1024, "2M": 2_000_000, "1Mi": 1 << 20, "70": 70}
    assert {text: readable(text) for text in read} == read
    for text in ("1K", "1.5Ki", "k", "1 k"):
        with pytest.raises(ValueError, match=text):
            readable(text)


def test_values_that_are_not_modelled_are_refused_with_those_that_are() -> None:
    said = refusal(f"{LAUNCH} --schedule-policy random")
    assert said == f"--serve: --schedule-policy 'random' is not modelled; it may be {', '.join(ORDERS)}"
    assert refusal(f"{LAUNCH} --radix-eviction-policy tlru").endswith(f"it may be {', '.join(EVICTIONS)}")
    assert "it may be auto, bf16, bfloat16, fp8_e4m3, fp8_e5m2" in refusal(f"{LAUNCH} --kv-cache-dtype nvfp4")
    assert "--attention-backend 'fa4' is not modelled" in refusal(f"{LAUNCH} --attention-backend fa4")
    assert "more than the 131072 tokens" in refusal(f"{LAUNCH} --context-length 200000")
    assert "--quantization w8a8_int8 affects scheduling" in refusal(f"{LAUNCH} --quantization w8a8_int8")


def test_kernels_decide_on_the_page() -> None:
    # overrides.py, _mla_backend_page_constraints and _page_size_default, as run.
    for flags, page in {
        "--attention-backend fa3": 1,
        "--attention-backend flashinfer --page-size 8": 8,
        "--attention-backend trtllm_mha": 64,
        "--attention-backend trtllm_mha --page-size 32": 32,
        "--attention-backend trtllm_mla --page-size 16": 64,
        "--attention-backend flashmla --page-size 32": 64,
    }.items():
        assert options_of(flags) == {"block_size": page}
    on_b200 = {"gpu": "b200"}
    assert read_serve(f"{LAUNCH} --page-size 32").merged_with(on_b200)["block_size"] == 32
    assert read_serve(f"{LAUNCH} --page-size 1").merged_with({"gpu": "h100"})["block_size"] == 1
    with pytest.raises(ps.PagesimError, match="kernels on b200 take 16, 32, 64, 128, and it would"):
        read_serve(f"{LAUNCH} --page-size 1").merged_with(on_b200)


def test_kernels_of_amd_take_a_share_of_the_memory_under_long_contexts() -> None:
    # arg_groups/attention_hook.py 244: times 0.85 beyond 8,192 tokens, also where the share is given.
    aiter = "--attention-backend aiter --mem-fraction-static 0.8"
    assert options_of(aiter) == {"block_size": 1, "mem_fraction_static": pytest.approx(0.68)}
    assert options_of(f"{aiter} --page-size 16")["block_size"] == 16
    assert options_of(f"{aiter} --context-length 8192")["mem_fraction_static"] == 0.8
    assert options_of(f"{aiter} --context-length 8193")["mem_fraction_static"] == pytest.approx(0.68)
    assert "--mem-fraction-static is not known" in refusal(f"{LAUNCH} --attention-backend aiter")


def test_modelopt_fp4_quantizes_only_experts_of_a_checkpoint_of_16_bits() -> None:
    # model_loader/weight_utils.py 385, nvfp4_online.py, NvFp4OnlineConfig.get_quant_method
    assert options_of("--quantization modelopt_fp4") == {}
    refused = refusal("sglang serve mixtral-8x7b --tp 2 --quantization modelopt_fp4")
    assert "--quantization modelopt_fp4 affects scheduling and is not modelled" in refused


def test_the_longest_request_follows_from_what_overrides_the_models_config() -> None:
    # utils/hf_transformers/common.py 677 and configs/model_config.py 1291: the factor counts unless the
    # original length is named; a longer request needs the variable.
    def longest(rope: str, flags: str = "") -> Any:
        return options_of(f"--json-model-override-args '{{\"rope_scaling\":{rope}}}' {flags}").get(
            "max_model_len"
        )

    assert longest('{"rope_type":"yarn","factor":4.0}') == 4 * 131072
    assert longest('{"rope_type":"llama3","factor":4.0}') is None
    within = '{"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":32768}'
    assert longest(within) is None
    assert longest(within, "--context-length 100000") == 100000
    assert "more than the 131072 tokens" in refusal(
        f"{LAUNCH} --json-model-override-args '{{\"rope_scaling\":{within}}}' --context-length 200000"
    )
    longer = f"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 {LAUNCH} --context-length 200000"
    assert read_serve(longer).options["max_model_len"] == 200000
    assert "more than" in refusal(longer.replace("=1", "=0"))
    other = refusal(f"{LAUNCH} --json-model-override-args '{{\"num_hidden_layers\":4}}'")
    assert '--json-model-override-args {"num_hidden_layers": 4} affects scheduling' in other


def test_variables_without_effect_are_noted_and_others_refused() -> None:
    # SGLang 0.5.23 reads SGLANG_ENABLE_SPEC_V2 nowhere; it warns of SGL_ and reads the variable as SGLANG_.
    quiet = "SGLANG_ENABLE_SPEC_V2=1 SGLANG_USE_AITER=1 SGL_ENABLE_JIT_DEEPGEMM=0"
    assert read_serve(f"{quiet} {LAUNCH}").options == read_serve(LAUNCH).options
    assert "SGLANG_ENABLE_SPEC_V2, SGLANG_USE_AITER, SGL_" in read_serve(f"{quiet} {LAUNCH}").notes[0]
    # ``mm_runtime_reservation_gb`` (mem_cache/kv_cache_configurator.py 202) takes a GiB from the cache.
    said = refusal(f"SGLANG_USE_CUDA_IPC_TRANSPORT=1 {LAUNCH}")
    assert said.endswith("The variable takes memory for images from the cache.")
    for same in ("SGLANG_USE_CUDA_IPC_TRANSPORT=0", "SGLANG_DSV4_FP4_EXPERTS=1"):
        assert read_serve(f"{same} {LAUNCH}").options == read_serve(LAUNCH).options
    assert "SGLANG_OF_TOMORROW may affect scheduling" in refusal(f"SGLANG_OF_TOMORROW=1 {LAUNCH}")


def test_a_tower_is_of_no_use_to_a_model_of_text() -> None:
    assert options_of("--enable-multimodal") == {}
    said = refusal("sglang serve llama4-scout --tp 8 --enable-multimodal")
    assert said.startswith("--serve: --enable-multimodal would decide whether the vision tower of ")


def test_variables_of_the_server_are_refused_but_for_those_that_change_nothing() -> None:
    served = read_serve(f"HF_HOME=/data SGLANG_USE_MODELSCOPE=1 {LAUNCH} --port 30000")
    assert served.notes == (
        "of the SGLang 0.5.23 line without an effect here: HF_HOME, SGLANG_USE_MODELSCOPE, --port",
    )
    said = refusal(f"SGLANG_ENABLE_POST_CAPTURE_KV_SIZING=1 {LAUNCH}")
    assert said.startswith("--serve: SGLANG_ENABLE_POST_CAPTURE_KV_SIZING may affect scheduling")
    assert "SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION may" in refusal(
        f"SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION=9 {LAUNCH}"
    )


def test_a_line_must_name_one_model_and_what_is_not_known_is_said() -> None:
    assert (
        refusal("sglang serve") == "--serve names no model; it must name one model, as in sglang serve MODEL"
    )
    assert "no model is named 'unknown/model'; give its config.json" in refusal("sglang serve unknown/model")
    assert "--model-type is 'diffusion'; it may be auto or llm" in refusal(
        "sglang serve x --model-type diffusion"
    )
    assert "it must begin with vllm serve, sglang serve, or python -m " in refusal("sglang generate x")


def test_what_stands_beside_the_line_may_not_contradict_it() -> None:
    def beside(**given: Any) -> str:
        served: ServeLine = read_serve(f"{LAUNCH} --tp 2")
        with pytest.raises(ps.PagesimError) as caught:
            served.merged_with(given)
        return str(caught.value)

    assert beside() == "--serve needs the GPU that is served on; name it with --gpu"
    assert beside(gpu="h100", scheduler="vllm-v1") == (
        "--serve is about SGLang as it is; leave scheduler vllm-v1 out"
    )
    assert beside(gpu="h100", policy="vllm-v1").startswith("--serve says policy sglang, and beside it policy")
    assert beside(gpu="h100", tensor_parallel_size=4).startswith("--serve says tensor_parallel_size 2, and ")


def test_a_line_is_sized_as_its_server_sizes_itself() -> None:
    line = f"{LAUNCH} --tp 4 --chunked-prefill-size 2048 --disable-cuda-graph"
    served = checked(System, read_serve(line).merged_with({"gpu": "l4"}))
    share = EngineConfig(served).sglang_memory["mem_fraction_static"]
    # As the release resolves it: (23034 - 512 - 1.5 * 2048 - 4 * 128) / 23034.
    assert share == 0.822
    assert EngineConfig(served).capacity.slots > 300_000


def test_two_batches_at_once_mean_no_graphs_of_prompts() -> None:
    # arg_groups/cuda_graph_hook.py 220; validation_hook.py 756.
    line = "sglang serve deepseek-v3 --tp 8 --enable-two-batch-overlap"
    for how in ("--moe-a2a-backend deepep", "--dp 8 --enable-dp-attention"):
        assert read_serve(f"{line} {how}").options["disable_prefill_cuda_graph"] is True
    assert "needs --moe-a2a-backend deepep or attention DP; SGLang does not start so" in refusal(line)
