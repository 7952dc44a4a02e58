"""The ledger, worked out from intervals, against every slot looked at one by one."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import pytest

import pagesim as ps
from pagesim.accounting import metrics
from pagesim.accounting.ledger import LedgerError, Sharing, expand
from pagesim.results.step_table import StepTable
from pagesim.scheduling.batch import Batch
from pagesim.setup.prepare import prepare
from pagesim.setup.server import Server
from pagesim.setup.system import System, checked
from tests.sim.slow_ledgers import EveryIteration

OPTIONS: dict[str, Any] = {"steps": "iterations", "fast_forward": False, "cost": "affine:0.02,1e-4,1e-6"}


class SlotBySlot(EveryIteration):
    """Classifies every slot that a request holds, in every iteration, straight from the definitions."""

    def __init__(self) -> None:
        self.seen: list[dict[str, int]] = []

    def planned(self, batch: Batch, now: int, start: int, ticks: int) -> None:
        memory = self.scheduler.memory
        size = memory.block_size
        blocks: dict[int, tuple[int, int, int]] = {}  # block → slots filled, fillable, promised
        for request in self.scheduler.running.values():
            reserved = memory.held_and_reserved(request)
            for sample, final in enumerate(request.finals):
                # Memory holds a static row at its padded length; only its own tokens are used.
                length = min(memory.length(request), final)
                if self.scheduler.speculation is not None:
                    length = self.scheduler.stored_length(request)
                extents = memory.extents(request, sample)
                held = [block for first, count in extents for block in range(first, first + count)]
                promised = max(0 if reserved is None else reserved[1], final)
                for place, block in enumerate(held):
                    here = tuple(min(max(each - place * size, 0), size) for each in (length, final, promised))
                    before = blocks.get(block, (0, 0, 0))
                    blocks[block] = tuple(map(max, here, before))
        count: Counter[str] = Counter()
        for filled, fillable, promised in blocks.values():
            count["used"] += filled
            count["reserved"] += fillable - filled
            count["unused_reservation"] += promised - fillable
            count["rounding"] += size - promised
        if memory.caches_prefixes:
            count["cached"] = size * sum(count for _, count in memory.cached_extents())
        memory.check_integrity()
        names = ("used", "reserved", "unused_reservation", "rounding", "cached")
        self.seen.append({name: count[name] for name in names})


@pytest.mark.parametrize("block_size", [pytest.param(1, marks=pytest.mark.slow), 16])
@pytest.mark.parametrize(
    ("policy", "kind"),
    [
        *product(("static", "contiguous-max", "orca-max", "orca-pow2", "orca-oracle"), ("one", "alike")),
        *product(("vllm-sosp", "vllm-v0"), ("one", "alike", "beams")),
        ("orca-pow2", "beams"),
        ("vllm-v0", "unequal"),
        ("vllm-v1", "one"),
        ("vllm-v1", "prefix"),
        ("vllm-v1", "drafts"),
        ("trtllm", "one"),
        *product(("token-granular", "virtual-contiguous"), ("one", "alike", "beams")),
    ],
)
def test_every_iteration_classifies_every_slot(policy: str, block_size: int, kind: str) -> None:
    rng = np.random.default_rng(7)
    trace = ps.Trace(np.cumsum(rng.exponential(0.02, 24)), rng.integers(1, 90, 24), rng.integers(1, 60, 24))
    three = np.full(24, 3)
    if kind == "beams":
        trace = trace.with_columns({"beam_width": three})
    elif kind in ("prefix", "drafts"):
        trace = trace.with_columns({"prefix_tokens": np.minimum(trace.prompt_tokens, 40)})
    elif kind != "one":
        trace = trace.with_columns({"n": three})
    if kind == "unequal":
        tokens = [(1 + longest // 3, longest, 1 + longest // 2) for longest in trace.output_tokens.tolist()]
        trace = trace.with_columns(
            {"sample_tokens": tokens, "output_tokens": np.array([max(each) for each in tokens])}
        )
    sizes: dict[str, Any] = {"block_size": block_size, "cpu_blocks": 2400}
    if policy == "token-granular":
        block_size = sizes["block_size"] = 1
    elif policy == "virtual-contiguous":
        # The keys of a token of a layer are 10 KiB.
        sizes, block_size = ({"page_size": "64K"}, 6) if block_size == 1 else ({"page_size": "256K"}, 25)
    options = {
        "policy": policy,
        "num_blocks": (400 if kind in ("prefix", "drafts") else 800) // block_size,
        "max_model_len": 150,
        "cost": "affine:0.02,1e-4,1e-6",
        **sizes,
        **(
            {"max_num_batched_tokens": 64, "enable_prefix_caching": kind in ("prefix", "drafts")}
            if policy == "vllm-v1"
            else {}
        ),
        **(
            {
                "capacity_scheduler_policy": "MAX_UTILIZATION",
                "enable_chunked_prefill": True,
                "max_batch_size": 24,
                "max_num_tokens": 64,
            }
            if policy == "trtllm"
            else {}
        ),
        **(
            {"speculative_method": "eagle3", "speculative_tokens": 5, "acceptance": 0.6}
            if kind == "drafts"
            else {}
        ),
    }
    setting = prepare(checked(System, options), trace)
    arrivals = setting.arrivals()
    table = StepTable(
        arrivals,
        every=True,
        shape=setting.ledger_shape(),
        reserves=setting.reserves,
    )
    looks = SlotBySlot()
    server = Server(setting, setting.new_log(), arrivals, consume=[table.add], observers=[looks], tables=True)
    looks.scheduler = server.scheduler
    server.engine.replay()
    steps, seen = table.frame(), looks.seen
    assert len(seen) == len(steps) > 60
    for name in ("used", "reserved", "unused_reservation", "rounding", "cached"):
        np.testing.assert_array_equal(steps[name], [each[name] for each in seen], err_msg=name)
    if kind in ("prefix", "drafts"):
        assert max(each["cached"] for each in seen) > 0
        assert steps["num_logical_blocks"].sum() > steps["num_physical_blocks"].sum()
    if policy.startswith(("vllm", "token", "virtual", "trtllm")):
        assert sum(server.summary()["preemptions"].values()) > 0, "the memory is meant to be too small"


def test_free_memory_that_would_hold_the_head_of_the_queue_but_has_no_place_for_it_is_external() -> None:
    # 24 blocks carve as 16 + 8. The first request takes the 8, the second 4 of the 16: 12 blocks are free
    # and the third asks for 12, but the buddies left are 4 and 8. When the second is over they merge.
    trace = ps.Trace(np.zeros(3), np.ones(3, int), np.array([7, 3, 11]))
    steps = ps.simulate(trace, "orca-oracle", num_blocks=24, block_size=1, max_model_len=16, **OPTIONS).steps
    assert steps is not None
    assert steps["free_gpu_blocks"].tolist()[:4] == [12, 12, 12, 0]
    assert steps["external"].tolist()[:4] == [12, 12, 12, 0]
    assert steps["free"].tolist()[:4] == [0, 0, 0, 0]


def test_orca_maxs_last_blocks_are_free_in_strict_and_external_in_the_papers_view() -> None:
    trace = ps.Trace(np.zeros(20), np.full(20, 100), np.full(20, 100))
    result = ps.simulate(trace, "orca-max", num_blocks=983, window="0:1", until=1.0, cost="affine:0.02,0,0")
    memory = result.summary["memory"]
    assert result.summary["batch"]["mean"] == 7
    assert memory["strict"]["per_iteration"]["free"] == pytest.approx(100 * 87 / 983)
    assert memory["strict"]["per_iteration"]["external"] == 0
    assert memory["paper"]["per_iteration"]["external"] == pytest.approx(100 * 87 / 983)


def test_intervals_that_overfill_memory_are_noticed() -> None:
    overfull = np.array([[0, 0, 9, 20, 1, 1, 3, 12]])
    nothing = np.zeros(1, np.int64)
    with pytest.raises(LedgerError, match="negative"):
        expand(
            overfull,
            np.array([1]),
            block_size=4,
            num_blocks=2,
            external_blocks=nothing,
            sharing=Sharing(nothing, nothing, nothing),
            cached_blocks=nothing,
            held_without_running={},
        )


def test_bytes_over_days_are_summed_exactly() -> None:
    rng = np.random.default_rng(5)
    columns = {name: rng.integers(0, 1 << bits, 1 << 15) for name, bits in (("slots", 21), ("bytes", 42))}
    ticks = rng.integers(0, 1 << 55, 1 << 15)
    found = metrics._exact_dots({**columns, "none": np.zeros(1 << 15, np.int64)}, ticks)
    for name, column in columns.items():
        assert found[name] == sum(a * b for a, b in zip(column.tolist(), ticks.tolist(), strict=True))
    assert found["none"] == 0


def test_a_ledger_in_bytes_adds_up_over_hours() -> None:
    """An hour of 60 GB is 2·10²⁶ byte-ticks; 64 bits hold 10¹⁹."""
    trace = ps.make_trace("fixed:600,200", num_requests=60, rate=0.01)
    done = ps.simulate(trace, "vllm-v1", model="gpt-oss-20b", gpu="h100", cost="affine:1,0,0")
    shares = done.fragmentation()["mean over time"].drop(["unused reservation", "rounding", "padding"])
    assert done.requests["finish_s"].max() > 3600
    assert shares.sum() == pytest.approx(1.0)
    assert shares.between(0, 1).all()
