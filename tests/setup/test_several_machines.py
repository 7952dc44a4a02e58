"""A line of a server over several machines says what one over a machine with as many GPUs does."""

from __future__ import annotations

import pytest
from serve_lines import refusal

from pagesim.setup.serve import read_serve

SGLANG = "sglang serve deepseek-ai/DeepSeek-R1 --tp 16"
VLLM = "vllm serve deepseek-ai/DeepSeek-R1 --tensor-parallel-size 8 --pipeline-parallel-size 2"


@pytest.mark.parametrize(
    ("line", "more"),
    [
        (SGLANG, "--dist-init-addr 10.0.0.1:20000 --nnodes 2 --node-rank 0"),
        (f"{SGLANG} --dp 2 --enable-dp-attention", "--nnodes 2 --node-rank 1 --nccl-init-addr a:20000"),
        (VLLM, "--nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --master-port 29501"),
    ],
)
def test_the_machines_of_a_replica_change_nothing(line: str, more: str) -> None:
    read = read_serve(f"{line} {more}")
    assert read.options == read_serve(line).options
    assert "--nnodes" in read.notes[0]


def test_machines_that_change_something_are_refused() -> None:
    assert "--nnodes is 3; it must divide the 16 GPUs evenly" in refusal(f"{SGLANG} --nnodes 3")
    assert "--nnodes is 0; " in refusal(f"{VLLM} --nnodes 0")
    # SGLang does not start so (check_server_args): replicas, unlike ranks of attention, are of one machine.
    assert "--nnodes beside --dp-size affects" in refusal(f"{SGLANG} --dp 2 --nnodes 2")
    # Host memory is that of each machine (pool_host/base.py).
    assert "--nnodes beside --enable-hierarchical-cache" in refusal(
        f"{SGLANG} --nnodes 2 --enable-hierarchical-cache"
    )
    assert "--nnodes beside --data-parallel-size" in refusal(f"{VLLM} --data-parallel-size 2 --nnodes 2")


def test_a_first_rank_makes_each_server_choose_among_its_own() -> None:
    line = "vllm serve Qwen/Qwen3-30B-A3B --data-parallel-size 8 --data-parallel-size-local 4"
    hybrid = read_serve(f"{line} --data-parallel-hybrid-lb")
    assert read_serve(f"{line} --data-parallel-start-rank 4").options == hybrid.options
    assert hybrid.options != read_serve(line).options
    assert "--data-parallel-start-rank 0 affects scheduling" in refusal(
        "vllm serve opt-13b --data-parallel-start-rank 0"
    )


def test_a_list_of_graphs_says_the_largest_as_its_own_flag_does() -> None:
    line = "sglang serve llama-3.1-8b"
    listed = read_serve(f"{line} --cuda-graph-bs-decode 1 2 64 4 --cuda-graph-max-bs-decode 8")
    # ``max_bs = max(bs)`` (arg_groups/memory_hook.py).
    assert listed.options == read_serve(f"{line} --cuda-graph-max-bs-decode 64").options
    assert "--cuda-graph-bs-decode is 'x'; it must be a whole number" in refusal(
        f"{line} --cuda-graph-bs-decode 1 x"
    )
