"""Parts of one's own, registered from Python: they decide as pagesim's own would, and mistakes are named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from pydantic import Field

import pagesim as ps
from pagesim.allocators import FirstFit
from pagesim.costs import NOWHERE, UNBOUNDED, DecodeRun, IterationShape, Target
from pagesim.kvcache import (
    BlockManager,
    JengaManager,
    LayerTypePages,
    PagedManager,
    Pool,
    PooledManager,
    contiguous,
)
from pagesim.scheduling import EngineRequest, Scheduler, VllmSosp
from pagesim.setup.compiled import form
from pagesim.setup.registry import ALLOCATORS
from pagesim.sim.clock import to_ticks


@pytest.fixture(scope="module")
def trace() -> ps.Trace:
    return ps.make_trace("sharegpt", arrivals="poisson", rate=4.0, num_requests=80)


def paged(pool: Pool) -> BlockManager:
    return PagedManager(pool.num_blocks, pool.groups, pool.cpu_blocks, tables=pool.tables)


def alone(pool: Pool) -> BlockManager:
    """Return memory on demand that shares nothing."""
    return PagedManager(pool.num_blocks, Pool(pool.num_blocks, pool.block_size, 1).groups, shares=False)


class RoomForShort(VllmSosp):
    """Long prompts join only while a share of memory is free."""

    class Options(VllmSosp.Options):
        max_num_seqs: int = Field(256, ge=1, description="Running requests at most.")
        roomy: float = Field(1 / 3, ge=0, le=1, description="Share of the blocks that is room.")
        short: int = Field(200, ge=1, description="Tokens of a short prompt at most.")

    def __init__(self, memory: BlockManager, options: Options, **more: Any) -> None:
        super().__init__(memory, options, **more)
        self.room = options.roomy * memory.num_blocks
        self.short = options.short

    def may_join(self, request: EngineRequest) -> bool:
        roomy = self.memory.free_blocks >= self.room
        return (roomy or request.length <= self.short) and super().may_join(request)


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
def test_a_registered_copy_of_memory_decides_as_the_original(trace, policy, make) -> None:
    ps.register("allocator", "mine", make)
    original = {"vllm-sosp": "paged", "orca-oracle": "first-fit"}[policy]
    mine, own = (
        ps.simulate(trace, policy, allocator=each, num_blocks=300, steps="iterations")
        for each in ("mine", original)
    )
    pd.testing.assert_frame_equal(mine.requests, own.requests, check_exact=True)
    pd.testing.assert_frame_equal(mine.steps, own.steps, check_exact=True)


def large_pages(pool: Pool) -> BlockManager:
    """Return memory in which layer types cut large pages."""
    longest, in_flight = pool.max_model_len, pool.in_flight_tokens
    return JengaManager(pool.num_blocks, pool.layer_types, longest=longest, in_flight=in_flight)


def divided(pool: Pool) -> BlockManager:
    """Return memory with a pool of pages for each layer type."""
    longest, in_flight, size = pool.max_model_len, pool.in_flight_tokens, pool.capacity_bytes
    return PooledManager(
        pool.pages, pool.layer_types, longest=longest, in_flight=in_flight, capacity_bytes=size
    )


@pytest.mark.parametrize(
    ("policy", "part", "blocks"),
    [
        ("jenga", LayerTypePages(large_pages, is_divided=False), 400),
        ("pool-per-type", LayerTypePages(divided, is_divided=True), 150),
    ],
    ids=["large pages", "pools"],
)
def test_memory_of_layer_types_that_is_registered_decides_as_the_original(
    trace, policy, part, blocks
) -> None:
    ps.register("allocator", "mine", part)
    mine, own = (
        ps.simulate(
            trace, policy, model="gpt-oss-20b", gpu="h100", num_blocks=blocks, steps="iterations", **more
        )
        for more in ({"allocator": "mine"}, {})
    )
    pd.testing.assert_frame_equal(mine.requests, own.requests, check_exact=True)
    pd.testing.assert_frame_equal(mine.steps, own.steps, check_exact=True)
    assert mine.summary["memory"] == own.summary["memory"]
    assert own.summary["preemptions"]["recompute"] > 0


def test_a_scheduler_of_ones_own_is_fast_forwarded_exactly(trace) -> None:
    ps.register("scheduler", "room-for-short", RoomForShort)
    own = ps.simulate(trace, "vllm-sosp", num_blocks=150)
    forwarding, stepping = (
        ps.simulate(trace, "vllm-sosp", scheduler="room-for-short", num_blocks=150, fast_forward=each)
        for each in (True, False)
    )
    pd.testing.assert_frame_equal(forwarding.requests, stepping.requests, check_exact=True)
    assert forwarding.summary["requests"]["finished"] == 80
    assert forwarding.summary["preemptions"] != own.summary["preemptions"], "it does decide otherwise"


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
    ps.register("allocator", "mine", paged)
    result = ps.simulate(trace, "vllm-sosp", allocator="mine", num_blocks=300)
    folder = result.save(tmp_path / "out")
    needs = (folder / "scenario.toml").read_text().partition("[needs.allocator]\n")[2]
    assert needs == f'"mine" = "registered in Python from module {__name__}"\n'
    assert ps.load(folder).scenario == result.scenario


def test_its_options_are_keywords_and_kept_with_the_result(trace, tmp_path) -> None:
    ps.register("scheduler", "room-for-short", RoomForShort)
    options = {"scheduler": "room-for-short", "num_blocks": 150}
    given = ps.simulate(trace, **options, roomy=np.float64(0.9), short="5")
    assert given.summary["batch"]["mean"] < ps.simulate(trace, **options).summary["batch"]["mean"]
    loaded = ps.load(given.save(tmp_path / "out"))
    assert loaded.scenario.scheduler_options == {"roomy": 0.9, "short": 5}
    assert loaded.scenario == given.scenario
    assert (
        ps.simulate(trace, **options, roomy=0.0).summary["preemptions"]
        == (ps.simulate(trace, scheduler="vllm-sosp", num_blocks=150).summary["preemptions"])
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"roomy": 2},
            "roomy is 2.0: under scheduler room-for-short input should be less than or equal to 1",
        ),
        ({"roomy": "much"}, "roomy is 'much': input should be a valid number"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0: under scheduler room-for-short input should be greater"),
        ({"rooomy": 0.5}, "there is no option rooomy; did you mean roomy?"),
        ({"max_batch": 5}, "max_batch is for scheduler static, not room-for-short"),
        ({"scheduler": "orca", "roomy": 0.5}, "roomy is for scheduler room-for-short, not orca"),
    ],
)
def test_an_option_of_a_scheduler_that_is_off_is_said_in_a_sentence(trace, options, said) -> None:
    ps.register("scheduler", "room-for-short", RoomForShort)
    with pytest.raises(ps.PagesimError) as caught:
        ps.simulate(trace, **{"scheduler": "room-for-short", "num_blocks": 150, **options})
    assert str(caught.value).startswith(said)


def small(pool: Pool) -> BlockManager:
    return PagedManager(pool.num_blocks - 1, pool.groups)


def broken(pool: Pool) -> BlockManager:
    return PagedManager(0, pool.groups)


@pytest.mark.parametrize(
    ("make", "options", "sentence"),
    [
        (lambda pool: "memory", {}, "allocator mine makes a str; it must make a BlockManager"),
        (small, {}, "allocator mine has 299 blocks of 16 tokens; it was asked for 300 of 16"),
        (
            contiguous(FirstFit),
            {},
            "allocator mine cannot be made: ValueError: contiguous memory needs",
        ),
        (alone, {"policy": "orca-max"}, "allocator mine takes blocks as sequences grow, .* choose on-demand"),
        (
            alone,
            {"policy": "vllm-v1", "enable_prefix_caching": False},
            "scheduler vllm-v1 needs memory that shares blocks",
        ),
        (broken, {}, "allocator mine cannot be made: ValueError: num_blocks is 0"),
        (
            paged,
            {"policy": "vllm-v1"},
            "enable_prefix_caching needs allocator paged",
        ),
        (paged, {"policy": "static"}, "scheduler static needs allocator .*, not mine"),
    ],
)
def test_memory_that_does_not_go_with_the_rest_is_refused(trace, make, options, sentence) -> None:
    ps.register("allocator", "mine", make)
    with pytest.raises(ps.PagesimError, match=sentence):
        ps.simulate(trace, **{"policy": "vllm-sosp", "num_blocks": 300, "allocator": "mine", **options})


def test_what_a_part_makes_can_do_what_is_asked_of_it(trace) -> None:
    ps.register("cost", "mine", lambda text, target: 0.5)
    with pytest.raises(ps.PagesimError, match="cost mine makes a float, which has no method iteration; it"):
        ps.simulate(trace, cost="mine", num_blocks=300)
    ps.register("router", "mine", lambda: None)
    with pytest.raises(ps.PagesimError, match="router mine makes a NoneType, which has no method choose; it"):
        ps.simulate_cluster(trace, router="mine", replicas=2, num_blocks=300)


def test_memory_that_lacks_a_method_is_refused_by_its_name(trace) -> None:
    class Half(BlockManager):
        grows = True

    ps.register("allocator", "half", lambda pool: Half(pool.num_blocks, pool.groups))
    with pytest.raises(
        ps.PagesimError, match=r"allocator half cannot be made: .*class Half needs a method .*admit"
    ):
        ps.simulate(trace, "vllm-sosp", allocator="half", num_blocks=300)


@pytest.mark.skipif(not form().startswith("pure"), reason="compiled code does not tell what is abstract")
@pytest.mark.parametrize("base", [BlockManager, Scheduler])
def test_what_must_be_overridden_is_what_is_abstract(base) -> None:
    abstract = {name for name in dir(base) if getattr(getattr(base, name), "__isabstractmethod__", False)}
    assert abstract == set(base.MUST_OVERRIDE)


def test_a_registration_that_would_mislead_is_refused() -> None:
    with pytest.raises(ps.PagesimError, match="allocator paged comes with pagesim; register yours under"):
        ps.register("allocator", "paged", paged)
    with pytest.raises(ps.PagesimError, match="option is 'memory'; a part is registered for one of"):
        ps.register("memory", "mine", paged)
    with pytest.raises(
        ps.PagesimError, match=r"scheduler is 'mine'; it must be one of static, .*, lightllm$"
    ):
        ps.simulate("fixed:10,10", scheduler="mine")


@pytest.mark.parametrize(
    ("option", "part", "sentence"),
    [
        ("policy", "vllm-sosp", "policy mine is a str; it must be a Policy"),
        ("gpu", {"name": "mine"}, "gpu mine is a dict; it must be a GpuSpec"),
        ("allocator", 16, "allocator mine is a int; it must be something to call"),
        ("scheduler", paged, "scheduler mine is a function; it must be a subclass of Scheduler"),
        ("scheduler", FirstFit, "scheduler mine is a ABCMeta; it must be a subclass of Scheduler"),
    ],
)
def test_a_registered_part_is_of_its_kind(option, part, sentence) -> None:
    with pytest.raises(ps.PagesimError, match=sentence):
        ps.register(option, "mine", part)


def test_a_sweep_refuses_what_only_this_process_has() -> None:
    ps.register("allocator", "mine", paged)
    with pytest.raises(ps.PagesimError, match=r"allocator mine was registered in this process"):
        ps.sweep(
            "fixed:10,10", policy="vllm-sosp", grid={"rate": [1.0]}, num_requests=5, allocator="mine", jobs=1
        )


class Leaky(FirstFit):
    """Keeps the last block of what it is given back."""

    def free(self, blocks: Any) -> None:
        super().free(blocks[:-1])


@pytest.mark.parametrize(("num_blocks", "given_up"), [(20, 0), (4, 3)])
def test_an_allocator_that_leaks_is_named_beside_what_comes_of_it(num_blocks, given_up) -> None:
    """A request reserves its 32 tokens in two blocks of 16, and one of these is lost as it ends.

    Of four blocks the first request leaves 0, 2 and 3, and the second 0 and 2: not neighbours for the third.
    """
    ps.register("allocator", "leaky", Leaky)
    trace = ps.make_trace("fixed:30,2", rate=0.1, num_requests=5)
    few = {"num_blocks": num_blocks, "block_size": 16}
    for name, lost in (("leaky", 5 - given_up), ("first-fit", 0)):
        result = ps.simulate(trace, "orca-oracle", allocator=name, **few)
        assert result.summary["requests"]["unschedulable"] == (given_up if lost else 0)
        assert (f"{given_up} given up, " in repr(result)) == bool(given_up and lost)
        said = [note for note in result.notes if "leaks" in note]
        of = f"allocator leaky leaks: all requests are over, and {lost} of {few['num_blocks']} blocks are not"
        assert (len(said) == 1 and said[0].startswith(of)) if lost else not said
    alone = ps.simulate_cluster(trace, "orca-oracle", replicas=1, allocator="leaky", **few)
    assert alone.notes[-1].startswith("allocator leaky leaks")


def test_a_listing_has_the_first_line_of_a_parts_docstring() -> None:
    ps.register("allocator", "leaky", Leaky)
    assert ALLOCATORS.sentence("leaky") == "Keeps the last block of what it is given back."
