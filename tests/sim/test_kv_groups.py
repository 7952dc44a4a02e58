"""KV groups under an engine: fast-forward is as stepping, whatever the groups are."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from pagesim.costs.affine import Affine
from pagesim.kvcache import (
    BlockManager,
    ChunkedLocal,
    HybridManager,
    KVGroup,
    SlidingWindow,
)
from pagesim.scheduling.continuous import VllmSosp
from pagesim.scheduling.continuous_options import SospOptions
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.vllm_v1 import VllmV1, VllmV1Options
from pagesim.workloads.trace import Trace
from tests.sim.drive import drive
from tests.sim.hybrid_systems import LONGEST, random_groups, random_trace


def replay(scheduler: Scheduler, trace: Trace, *, fast_forward: bool) -> dict[str, np.ndarray]:
    """Return everything that was decided, in columns over requests and iterations."""
    return drive(scheduler, trace, Affine(0.01, 1e-4, 1e-6), fast_forward=fast_forward)[0]


@pytest.mark.parametrize("seed", range(20))
def test_whole_prompts_are_fast_forwarded_as_they_step(seed):
    rnd = Random(seed)
    groups, trace = random_groups(rnd, caches=False), random_trace(rnd)
    least = sum(-(-220 // group.block_size) + 1 for group in groups)
    blocks, options = rnd.choice((least, 2 * least, 3000)), SospOptions(max_num_seqs=rnd.choice((2, 8, 64)))

    def once(fast_forward: bool) -> dict[str, np.ndarray]:
        memory = HybridManager(blocks, groups, longest=LONGEST, in_flight=LONGEST)
        scheduler = VllmSosp(memory, options, max_model_len=LONGEST)
        return replay(scheduler, trace, fast_forward=fast_forward)

    base, other = once(False), once(True)
    for name, column in base.items():
        assert np.array_equal(column, other[name]), name


@pytest.mark.parametrize("ahead", [False, True])
def test_a_window_holds_no_more_than_its_blocks_once_it_is_full(ahead):
    trace = Trace(np.zeros(1), np.array([4]), np.array([100]))
    memory = HybridManager(100, [KVGroup(4, SlidingWindow(8))], longest=LONGEST, in_flight=8)
    scheduler = VllmV1(memory, VllmV1Options(async_scheduling=ahead), max_model_len=LONGEST)
    blocks = replay(scheduler, trace, fast_forward=True)["blocks"]
    # 8 tokens reach into three blocks of 4; with one more that is in flight they may still.
    assert blocks.max() == 3


def waiting_for_a_chunk(memory: BlockManager) -> dict[str, np.ndarray]:
    """Return when two requests are served of which the second waits for blocks of the first."""
    trace = Trace(np.zeros(2), np.array([20, 50]), np.array([80, 5]))
    scheduler = VllmV1(memory, VllmV1Options(async_scheduling=False), max_model_len=LONGEST)
    return replay(scheduler, trace, fast_forward=True)


def test_a_request_that_waits_is_let_in_in_the_step_in_which_a_chunk_is_given_back():
    groups = [KVGroup(4, ChunkedLocal(32))]
    found = waiting_for_a_chunk(HybridManager(17, groups, longest=LONGEST, in_flight=64))
    assert found["first_scheduled"][1] > found["first_scheduled"][0], "it waited"
    assert found["finish"][1] < found["finish"][0], "it was let in while the first one ran"
