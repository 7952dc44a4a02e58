"""Experts over the GPUs of a deployment, beside what vLLM 0.33.0's own code deals out.

``expert_shares.csv`` has a row a case, with what ``FusedMoEParallelConfig.make`` and ``determine_expert_map``
say: the experts on each GPU, rank after rank, and the shares of the routed experts' bytes that GPUs hold.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from pagesim.errors import PagesimError
from pagesim.experiments.plan import plan
from pagesim.models import model
from pagesim.models.experts import ExpertBalancer, ExpertDivision
from pagesim.setup.system import System

CASES = [
    *csv.DictReader((Path(__file__).parent / "expert_shares.csv").read_text(encoding="utf-8").splitlines())
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join([*case.values()][:4]))
def test_experts_and_their_bytes_are_dealt_out_as_vllm_does(case: dict[str, str]) -> None:
    experts, redundant = (int(number or 0) for number in case["experts"].partition("+")[::2])
    gpus = [int(number) for number in case["on_each_gpu"].split()]
    tp, whole = int(case["tp"]), case["whole"] == "yes"
    balancer = ExpertBalancer(redundant) if redundant else None
    division = ExpertDivision(int(case["dp"]), whole, balancer=balancer)
    assert division.on_each_gpu(experts, tp) == gpus
    mixtral = model("mixtral-8x7b")
    assert mixtral.moe is not None
    spec = replace(mixtral, moe=replace(mixtral.moe, experts=experts))
    whole_bytes = spec.expert_bytes_per_gpu(1)
    found = {
        replace(spec, expert_division=division._replace(rank=rank)).expert_bytes_per_gpu(tp) / whole_bytes
        for rank in range(division.ranks)
    }
    shares = [float(share) for share in case["shares"].split()]
    assert max(found) == pytest.approx(max(shares), abs=1e-5)
    assert all(min(abs(each - share) for share in shares) < 1e-5 for each in found)


def test_a_gpu_has_the_rest_of_the_model_whatever_its_experts() -> None:
    """DeepSeek V3: all but its 256 routed experts is on each GPU of 8 ranks, and an eighth of those."""
    spec = model("deepseek-v3")
    experts, rest = spec.expert_bytes_per_gpu(1), spec.weight_bytes - spec.expert_bytes_per_gpu(1)
    for whole in (False, True):
        divided = replace(spec, expert_division=ExpertDivision(8, whole))
        assert divided.weight_bytes_per_gpu(1) == pytest.approx(rest + experts / 8, rel=1e-4)


def test_shared_experts_are_whole_where_gpus_of_a_rank_divide_its_tokens() -> None:
    spec = model("deepseek-v3")
    groups = {
        ranks: replace(spec, expert_division=ExpertDivision(ranks, True)).weight_bytes_by_group(2)
        for ranks in (1, 4)
    }
    assert groups[4]["shared"] == pytest.approx(2 * groups[1]["shared"], rel=1e-3)
    assert groups[4]["attention"] == groups[1]["attention"]


def test_a_plan_shows_the_experts_of_each_gpu_and_the_blocks_of_each_rank() -> None:
    system = System(
        model="qwen3-30b-a3b",
        gpu="h100",
        max_model_len=4096,
        data_parallel_size=3,
        enable_expert_parallel=True,
    )
    found = plan(system)
    assert found.experts == (43, 43, 42)
    first, second, third = found.blocks_of_ranks
    assert first == second == found.sized.num_blocks
    assert third > first
    assert found.as_dict()["tokens_of_ranks"] == 16 * (first + second + third)
    alone = plan(system.model_copy(update={"data_parallel_size": None, "enable_expert_parallel": None}))
    assert alone.experts == ()
    assert alone.sized.num_blocks < first


def test_a_load_balancer_keeps_copies_of_experts_a_buffer_and_maps() -> None:
    """DeepSeek V3 on 8 GPUs, by hand from ``EplbState.add_model``: each GPU holds 36 of 256 + 32 experts.

    An expert has 3 · 7168 · 2048 weights of a byte and as many scales of 4 bytes as blocks of 128 · 128.
    """
    options = {"tensor_parallel_size": 8, "enable_expert_parallel": True, "enable_eplb": True}
    found = {
        redundant: plan(
            System(model="deepseek-v3", gpu="h200", num_redundant_experts=redundant, **options)
        ).division
        for redundant in (0, 32)
    }
    without = plan(System(model="deepseek-v3", gpu="h200", tensor_parallel_size=8)).division
    assert without is not None
    expert, layers = 3 * 7168 * 2048 + 4 * 3 * 56 * 16, 58
    for redundant, division in found.items():
        assert division is not None
        copies = 256 + redundant
        maps = 8 * copies + 8 * 256 * 1024 + 8 * 256 + 4 * copies + 1000 * 4 * copies + 8 * 256
        more = redundant // 8 * layers * expert + copies // 8 * expert + layers * maps
        assert division.weights - without.weights == pytest.approx(more, abs=1)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"num_redundant_experts": 8}, "enable_eplb is off; vLLM does not start so"),
        ({"enable_eplb": True}, "and enable_expert_parallel: give these"),
        (
            {"enable_eplb": True, "enable_expert_parallel": True, "num_redundant_experts": 3},
            "the 259 experts of deepseek-v3 must be a multiple of the 8 GPUs: choose 8",
        ),
    ],
)
def test_a_load_balancer_that_vllm_does_not_start_with_is_refused(
    options: dict[str, object], sentence: str
) -> None:
    with pytest.raises(PagesimError, match=sentence):
        plan(
            System.model_validate(
                {"model": "deepseek-v3", "gpu": "h200", "tensor_parallel_size": 8, **options}
            )
        )
