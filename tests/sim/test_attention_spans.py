"""What is within the span of layers that do not look back on all tokens: by a slow count, in fast-forward."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest

from pagesim.costs import AttentionSpan, Efficiency, EngineTime, Roofline
from pagesim.hardware import gpu
from pagesim.kvcache import HybridManager
from pagesim.models import MixtureOfExperts, ModelSpec
from pagesim.models.layers import ChunkLayer, FullLayer, Layer, StateLayer, WindowLayer
from pagesim.scheduling.batch import Batch
from tests.sim.hybrid_systems import random_case, replay
from tests.sim.slow_ledgers import EveryIteration


def attends_to(span: AttentionSpan, token: int) -> int:
    """Return how many tokens one attends to, itself included, from the definition; the first token is 0."""
    first = token - token % span.size if span.kind == "chunk" else max(0, token + 1 - span.size)
    return len(range(first, token + 1))


class SlowReaches(EveryIteration):
    """Goes through every request in every iteration.

    Attributes:
        seen: how often sequences decoded that were shorter than a span, and longer, and prompts ran.
    """

    def __init__(self, cost: Roofline) -> None:
        self.spans = cost.spans or ()
        self.seen: Counter[str] = Counter()

    def planned(self, batch: Batch, now: int, start: int, ticks: int) -> None:
        memory = self.scheduler.memory
        assert isinstance(memory, HybridManager)
        prompts = dict(batch.chunks)
        decoding = [
            memory.length(each)
            for each in self.scheduler.running.values()
            if each.decodes and each not in prompts
        ]
        assert len(decoding) == batch.decoding
        read = tuple(sum(attends_to(span, length - 1) for length in decoding) for span in self.spans)
        pairs = tuple(
            sum(
                attends_to(span, token)
                for request, tokens in prompts.items()
                for token in range(memory.length(request) - tokens, memory.length(request))
            )
            for span in self.spans
        )
        assert (batch.reached, batch.reached_pairs) == (read, pairs)
        assert batch.computed_prompts == len(prompts)
        self.seen["prompts"] += len(prompts)
        for span in self.spans:
            self.seen[f"beyond a {span.kind}"] += any(length > span.size for length in decoding)
            self.seen[f"within a {span.kind}"] += any(length < span.size for length in decoding)


def random_costs(rnd: Random) -> Roofline:
    """Return the roofline of a small model of layers of several kinds."""
    kinds: list[Layer] = [
        FullLayer(2, 64),
        *(WindowLayer(2, 64, rnd.choice((1, 2, 17, 40, 90, 200))) for _ in range(2)),
        ChunkLayer(1, 64, rnd.choice((1, 3, 16, 32, 50))),
        StateLayer((3, 64), (8, 64, 16)),
    ]
    cached = tuple(rnd.sample(kinds, rnd.randint(1, len(kinds))))
    if not any(isinstance(layer, FullLayer) for layer in cached):
        cached = (*cached, kinds[0])
    model = ModelSpec(
        *("mixed", len(cached), 256, 512, 8, 2, 64, 1000, 4096, "made up"),
        cached=cached,
        moe=MixtureOfExperts(16, 2, 128) if rnd.random() < 0.5 else None,
    )
    # Slow enough for the context to matter.
    return Roofline(
        model, gpu("h100"), efficiency=Efficiency(hbm=1e-4, kv=1e-5), engine=EngineTime(0.001, 1e-5)
    )


def check(seed: int) -> Counter[str]:
    case, cost = random_case(seed), random_costs(Random(seed))
    slow = SlowReaches(cost)
    stepped = replay(case, fast_forward=False, cost=cost, slow=slow if cost.spans is not None else None)
    forwarded = replay(case, fast_forward=True, cost=cost)
    for name, column in stepped.columns.items():
        assert np.array_equal(column, forwarded.columns[name]), f"seed {seed}: {name} differs"
    return slow.seen


def test_random_hybrid_systems_read_what_a_slow_count_says_and_take_as_long_in_fast_forward():
    seen = sum(map(check, range(1000, 1030)), Counter())
    kinds = ("prompts", "beyond a window", "within a window", "beyond a chunk", "within a chunk")
    assert min(seen[kind] for kind in kinds) > 0, seen


@pytest.mark.slow
def test_many_random_hybrid_systems_do():
    for seed in range(1030, 1250):
        check(seed)
