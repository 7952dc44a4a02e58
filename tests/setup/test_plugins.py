"""Parts of one's own, registered from Python: they decide as pagesim's own would, and mistakes are named."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from pagesim.kvcache.conformance import check_allocator

import pagesim as ps
from pagesim.costs import NOWHERE, UNBOUNDED, DecodeRun, IterationShape, Target
from pagesim.kvcache import Allocator, ContiguousAllocator, FirstFit, PagedAllocator, Pool, contiguous
from pagesim.scheduling import ContinuousBatching, Group, Prices
from pagesim.setup.registry import SCHEDULERS, Limits
from pagesim.sim.clock import to_ticks


@pytest.fixture(scope="module")
def trace() -> ps.Trace:
    return ps.make_trace("sharegpt", arrivals="poisson", rate=4.0, num_requests=80)


def paged(pool: Pool) -> Allocator:
    return PagedAllocator(pool.num_blocks, pool.block_size, pool.cpu_blocks, pool.reservation)


def alone(pool: Pool) -> Allocator:
    """Return memory on demand that shares nothing."""
    return PagedAllocator(pool.num_blocks, pool.block_size, shares=False)


class RoomForShort(ContinuousBatching):
    """Long prompts join only while a third of memory is free."""

    def may_join(self, group: Group) -> bool:
        roomy = 3 * self.memory.free_blocks >= self.memory.num_blocks
        return (roomy or group.length <= 200) and super().may_join(group)


def room_for_short(memory: Allocator, limits: Limits, prices: Prices) -> RoomForShort:
    return RoomForShort(
        memory,
        watermark=0.01,
        max_num_seqs=256,
        max_num_batched_tokens=2560,
        max_model_len=limits.max_model_len,
        preemption=limits.preemption,
        prices=prices,
    )


class Constant:
    beyond = NOWHERE

    def __init__(self, seconds: str, target: Target) -> None:
        self.seconds = float(seconds)
        self.target = target

    def iteration(self, shape: IterationShape) -> int:
        return to_ticks(self.seconds) if shape.tokens else 0

    def decode(self, sequences: int, context: int) -> DecodeRun:
        return to_ticks(self.seconds), 0, UNBOUNDED


@pytest.mark.parametrize(("policy", "make"), [("vllm-sosp", paged), ("orca-oracle", contiguous(FirstFit))])
def test_a_registered_copy_of_an_allocator_decides_as_the_original(trace, policy, make) -> None:
    ps.register("placement", "mine", make)
    original = {"vllm-sosp": "paged", "orca-oracle": "first-fit"}[policy]
    mine, own = (
        ps.simulate(trace, policy, placement=each, num_blocks=300, steps="iterations")
        for each in ("mine", original)
    )
    pd.testing.assert_frame_equal(mine.requests, own.requests, check_exact=True)
    pd.testing.assert_frame_equal(mine.steps, own.steps, check_exact=True)


def test_a_scheduler_of_ones_own_is_leapt_over_exactly(trace) -> None:
    ps.register("scheduler", "room-for-short", room_for_short)
    own = ps.simulate(trace, "vllm-sosp", num_blocks=150)
    leaping, stepping = (
        ps.simulate(trace, "vllm-sosp", scheduler="room-for-short", num_blocks=150, leap=leap)
        for leap in (True, False)
    )
    pd.testing.assert_frame_equal(leaping.requests, stepping.requests, check_exact=True)
    assert leaping.summary["requests"]["finished"] == 80
    assert leaping.summary["preemptions"] != own.summary["preemptions"], "it does decide otherwise"


def test_a_policy_of_ones_own_is_compared_with_the_others(trace) -> None:
    ps.register("scheduler", "room-for-short", room_for_short)
    ps.register("policy", "mine", ps.Policy("room-for-short", "on-demand", "paged", "short prompts first"))
    results = ps.compare(trace, ["vllm-sosp", "mine"], num_blocks=150)
    assert list(results) == ["vllm-sosp", "mine"]
    assert results["mine"].summary["policy"] == "mine"


def test_a_cost_model_is_told_what_it_prices_and_what_follows_its_name(trace) -> None:
    made: list[Constant] = []

    def make(text: str, target: Target) -> Constant:
        made.append(Constant(text, target))
        return made[-1]

    ps.register("cost", "constant", make)
    result = ps.simulate(trace, cost="constant:0.25", model="opt-6.7b", block_size=32, num_blocks=300)
    assert result.summary["itl"]["p50"] == 0.25
    target = made[0].target
    assert (target.model.name, target.gpu.name, target.block_size) == ("opt-6.7b", "a100-40gb", 32)


def test_a_result_names_the_module_that_registered_a_part(trace, tmp_path) -> None:
    ps.register("placement", "mine", paged)
    result = ps.simulate(trace, placement="mine", num_blocks=300)
    folder = result.save(tmp_path / "out")
    needs = (folder / "scenario.toml").read_text().partition("[needs.placement]\n")[2]
    assert needs == f'"mine" = "registered in Python from module {__name__}"\n'
    assert ps.load(folder).scenario == result.scenario


def test_a_registered_part_may_be_replaced(trace) -> None:
    for seconds in (0.1, 0.2):
        ps.register("cost", "constant", lambda _, target, s=seconds: Constant(s, target))
        assert ps.simulate(trace, cost="constant", num_blocks=300).summary["itl"]["p50"] == seconds


def test_an_allocator_on_demand_is_checked_without_a_reservation() -> None:
    check_allocator(paged)
    check_allocator(paged, reservation=None)
    check_allocator(alone, reservation=None)
    with pytest.raises(ValueError, match="contiguous memory needs a reservation"):
        check_allocator(contiguous(FirstFit), reservation=None)


def small(pool: Pool) -> Allocator:
    return PagedAllocator(pool.num_blocks - 1, pool.block_size)


class Sharing(ContiguousAllocator):
    shares = True


def sharing(pool: Pool) -> Allocator:
    assert pool.reservation is not None
    return Sharing(FirstFit(pool.num_blocks), pool.block_size, pool.reservation)


def broken(pool: Pool) -> Allocator:
    return PagedAllocator(0, pool.block_size)


@pytest.mark.parametrize(
    ("make", "options", "sentence"),
    [
        (lambda pool: "memory", {}, "placement mine makes a str; it must make an Allocator"),
        (small, {}, "placement mine has 299 blocks of 16 tokens; it was asked for 300 of 16"),
        (
            contiguous(FirstFit),
            {},
            "placement mine cannot be made: ValueError: contiguous memory needs",
        ),
        (alone, {"policy": "orca-max"}, "placement mine takes blocks as sequences grow, .* choose on-demand"),
        (
            alone,
            {"policy": "vllm-v1"},
            "scheduler vllm-v1 needs memory that shares blocks",
        ),
        (sharing, {"policy": "orca-max"}, "placement mine shares blocks and is no PagedAllocator; derive it"),
        (broken, {}, "placement mine cannot be made: ValueError: num_blocks is 0"),
        (
            paged,
            {"policy": "vllm-v1", "prefix_caching": True},
            "prefix_caching needs placement paged",
        ),
        (paged, {"policy": "static"}, "scheduler static cannot use placement mine"),
    ],
)
def test_an_allocator_that_does_not_go_with_the_rest_is_refused(trace, make, options, sentence) -> None:
    ps.register("placement", "mine", make)
    with pytest.raises(ps.PagesimError, match=sentence):
        ps.simulate(trace, **{"num_blocks": 300, "placement": "mine", **options})


def test_a_registration_that_would_mislead_is_refused() -> None:
    with pytest.raises(ps.PagesimError, match="placement paged comes with pagesim; register yours under"):
        ps.register("placement", "paged", paged)
    with pytest.raises(ps.PagesimError, match="option is 'allocator'; a part is registered for one of"):
        ps.register("allocator", "mine", paged)
    with pytest.raises(ps.PagesimError, match=r"scheduler is 'mine'; it must be one of static, .*, vllm-v1$"):
        ps.simulate("fixed:10,10", scheduler="mine")


@pytest.mark.parametrize(
    ("option", "part", "sentence"),
    [
        ("policy", "vllm-sosp", "policy mine is a str; it must be a Policy"),
        ("gpu", {"name": "mine"}, "gpu mine is a dict; it must be a GpuSpec"),
        ("placement", 16, "placement mine is a int; it must be something to call"),
    ],
)
def test_a_registered_part_is_of_its_kind(option, part, sentence) -> None:
    with pytest.raises(ps.PagesimError, match=sentence):
        ps.register(option, "mine", part)


def test_a_sweep_takes_names_in_any_case() -> None:
    tables = ps.sweep("fixed:10,10", grid={"rate": [1.0]}, num_requests=5, gpu="A100-40GB", jobs=1)
    assert tables.runs["status"].tolist() == ["done"]


def test_a_sweep_refuses_what_only_this_process_has() -> None:
    ps.register("placement", "mine", paged)
    with pytest.raises(ps.PagesimError, match=r"placement mine was registered in this process"):
        ps.sweep("fixed:10,10", grid={"rate": [1.0]}, num_requests=5, placement="mine", jobs=1)


def test_names_are_pagesims_own_first() -> None:
    ps.register("scheduler", "a", room_for_short)
    names = SCHEDULERS.names()
    assert names[0] == "static"
    assert names[-1] == "a"
    assert np.all([SCHEDULERS.owns(name) for name in names[:-1]])
