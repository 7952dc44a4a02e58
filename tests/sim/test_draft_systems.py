"""Random systems with drafts on layers that differ: the ledger is that of the block tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest

from pagesim.accounting.ledger import GROUP_ENTRIES, HYBRID_ENTRIES
from pagesim.kvcache import Full, KVGroup, SlidingWindow, State
from pagesim.scheduling.vllm_v1 import VllmV1Options
from pagesim.workloads.trace import Trace
from tests.sim.hybrid_systems import HybridCase, drafting_case, replay
from tests.sim.slow_ledgers import SlowDraftLedger


def check(seeds: Iterable[int]) -> Counter[str]:
    """Replay the systems of some seeds beside a slow ledger; count what was in them."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        case, slow = drafting_case(seed), SlowDraftLedger()
        stepped = replay(case, fast_forward=False, slow=slow)
        columns = stepped.columns
        # Where the records are cut into chunks changes nothing either.
        other = replay(case, fast_forward=True, chunk=1 + seed % 50).columns
        assert other.keys() == columns.keys()
        for name, column in columns.items():
            assert np.array_equal(column, other[name]), f"seed {seed}: {name} differs with fast-forward"
        assert len(slow.seen) == len(columns["clock"])
        for name in (*HYBRID_ENTRIES, *(f"{e}_{g}" for g in range(len(case.groups)) for e in GROUP_ENTRIES)):
            counted = np.array([each.get(name, 0) for each in slow.seen])
            assert np.array_equal(columns[name], counted), f"seed {seed}: {name} differs from the slow ledger"
        rules = [group.rule for group in case.groups]
        seen["preempted"] += stepped.recomputed > 0
        seen["hits"] += bool(columns["cached"].any())
        seen["states"] += any(isinstance(rule, State) for rule in rules)
        seen["dropped"] += any(group.drops_block for group in case.groups)
        seen["retained"] += any(isinstance(rule, SlidingWindow) and rule.retained > 0 for rule in rules)
        seen["shared"] += slow.disputed > 0
    return seen


def test_every_byte_of_drafts_on_hybrid_models_is_classified_in_every_iteration() -> None:
    # 1041: a hit has a window, and not what MTP modules read behind it. 553, 1074: vLLM would never go on.
    seen = check([*range(40), 553, 1041, 1074])
    assert min(seen.values()) > 0, seen


@pytest.mark.slow
@pytest.mark.parametrize("part", range(1, 10))
def test_it_is_on_many_more(part: int) -> None:
    check(range(40 * part, 40 * (part + 1)))


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
