"""SGLang's cache is sized by its own rule, and what a user leaves out is what SGLang takes on that GPU."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

import pagesim as ps
from pagesim.hardware import gpu as gpu_named
from pagesim.hardware.gpus import GIB
from pagesim.models import model as model_named
from pagesim.scheduling.sglang import most_running
from pagesim.scheduling.sglang.defaults import captured
from pagesim.setup.comparison import each_policy
from pagesim.setup.engine_config import EngineConfig
from pagesim.setup.system import System, checked
from pagesim.sizing import divide_statically

FACTS = Path(__file__).parent / "sglang-0.5.23-defaults.csv"
"""What ``ServerArgs`` of the released wheel resolved to where it was told the GPU: its memory as nvidia-smi
lists it, its generation, FlashInfer installed (``srt/arg_groups/memory_hook.py`` and what runs around it)."""

ROWS = list(csv.DictReader(FACTS.read_text(encoding="utf-8").splitlines()))


def system(**options: Any) -> System:
    return checked(System, {"policy": "sglang", "model": "llama-3.1-8b", "gpu": "h100", **options})


def tokens(**options: Any) -> int:
    """Return the tokens that the cache of a system holds."""
    return EngineConfig(system(**options)).capacity.slots


def refusal(**options: Any) -> str:
    with pytest.raises(ps.PagesimError) as caught:
        tokens(**options)
    return str(caught.value)


def of_row(row: dict[str, str]) -> System:
    """Return the system of a row of the facts."""
    words = row["flags"].split()
    flags: dict[str, Any] = {}
    while words:
        name = words.pop(0).removeprefix("--").replace("-", "_")
        alone = not words or words[0].startswith("--")
        flags[name] = True if alone else float(words.pop(0))
    return system(gpu=row["gpu"], model=row["model"], tensor_parallel_size=int(row["tp"]), **flags)


@pytest.mark.parametrize("gpu", sorted({row["gpu"] for row in ROWS}))
def test_what_is_left_out_is_what_the_release_takes_on_the_gpu(gpu: str) -> None:
    for row in (row for row in ROWS if row["gpu"] == gpu):
        config = EngineConfig(of_row(row))
        taken = {
            **config.options.model_dump(),
            **config.sglang_memory,
            "page_size": config.granularity[0],
        }
        for name in list(row)[4:]:
            assert taken[name] == float(row[name]), (row, name)


def test_graphs_of_prompts_are_captured_at_the_releases_sizes() -> None:
    # cuda_graph_hook.py, generate_prefill_cuda_graph_batch_sizes, as run.
    assert [captured(most) for most in (0, 3, 4, 1024, 2048, 3000, 4096, 8192, 16384)] == [
        *(0, 0, 1, 38, 42, 45, 50, 58, 74),
    ]


POSTED = [
    # gpu, tp, GiB of "Load weight begin. avail mem": start-up logs in public repositories of 2025 and 2026.
    ("h100", 1, 78.81),
    ("h100", 1, 78.43),
    ("h100", 1, 78.48),
    ("b200", 1, 177.57),
    ("h100", 8, 77.43),
    ("h200", 8, 137.29),
    ("h200", 16, 138.09),
    ("rtx-3090", 4, 23.08),
]


@pytest.mark.parametrize(("gpu", "tp", "logged"), POSTED)
def test_what_is_free_before_weights_is_within_600_mib_of_what_servers_logged(
    gpu: str, tp: int, logged: float
) -> None:
    division = divide_statically(
        model_named("llama-3.1-405b"), gpu_named(gpu), tp=tp, mem_fraction_static=0.8
    )
    assert abs(division.requested / GIB - logged) < 0.6


def test_tokens_are_within_two_percent_of_what_servers_logged() -> None:
    # The same logs: max_total_num_tokens.
    h100 = tokens(mem_fraction_static=0.88)
    assert abs(h100 / 444_500 - 1) < 0.02
    four = tokens(gpu="rtx-3090", model="qwen3-14b", tensor_parallel_size=4, mem_fraction_static=0.8)
    assert abs(four / 298_447 - 1) < 0.02


def test_the_cache_is_the_static_share_less_the_weights_in_whole_pages() -> None:
    one = EngineConfig(system(mem_fraction_static=0.8)).capacity
    paged = EngineConfig(system(mem_fraction_static=0.8, block_size=64)).capacity
    free = one.kv_bytes + one.weight_bytes_per_gpu + one.activation_bytes
    assert 0 <= 0.8 * free - one.weight_bytes_per_gpu - one.kv_bytes < one.block_bytes + 1
    assert paged.num_blocks == one.slots // 64


def test_max_total_tokens_only_ever_shrinks_the_cache() -> None:
    assert tokens(max_total_tokens=5000) == 5000
    assert tokens(max_total_tokens=5000, block_size=64) == 5000 // 64 * 64
    assert tokens(max_total_tokens=10**9) == tokens(mem_fraction_static=0.83) == tokens()
    assert refusal(max_total_tokens=63, block_size=64) == (
        "max_total_tokens is 63; it must be at least the 64 of a page"
    )


def test_a_page_has_two_names_which_must_agree() -> None:
    assert tokens(page_size=64) == tokens(page_size="64") == tokens(block_size=64, page_size=64)
    assert tokens(gpu="b200", page_size=32) % 64 == 32
    assert refusal(page_size=64, block_size=32) == (
        "page_size is 64 and block_size 32; under sglang they are one: leave one out"
    )
    assert refusal(page_size=3, policy="vllm-v1").endswith(
        "an option of sglang, not vllm-v1: give block_size"
    )
    assert refusal(page_size="64K") == "page_size is for allocator virtual, not paged"
    assert refusal(page_size=24).startswith(
        "chunked_prefill_size is 8192; it must be a multiple of a page's 24 "
    )


def test_a_comparison_has_one_rule_for_all_and_each_its_own_page() -> None:
    one, other = each_policy(system(page_size=32, max_model_len=4096), ("sglang", "vllm-v1")).values()
    assert (one.sizing, other.sizing) == ("paper", "paper")
    assert (one.page_size, other.page_size) == (32, None)
    (alone,) = each_policy(system(), ("sglang",)).values()
    assert EngineConfig(alone).capacity.slots == tokens()


def test_a_cache_in_fp8_holds_twice_as_much_and_a_request_may_be_longer_than_the_cache() -> None:
    assert tokens(kv_cache_dtype="fp8") // 2 == tokens()
    assert tokens(max_total_tokens=100) < 131_072


def test_running_requests_are_at_most_half_the_tokens_of_the_cache() -> None:
    options: Any = EngineConfig(system(max_total_tokens=300)).options
    asked = options.model_copy(update={"max_running_requests": 1000})
    # kv_cache_configurator.py, resolve_max_num_reqs.
    assert most_running(options, 300, 131_072) == most_running(asked, 300, 131_072) == 150
    assert most_running(asked, 10**6, 131_072) == 1000
    assert most_running(options, 10**6, 131_072) == int(10**6 / 131_072 * 512)
    assert most_running(options, 10**6, 2048) == 4096
    assert most_running(options, 10**5, 131_072) == 2048


def test_options_of_two_rules_are_not_mixed() -> None:
    for name, value in (("mem_fraction_static", 0.8), ("max_total_tokens", 1000)):
        for beside in ({"num_blocks": 500}, {"sizing": "paper"}, {"sizing": "vllm"}):
            ((other, said),) = beside.items()
            assert refusal(**{name: value}, **beside) == (
                f"{name} is {value}, and {other} is {said}, beside which it has no effect: leave one of them "
                "out"
            )
    assert refusal(gpu_memory_utilization=0.9).endswith("SGLang has another share: give mem_fraction_static")
    assert refusal(sizing="sglang", policy="vllm-v1").startswith(
        "sizing is sglang, and scheduler vllm-v1 has "
    )
    assert tokens(num_blocks=500) == 500


def test_what_does_not_start_says_what_to_change() -> None:
    # The release stops: "Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static".
    assert refusal(gpu="l4").endswith("that fits is 2, or raise mem_fraction_static above 0.684")
    assert tokens(gpu="l4", mem_fraction_static=0.9) > 30_000
    assert refusal(gpu="l4", chunked_prefill_size=16384).startswith(
        "chunked_prefill_size is 16384, for which "
    )
    assert "depends on AMD's kernels" in refusal(gpu="mi300x")
    assert tokens(gpu="mi300x", mem_fraction_static=0.8) > 900_000


def test_a_run_says_where_its_sizes_came_from() -> None:
    trace = ps.make_trace("fixed:10,5", rate=5, num_requests=3)
    result = ps.simulate(trace, "sglang", model="llama-3.1-8b", gpu="h100", max_running_requests=64)
    defaults = result.summary["options"]["defaults"]
    assert defaults["mem_fraction_static"] == 0.834
    assert (defaults["sizing"], defaults["block_size"]) == ("sglang", 1)
    assert result.summary["options"]["given"] == {"max_running_requests": 64}
    held = tokens(max_running_requests=64)
    said = next(note for note in result.notes if note.startswith("the cache holds "))
    assert f"{held:,} tokens: mem_fraction_static 0.834 of the 78.50 GiB" in said
    cut = ps.simulate(trace, "sglang", model="llama-3.1-8b", gpu="h100", max_total_tokens=3000)
    assert any(note.endswith("cut to max_total_tokens 3,000") for note in cut.notes)
    assert EngineConfig(system(gpu="b200", tensor_parallel_size=2)).machine.listed_mib == 183_359
