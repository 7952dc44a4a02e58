"""A memory plan beside what vLLM's engines printed when they started, and what its scheduler then runs."""

from __future__ import annotations

import csv
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pagesim as ps
from pagesim.errors import CapacityError, PagesimError
from pagesim.experiments.plan import Plan, blocks_behind, plan
from pagesim.hardware import gpu
from pagesim.hardware.gpus import GIB
from pagesim.models import model
from pagesim.setup.system import System
from pagesim.sizing import MemoryOptions, capacity, divide

CSV = Path(__file__).parents[2] / "docs" / "plan" / "posted.csv"


class Posted:
    """A start-up log: a row of posted.csv, empty cells left out."""

    def __init__(self, row: dict[str, str]) -> None:
        self.row = {name: cell for name, cell in row.items() if cell}
        self.available_gib = float(row["available_gib"])

    @cached_property
    def system(self) -> System:
        """What was started; what a log does not say is as the release's server takes it."""
        row, release = self.row, self.row.get("release", "V0")
        names = ("tensor_parallel_size", "max_model_len", "max_num_batched_tokens", "max_num_seqs")
        options: dict[str, Any] = {name: int(row[name]) for name in names if name in row}
        if "gpu_memory_utilization" in row:
            options["gpu_memory_utilization"] = float(row["gpu_memory_utilization"])
        # Of the releases that pagesim knows, the one that divides memory alike: since 0.21 with graphs.
        counts_graphs = release[0] != "V" and tuple(map(int, release.split(".")[:2])) >= (0, 21)
        options["vllm_version"] = "0.33.0" if counts_graphs else "0.11.2"
        gpu = row.get("gpu", "a100-80gb")  # with the log's GiB it does not matter
        return System(policy="vllm-v1", model=row["model"], gpu=gpu, **options)

    def planned(self, cache_bytes: int) -> Plan:
        return plan(self.system, cache_bytes=cache_bytes, enforce_eager=self.row["enforce_eager"] == "1")


POSTED = [Posted(row) for row in csv.DictReader(CSV.read_text(encoding="utf-8").splitlines())]
STARTED = [log for log in POSTED if float(log.row.get("concurrency", 1)) >= 1]


def name_of(log: Posted) -> str:
    return f"{log.row['source']} {log.row['model']} {log.row['available_gib']}"


def system(**options: Any) -> System:
    return System(
        policy="vllm-v1", **{"model": "llama-3.1-8b", "gpu": "h100", "max_model_len": 8192, **options}
    )


def block_bytes(log: Any) -> int:
    spec, tp = model(log.row["model"]), int(log.row["tensor_parallel_size"])
    return 16 * spec.kv_bytes_per_token("bf16", tp)


def printed_blocks(log: Any) -> int:
    """The blocks that a log tells, as such or in tokens."""
    return int(log.row["blocks"]) if "blocks" in log.row else int(log.row["tokens"]) // 16


def test_there_are_twenty_logs_of_seven_models_and_of_nine_releases():
    assert len(POSTED) >= 20
    assert len({log.row["model"] for log in POSTED}) >= 7
    assert len({log.row.get("release") for log in POSTED}) >= 9
    assert all(log.row["link"].startswith("https://github.com/") for log in POSTED)


@pytest.mark.parametrize("log", POSTED, ids=name_of)
def test_the_blocks_that_a_log_tells_lie_where_the_rounding_of_its_gib_leaves_them(log):
    least, most = blocks_behind(log.available_gib, block_bytes(log))
    assert least <= printed_blocks(log) <= most
    assert most - least <= ceil(0.01 * GIB / block_bytes(log)), "no wider than a hundredth of a GiB"
    if "blocks" in log.row and "tokens" in log.row:
        assert 16 * int(log.row["blocks"]) == int(log.row["tokens"])


@pytest.mark.parametrize("log", STARTED, ids=name_of)
def test_at_the_tokens_that_a_log_tells_a_plan_prints_the_lines_of_the_log(log):
    planned = log.planned(printed_blocks(log) * block_bytes(log))
    assert planned.sized.num_blocks == printed_blocks(log)
    _, tokens, concurrency = planned.log
    if "tokens" in log.row:
        assert tokens == f"GPU KV cache size: {int(log.row['tokens']):,} tokens"
    longest = int(log.row["max_model_len"])
    if "concurrency" in log.row:
        printed = log.row["concurrency"]
        assert concurrency == f"Maximum concurrency for {longest:,} tokens per request: {printed}x"


@pytest.mark.parametrize("log", STARTED, ids=name_of)
def test_with_the_gib_of_a_log_alone_a_plan_comes_within_its_rounding_of_the_tokens(log):
    planned = log.planned(int(log.available_gib * GIB))
    assert abs(planned.sized.num_blocks - printed_blocks(log)) <= ceil(0.005 * GIB / block_bytes(log))
    if "concurrency" in log.row:
        each = ceil(int(log.row["max_model_len"]) / 16)
        assert planned.concurrency == pytest.approx(
            float(log.row["concurrency"]), abs=0.005 + ceil(0.005 * GIB / block_bytes(log)) / each
        )


def test_an_engine_that_did_not_start_is_one_that_a_plan_refuses():
    (refused,) = [log for log in POSTED if log not in STARTED]
    assert refused.row["concurrency"] == "0.82"
    with pytest.raises(
        CapacityError, match=r"max_model_len is 29000 tokens.* at most 23\d\d\d in the 147\d KV"
    ):
        refused.planned(int(refused.available_gib * GIB))


def test_the_parts_make_up_the_memory_of_the_gpu():
    for cache_bytes in (None, 20 * GIB):
        parts = plan(system(), cache_bytes=cache_bytes).parts
        assert sum(part.bytes for part in parts) == gpu("h100").memory_bytes


def test_a_plan_counts_the_blocks_that_a_run_under_vllms_sizing_has():
    planned = plan(system(max_num_batched_tokens=4096, max_num_seqs=100))
    held = capacity(
        model("llama-3.1-8b"),
        gpu("h100"),
        MemoryOptions(0.92, max_num_batched_tokens=4096, max_num_seqs=100, sampler_buffers=True),
        sizing="vllm",
        max_model_len=8192,
    )
    assert replace(planned.sized, plan=None) == held
    assert planned.blocks == planned.sized.plan


def test_larger_iterations_graphs_and_a_smaller_share_each_leave_less_for_the_cache():
    sizes = [
        plan(system(max_num_batched_tokens=2048), enforce_eager=True),
        plan(system(max_num_batched_tokens=2048)),
        plan(system(max_num_batched_tokens=32768)),
        plan(system(max_num_batched_tokens=32768, max_num_seqs=4096)),
        plan(system(max_num_batched_tokens=32768, max_num_seqs=4096, gpu_memory_utilization=0.8)),
    ]
    for more, less in pairwise(sizes):
        assert more.cache_bytes > less.cache_bytes


def test_a_release_that_does_not_count_cuda_graphs_leaves_them_out():
    assert plan(system(vllm_version="0.19.0")).division.graphs == 0
    assert plan(system(vllm_version="0.33.0")).division.graphs > 0


def blocks(number: int) -> int:
    """Bytes of so many blocks of llama-3.1-8b."""
    return number * 16 * 131072


def test_ten_whole_requests_in_the_log_are_nine_that_run_because_one_block_is_the_null_block():
    planned = plan(system(), cache_bytes=blocks(5120))
    assert planned.log[2] == "Maximum concurrency for 8,192 tokens per request: 10.00x"
    assert planned.at_once == 9
    assert plan(system(), cache_bytes=blocks(5121)).at_once == 10


def test_no_more_run_at_once_than_max_num_seqs_whatever_the_cache_holds():
    planned = plan(system(max_num_seqs=7), cache_bytes=blocks(5121))
    assert (planned.at_once, f"{planned.concurrency:.2f}") == (7, "10.00")


def test_a_longest_request_that_ends_in_the_middle_of_a_block_takes_the_whole_of_it():
    planned = plan(system(max_model_len=1000), cache_bytes=blocks(630))
    assert planned.concurrency == 10  # 63 blocks each, not 62.5
    assert planned.tokens == 10_000
    assert plan(system(max_model_len=1000, vllm_version="0.11.2"), cache_bytes=blocks(630)).tokens == 630 * 16


def test_a_model_that_does_not_fit_is_refused_with_the_number_of_gpus_that_it_needs():
    with pytest.raises(CapacityError, match=r"opt-66b .* does not fit on l4: .* that fits is 8"):
        plan(System(policy="vllm-v1", model="opt-66b", gpu="l4"))


def test_a_cache_of_less_than_a_block_is_refused():
    with pytest.raises(CapacityError, match=r"a KV block of llama-3\.1-8b takes 2097152 bytes on each GPU"):
        plan(system(), cache_bytes=1000)


def test_only_vllms_own_scheduler_has_a_plan():
    with pytest.raises(
        PagesimError, match="policy is orca-max; a plan is one of vLLM's memory: choose vllm-v1"
    ):
        plan(System(policy="orca-max"))


def test_an_rtx_4090_whose_sampler_sorts_has_the_blocks_that_its_server_printed() -> None:
    asked = {"policy": "vllm-v1", "vllm_version": "0.19.0", "model": "llama-3.1-8b", "gpu": "rtx-4090"}
    asked |= {"max_num_batched_tokens": 2048, "max_num_seqs": 256, "max_model_len": 32768}
    asked |= {"gpu_memory_utilization": 0.9}
    printed = 2588
    sorting = plan(System(**asked, flashinfer_sampler=False))
    assert sorting.sized.num_blocks == pytest.approx(printed, rel=0.02)
    taken = plan(System(**asked)).sized.num_blocks
    assert 1.05 * printed < taken < 1.12 * printed
    assert sorting.settled["flashinfer_sampler"] is False


def test_a_sampler_that_sorts_holds_what_is_sorted_beside_the_logits() -> None:
    spec, device = model("qwen3-8b"), gpu("a100-40gb")
    sorting = divide(spec, device, MemoryOptions(flashinfer_sampler=False))
    assert sorting.activations == 26 * 256 * spec.vocab
    assert (
        divide(spec, device).cache - sorting.cache == sorting.activations - divide(spec, device).activations
    )


def test_a_weight_dtype_leaves_the_cache_what_it_saves() -> None:
    asked = {"policy": "vllm-v1", "model": "llama-3.1-8b", "gpu": "h100", "max_model_len": 8192}
    plain, packed = plan(System(**asked)), plan(System(**asked, weight_dtype="int4"))
    spec = model("llama-3.1-8b")
    saved = spec.weight_bytes - spec.with_weights("int4").weight_bytes
    assert packed.cache_bytes - plain.cache_bytes == saved
    assert packed.sized.num_blocks - plain.sized.num_blocks == pytest.approx(saved / (16 * 131072), abs=1)
    assert packed.settled["weight_dtype"] == "int4"


def test_a_run_says_in_what_its_products_were_computed() -> None:
    trace = ps.Trace(arrival_s=np.zeros(2), prompt_tokens=np.full(2, 64), output_tokens=np.full(2, 4))
    system = {"model": "llama-3.1-8b", "gpu": "h100", "weight_dtype": "fp8", "cost": "roofline"}
    found = ps.simulate(trace, "vllm-v1", **system)
    assert any("fp8 weights of llama-3.1-8b (attention, mlp) to be computed in fp8" in n for n in found.notes)
