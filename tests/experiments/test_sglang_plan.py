"""Plans of SGLang's pools, and plans beside start-up logs of vLLM and SGLang."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pagesim as ps
from pagesim.errors import PagesimError
from pagesim.experiments.sglang_plan import SglangPlan, plan_sglang
from pagesim.experiments.startup_log import read_log
from pagesim.hardware.gpus import GIB, gpu
from pagesim.models import model
from pagesim.scheduling.sglang import static_fraction
from pagesim.setup.engine_config import EngineConfig
from pagesim.setup.serve import read_serve
from pagesim.setup.system import System, checked
from pagesim.sizing.static_division import divide_statically

VLLM_LOG = """\
(EngineCore) INFO 11-20 10:00:00 [gpu_model_runner.py:3000] Model loading took 14.99 GiB and 3.2 seconds
INFO [gpu_worker.py:390] Available KV cache memory: 55.10 GiB
INFO [kv_cache_utils.py:870] GPU KV cache size: 451,376 tokens
INFO [kv_cache_utils.py:875] Maximum concurrency for 32,768 tokens per request: 13.77x
"""
SGLANG_LOG = """\
[2026-08-15 10:00:00] Load weight end. type=Qwen3ForCausalLM, avail mem=62.10 GB, mem usage=15.30 GB.
[2026-08-15 10:00:09] max_total_num_tokens=363000, chunked_prefill_size=8192, max_running_requests=4096
"""


def planned(line: str, gpu: str) -> SglangPlan:
    return plan_sglang(checked(System, read_serve(line).merged_with({"gpu": gpu})))


def test_the_parts_make_up_all_memory_and_the_tokens_are_those_of_a_run() -> None:
    found = planned("sglang serve Qwen/Qwen3-8B", "h100")
    memory = sum(part.bytes for part in found.parts)
    assert 79.20 * GIB < memory < 79.21 * GIB
    per_token = model("qwen3-8b").kv_bytes_per_token()
    assert found.pools == {"all layers": (found.tokens, per_token)}
    trace = ps.make_trace("fixed:64,8", rate=1.0, num_requests=2)
    ran = ps.simulate(trace, "sglang", model="qwen3-8b", gpu="h100")
    assert ran.summary["memory"]["num_blocks"] == found.tokens
    assert found.log[0].startswith(f"max_total_num_tokens={found.tokens}, chunked_prefill_size=8192")


def test_a_posted_log_of_a_model_with_images_has_the_tokens_within_three_per_cent() -> None:
    """SGLang 0.5.9, 2026-02-26, eight GPUs like B300 but with more memory; by the memory that its log says.

    Weights of 73.58 GiB on each GPU left 209.98, and max_total_num_tokens is 2454421.
    """
    share = planned("sglang serve moonshotai/Kimi-K2.5 --tp 8", "b300").settled["mem_fraction_static"]
    cache = (209.98 - (209.98 + 73.58) * (1 - share) - 100 / 1024) * GIB
    assert cache / model("kimi-k2.5").kv_bytes_per_token() == pytest.approx(2454421, rel=0.03)


@pytest.mark.parametrize(
    ("name", "tower", "factor"),
    [
        # Of Qwen3.5's tower SGLang finds the width; its depth has another name, so the layers are CLIP's 24.
        ("qwen3.5-35b-a3b", (24, 1152), 0.95 * (1 - 0.1 * (24 * 1152**2 / (24 * 1024**2) - 1))),
        ("mistral-small-3.2", (24, 1024), 0.95),
        ("kimi-k2.5", (27, 1152), 0.95 * (1 - 0.1 * (27 * 1152**2 / (24 * 1024**2) - 1))),
        ("gemma3-12b", None, 1.0),  # served without images unless told otherwise
        ("llama4-scout", None, 1.0),
        ("qwen3-8b", None, 1.0),
    ],
)
def test_images_take_a_share_of_the_cache(name: str, tower: tuple[int, int] | None, factor: float) -> None:
    # arg_groups/memory_hook.py 281 and 432, and the 100 MiB of embeddings (kv_cache_configurator.py 210).
    spec = model(name)
    assert (spec.sglang_images and spec.sglang_images[1:]) == tower
    found = plan_sglang(System(policy="sglang", model=name, gpu="h200", tensor_parallel_size=8))
    alike = replace(spec, name="text", sglang_images=None)
    config = EngineConfig(found.system)
    text = static_fraction(config.options, config.machine._replace(images=None))
    share = found.settled["mem_fraction_static"]
    assert share == pytest.approx(text * factor)
    divided = [
        divide_statically(each, config.gpu, tp=8, mem_fraction_static=share).cache for each in (alike, spec)
    ]
    assert divided[0] - divided[1] == (0 if tower is None else 100 << 20)


def test_qwen3_vl_has_defaults_of_its_own_on_large_hopper_gpus() -> None:
    # arg_groups/model_overrides/qwen3_vl.py: features go through 1 GiB, and prompts wait for 22 decodes.
    line = "sglang serve Qwen/Qwen3-VL-32B-Instruct"
    for gpu_name, interval in (("h200", 22), ("b200", 0)):
        system = checked(System, read_serve(line).merged_with({"gpu": gpu_name}))
        assert EngineConfig(system).options.prefill_decode_interval == interval
    asked = checked(System, read_serve(f"{line} --prefill-decode-interval 4").merged_with({"gpu": "h200"}))
    assert EngineConfig(asked).options.prefill_decode_interval == 4
    assert not EngineConfig(asked).options.graphs_prompts


def test_a_model_with_windows_has_two_pools() -> None:
    found = planned("sglang serve openai/gpt-oss-120b --tp 2", "h200")
    (full, windows) = found.pools.values()
    assert list(found.pools) == ["full attention", "window 128"]
    assert windows[0] == int(full[0] * 0.8)
    assert full[1] == windows[1] == 18 * 2 * 4 * 64 * 2


def weights_of(found: SglangPlan) -> float:
    return next(part.bytes for part in found.parts if part.name == "weights")


LATENT_MIB = 1536
"""What DeepSeek's kernels need beside CUDA graphs of prompts (arg_groups/memory_hook.py 386)."""


def test_a_rank_of_attention_is_sized_by_the_rules() -> None:
    # memory_hook.py 281 to 400: graphs of decodes cost 2 MiB a sequence, and under attention DP 3 a rank
    # more, half as much again beyond 300; parallel_hook.py 318: a rank has an eighth of the chunk.
    line = "sglang serve deepseek-v3 --tp 8 --max-running-requests 4096"
    alone, ranks = planned(line, "h200"), planned(f"{line} --dp 8 --enable-dp-attention", "h200")
    memory = gpu("h200").listed_mib
    assert memory is not None
    reserved = 512 + 1.5 * 8192 + 1024 + 2 * 512 + LATENT_MIB
    assert alone.settled["mem_fraction_static"] == round((memory - reserved) / memory, 3)
    reserved += 512 * 8 * 4.5
    assert ranks.settled["mem_fraction_static"] == round((memory - reserved) / memory, 3)
    assert (alone.settled["chunked_prefill_size"], ranks.settled["chunked_prefill_size"]) == (8192, 1024)
    assert (alone.max_running_requests, ranks.max_running_requests) == (4096, 512)
    # Every GPU has attention and the embedding whole, and a part of all else.
    spec = model("deepseek-v3")
    attention = [spec.weight_bytes_by_group(tp)["attention"] for tp in (1, 8)]
    embedding = spec.vocab * spec.hidden * 2 * 7 // 8
    assert weights_of(ranks) - weights_of(alone) == attention[0] - attention[1] + embedding
    head = planned(f"{line} --dp 8 --enable-dp-attention --enable-dp-lm-head", "h200")
    assert weights_of(head) == weights_of(ranks) + embedding


def test_deepep_has_buffers_beside_cuda_graphs() -> None:
    # memory_hook.py 392 and 402: 1 GiB under graphs of prompts and 2 GiB under those of decodes.
    memory = gpu("h200").listed_mib
    assert memory is not None
    reserved = 512 + 1.5 * 8192 + 1024 + 2 * 512 + LATENT_MIB + 1024 + 2048
    line = "sglang serve deepseek-v3 --tp 8 --moe-a2a-backend deepep"
    assert planned(line, "h200").settled["mem_fraction_static"] == round((memory - reserved) / memory, 3)
    reserved = 512 + 1.5 * 8192 + 1024 + 2 * 512 + 2048  # no graphs of prompts
    line += " --disable-prefill-cuda-graph --max-total-tokens 100000"
    assert planned(line, "h200").settled["mem_fraction_static"] == round((memory - reserved) / memory, 3)


def test_the_shared_expert_of_qwen3_next_is_whole_where_experts_are() -> None:
    # layers/moe/fused_moe_triton/layer.py 405: of tp // ep parts a GPU has one; 48 layers of 3 · 2048 · 512.
    line, expert = "sglang serve Qwen/Qwen3-Next-80B-A3B-Instruct --tp 8", 48 * 3 * 2048 * 512 * 2
    flags = ("", " --ep 2", " --ep 4", " --ep 8", " --ep 8 --moe-a2a-backend deepep")
    sizes = [weights_of(planned(line + more, "h200")) for more in flags]
    # models/qwen2_moe.py 370: with DeepEP it is not fused, and whole on each GPU, too.
    assert [size - sizes[0] for size in sizes] == [0, *(expert * parts // 8 for parts in (1, 3, 7, 7))]


@pytest.mark.parametrize("ranks", ["", " --dp 8 --enable-dp-attention"])
def test_what_is_not_divided_beside_deepep_is_whole_on_each_gpu(ranks: str) -> None:
    # models/deepseek_v2.py 874 and 2665: the shared expert of 58 layers, and MLPs of the first three. A block
    # of 128 by 128 weights of a byte has a scale of 4 bytes.
    line = f"sglang serve deepseek-v3 --tp 8{ranks}"
    flags = ("", " --moe-a2a-backend deepep", " --moe-dense-tp-size 1", " --moe-dense-tp-size 8")
    none, deepep, dense, divided = (weights_of(planned(line + more, "h200")) for more in flags)
    assert deepep - none == 58 * 3 * 56 * 16 * (128 * 128 + 4) * 7 // 8
    assert dense - none == 3 * 3 * 56 * 144 * (128 * 128 + 4) * 7 // 8
    assert divided == none


def test_what_does_not_fit_is_said_by_the_gpus_of_all_ranks() -> None:
    line = "sglang serve deepseek-v3 --tp 8 --dp 8 --enable-dp-attention"
    said = "deepseek-v3 with tensor_parallel_size 8 does not fit on h100: .* the smallest .* that fits is 32"
    with pytest.raises(PagesimError, match=said):
        planned(line, "h100")
    assert planned(line.replace("--tp 8", "--tp 32"), "h100").tokens > 0


def test_a_dense_width_that_sglang_does_not_start_with_is_refused() -> None:
    with pytest.raises(PagesimError, match="SGLang starts only with 1 or all 8 GPUs"):
        planned("sglang serve deepseek-v3 --tp 8 --moe-dense-tp-size 2", "h200")


def test_other_policies_are_refused() -> None:
    with pytest.raises(PagesimError, match="policy is vllm-v1; a plan of pools is one of SGLang's"):
        plan_sglang(System(policy="vllm-v1"))


@pytest.fixture
def log_of(tmp_path):
    """Returns what writes a log and gives its path."""

    def write(text: str) -> Path:
        path: Path = tmp_path / "server.log"
        path.write_text(text)
        return path

    return write


def rows_of(printed: Any) -> dict[str, dict[str, float]]:
    return {row["name"]: row for row in printed.json["beside_log"]}


def test_a_log_of_vllm_stands_beside_the_plan_and_what_follows_from_its_gib_is_exact(
    succeeds, log_of
) -> None:
    line = "vllm serve meta-llama/Llama-3.1-8B --max-model-len 32768"
    how = ("plan", "--serve", line, "--gpu", "h100", "--log", log_of(VLLM_LOG))
    rows = rows_of(succeeds(*how, "--json"))
    assert rows["weights, GiB"]["difference"] == pytest.approx(0, abs=0.05)
    assert rows["KV cache, GiB"]["logged"] == 55.10
    assert rows["KV cache, tokens"]["from_logged_gib"] == rows["KV cache, tokens"]["logged"] == 451376
    assert round(rows["concurrency"]["from_logged_gib"], 2) == rows["concurrency"]["logged"] == 13.77
    shown = succeeds(*how).out
    assert "The server's own log beside the plan" in shown
    assert "451,376" in shown


def test_a_log_of_sglang_stands_beside_the_plan(succeeds, log_of) -> None:
    how = ("plan", "--serve", "sglang serve Qwen/Qwen3-8B", "--gpu", "h100", "--log", log_of(SGLANG_LOG))
    rows = rows_of(succeeds(*how, "--json"))
    assert rows["KV cache, tokens"]["difference"] == pytest.approx(0, abs=1000)
    assert rows["running requests at most"]["difference"] == 0
    assert "Pools" in succeeds(*how).out


def test_a_file_that_is_no_such_log_is_refused(refused, log_of, tmp_path) -> None:
    how = ("plan", "--model", "opt-13b", "--gpu", "h100", "--log")
    assert "has no line that says what the server's memory is for" in refused(*how, log_of("nothing"))
    assert "log: cannot read" in refused(*how, tmp_path / "absent.log")


def test_the_last_of_several_lines_counts(log_of) -> None:
    twice = VLLM_LOG + VLLM_LOG.replace("55.10", "54.00")
    assert read_log(log_of(twice))["KV cache, GiB"] == 54.0
