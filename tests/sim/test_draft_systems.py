"""Random systems with drafts on layers that differ: fast-forward takes the same steps, no block is lost."""

from __future__ import annotations

from collections import Counter

import pytest

from pagesim.kvcache import State
from tests.sim.hybrid_systems import drafting_case, make_memory, replay


def check(seeds: range) -> Counter[str]:
    """Replay the systems of some seeds, and count what was in them."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        case = drafting_case(seed)
        memory = make_memory(case)
        stepping = replay(case, fast_forward=False, memory=memory)
        assert memory.free_blocks == memory.num_blocks, seed
        outcome = replay(case, fast_forward=True)
        assert outcome.columns.keys() == stepping.columns.keys()
        for name, column in stepping.columns.items():
            assert column.tolist() == outcome.columns[name].tolist(), (seed, name)
        seen["preempted"] += stepping.recomputed > 0
        seen["hits"] += bool(stepping.columns["cached"].any())
        seen["states"] += any(isinstance(group.rule, State) for group in case.groups)
        seen["dropped"] += any(group.drops_block for group in case.groups)
    return seen


def test_drafts_on_hybrid_models_are_the_same_in_fast_forward_and_step_by_step() -> None:
    seen = check(range(40))
    assert all(seen[what] for what in ("preempted", "hits", "states", "dropped")), seen


@pytest.mark.slow
def test_they_are_on_many_more() -> None:
    seen = check(range(40, 400))
    assert min(seen.values()) > 30, seen
