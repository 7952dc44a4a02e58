"""Random systems with drafts, in stages and of ranks: fast-forward is stepping, the ledger is the cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest

from pagesim.kvcache import Full, KVGroup, State
from pagesim.scheduling.vllm_v1 import VllmV1Options
from pagesim.workloads.trace import Trace
from tests.sim.hybrid_systems import HybridCase, replay
from tests.sim.served_systems import KINDS

PART = 40


def check(kind: str, seeds: Iterable[int]) -> Counter[str]:
    """Check the systems of some seeds; return what was in them."""
    found: Counter[str] = Counter()
    for seed in seeds:
        found.update(KINDS[kind](seed))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_random_systems_decide_the_same_with_fast_forward_and_without(kind: str) -> None:
    # Drafts, 1041: a hit has a window, and not what MTP modules read behind it. 553, 1074: a prompt with
    # which vLLM would never go on.
    # Attention, 297: the run ends while a request that is about to end has not joined the running batch.
    more = {"drafts": (553, 1041, 1074), "attention": (297,)}.get(kind, ())
    found = check(kind, [*range(PART), *more])
    assert found["cases"] > PART / 2
    assert min(found.values()) > 0, found


@pytest.mark.slow
@pytest.mark.parametrize("part", range(1, 9))
@pytest.mark.parametrize("kind", KINDS)
def test_many_random_systems_do(kind: str, part: int) -> None:
    assert check(kind, range(part * PART, (part + 1) * PART))["cases"] > PART / 2


@pytest.mark.parametrize(
    ("config", "prompts"),
    [
        # Of 16 tokens a step the drafter takes one, and 15 are no block of states.
        ('{"method": "draft_model", "num_speculative_tokens": 3}', (15, 40, 15)),
        # A chunk must stop at token 32, and 2 tokens are too few for 3 modules: 31 run, and then none.
        (
            '{"method": "mtp", "n_predict": 3, "disable_eagle_block_drop": true}',
            (15, 34, 15),
        ),
    ],
)
def test_a_prompt_that_vllm_never_gives_its_next_tokens_is_given_up(
    config: str, prompts: tuple[int, int, int]
) -> None:
    options = VllmV1Options(
        max_num_batched_tokens=16, max_num_seqs=4, enable_prefix_caching=True, speculative_config=config
    )
    groups = [KVGroup(16, rule, page_bytes=24) for rule in (Full(), State(aligned=True, drafts=3))]
    trace = Trace(np.zeros(3), np.array(prompts), np.array([3, 3, 3]))
    case = HybridCase(groups, 100, caches=True, retention=0, options=options, trace=trace)
    columns = replay(case, fast_forward=True).columns
    assert (columns["first_token"] >= 0).tolist() == [True, False, True]
