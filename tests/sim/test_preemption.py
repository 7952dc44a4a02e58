"""Preemption by the cheaper way: what is chosen, and what is recorded of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pagesim as ps
from pagesim.costs import Affine, PreemptionPrices

# Two requests outgrow the cache together: the later one is preempted.
PAIR = ps.Trace(np.array([0.0, 0.01]), np.array([100, 100]), np.array([100, 100]))
SMALL: dict[str, Any] = {"num_blocks": 20, "cpu_blocks": 100, "preemption": "auto"}


def test_a_swap_is_charged_for_both_transfers_and_a_recomputation_for_its_prompt() -> None:
    # An iteration takes 10 ms, a token 1 ms, one of context 1 us, a swapped block 2 ms.
    prices = PreemptionPrices(Affine(0.010, 0.001, 1e-6, 0.002))
    swap, recompute = prices(tokens=30, blocks=4, sequences=3, context=90)
    context = 30 * 10**6
    assert swap == (4 * 2 + 4 * 2 + 1) * 10**9 + context, "out, and in beside the token that is decoded"
    assert recompute == 30 * 10**9 + context


@pytest.mark.parametrize("policy", ["vllm-sosp", "vllm-v0"])
@pytest.mark.parametrize(("block_s", "choice"), [(1e-6, "swap"), (1e-1, "recompute")])
def test_the_cheaper_way_is_taken_and_the_other_ones_price_recorded(
    policy: str, block_s: float, choice: str
) -> None:
    result = ps.simulate(PAIR, policy, cost=f"affine:0.02,1e-4,1e-6,{block_s}", **SMALL)
    assert result.preemptions is not None
    assert len(result.preemptions) > 0
    assert set(result.preemptions["choice"]) == {choice}
    cheaper = result.preemptions["swap_s"] < result.preemptions["recompute_s"]
    assert (cheaper == (choice == "swap")).all()
    assert result.summary["preemptions"][choice] == len(result.preemptions)
    assert result.preemptions["request_id"].tolist() == [1] * len(result.preemptions)


def test_what_the_swap_space_cannot_hold_is_recomputed_whatever_it_costs() -> None:
    result = ps.simulate(PAIR, "vllm-sosp", cost="affine:0.02,1e-4,1e-6,1e-9", **(SMALL | {"cpu_blocks": 2}))
    assert result.preemptions is not None
    assert set(result.preemptions["choice"]) == {"recompute"}
    assert result.summary["requests"]["finished"] == 2


def test_a_group_of_several_samples_is_swapped_for_it_cannot_be_recomputed() -> None:
    trace = PAIR.with_columns({"n": np.array([1, 2])})
    result = ps.simulate(
        trace, "vllm-sosp", cost="affine:0.02,1e-4,1e-6,1e-1", **(SMALL | {"num_blocks": 30})
    )
    assert result.preemptions is not None
    assert result.preemptions.empty
    assert result.summary["preemptions"]["swap"] > 0


def test_the_table_is_stored_with_the_result(tmp_path: Any) -> None:
    result = ps.simulate(PAIR, "vllm-sosp", cost="affine:0.02,1e-4,1e-6,1e-6", **SMALL)
    again = ps.load(result.save(tmp_path / "result"))
    assert again.preemptions is not None
    assert result.preemptions is not None
    assert again.preemptions.equals(result.preemptions)


def test_vllm_v1_has_nothing_to_choose() -> None:
    with pytest.raises(ps.PagesimError, match=r"preemption is for scheduler .*, not vllm-v1"):
        ps.simulate(PAIR, "vllm-v1", preemption="auto")
