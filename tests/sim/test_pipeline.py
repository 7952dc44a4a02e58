"""The stages of a pipeline: what each has, when batches pass through them, and what a run says of them."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagesim.accounting.timeline import Timeline
from pagesim.api import run
from pagesim.errors import CapacityError, PagesimError
from pagesim.experiments.plan import plan
from pagesim.hardware import Link
from pagesim.hardware.gpus import GIB
from pagesim.models import model
from pagesim.models.parallel import (
    cached_by_stage,
    hand_over_bytes_per_token,
    stage_weight_bytes,
    stages_of,
)
from pagesim.results import trace_events
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.observer import Observer
from pagesim.setup.system import System
from pagesim.sim.executor import shape_of
from pagesim.sim.pipeline import Pipeline
from pagesim.workloads import make_trace
from pagesim.workloads.trace import Trace

MODELS = ("llama-3.1-8b", "deepseek-v3", "gpt-oss-120b", "qwen3-next-80b", "nemotron-3-nano", "gemma3-27b")


@pytest.mark.parametrize(
    ("name", "number", "layers"),
    [
        # The planner's own partitions.
        ("deepseek-v3", 2, [31, 30]),
        ("deepseek-v3", 4, [15, 15, 16, 15]),
        ("deepseek-v3", 8, [7, 7, 8, 8, 8, 8, 8, 7]),
        ("gemma3-27b", 4, [15, 16, 16, 15]),
        ("llama-3.1-8b", 3, [11, 11, 10]),
        ("llama-3.1-8b", 1, [32]),
    ],
)
def test_layers_that_are_left_over_go_to_the_stages_before_the_last(
    name: str, number: int, layers: list[int]
) -> None:
    assert [len(stage) for stage in stages_of(model(name), number)] == layers


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("number", [2, 4])
def test_stages_have_all_weights_and_caches_of_a_model_once_but_a_tied_table_twice(
    name: str, number: int
) -> None:
    spec = model(name)
    stages = stages_of(spec, number)
    table = 2 * -(-spec.vocab // 64) * 64 * spec.hidden if spec.tied else 0
    weights = sum(stage_weight_bytes(spec, 1, layers) for layers in stages)
    assert weights == pytest.approx(spec.weight_bytes_per_gpu(1) + table, abs=number)
    places = [place for stage in cached_by_stage(spec, stages) for place in sorted(stage)]
    assert places == list(range(len(spec.cache_layers)))


def a_batch(tokens: int = 1, *, samples: bool = True) -> Batch:
    batch = Batch()
    batch.tokens, batch.decoding = tokens, int(samples and tokens > 0)
    return batch


def test_a_stage_takes_its_share_and_a_batch_waits_until_it_is_free() -> None:
    pipeline = Pipeline([1, 3], waits_for_tokens=False)
    assert pipeline.run(a_batch(), 0, 8) == (0, 8)  # from 0 to 2, and from 2 to 8
    assert pipeline.run(a_batch(), 1, 8) == (2, 14)  # from 2 to 4, and from 8 to 14
    assert pipeline.run(a_batch(0), 3, 0) == (3, 3)
    assert pipeline.summary() == [{"layers": 1, "busy": 4 / 14}, {"layers": 3, "busy": 12 / 14}]


@pytest.mark.parametrize(("samples", "start"), [(True, 8), (False, 4)])
def test_the_first_stage_waits_for_tokens_of_as_many_batches_ago_as_there_are_stages(
    samples: bool, start: int
) -> None:
    pipeline = Pipeline([1, 3], waits_for_tokens=True)
    pipeline.run(a_batch(samples=samples), 0, 8)
    pipeline.run(a_batch(), 1, 8)
    assert pipeline.run(a_batch(), 2, 8)[0] == start


def test_what_is_handed_over_delays_a_batch_and_no_stage() -> None:
    a_byte_a_tick = Link(1e12, 0.0, "")
    pipeline = Pipeline([1, 1], waits_for_tokens=False, link=a_byte_a_tick, token_bytes=3.0)
    assert pipeline.run(a_batch(2), 0, 4) == (0, 2 + 6 + 2)
    assert pipeline.run(a_batch(2), 0, 4) == (2, 4 + 6 + 2)
    # Hidden states and residuals in 16 bits, half of it from each of two GPUs.
    assert hand_over_bytes_per_token(model("llama-3.1-8b"), 2) == 2 * 4096 * 2 / 2


class Shapes(Observer):
    """Notes the shapes of batches that compute anything."""

    def __init__(self) -> None:
        self.shapes: list[Any] = []

    def planned(self, batch: Batch, now: int, start: int, ticks: int) -> None:
        if batch.tokens:
            self.shapes.append(shape_of(batch))


@pytest.mark.parametrize("name", ["gpt-oss-20b", "llama4-scout", "qwen3-next-80b"])
def test_a_lone_request_computes_in_each_batch_what_it_does_without_stages(name: str) -> None:
    """What is within windows and chunks included, which is counted for each request alone in a pipeline."""
    found = []
    for stages in (1, 3):
        noted = Shapes()
        system = System(
            model=name,
            gpu="h200",
            tensor_parallel_size=4,
            num_blocks=3000,
            max_model_len=16384,
            max_num_batched_tokens=700,
            pipeline_parallel_size=stages,
            cost="roofline",
            fast_forward=False,
        )
        run(system, Trace([0.0], [9000], [40]), observers=[noted])
        found.append(noted.shapes)
    assert len(found[0]) == len(found[1]) >= 40
    fields = ("tokens", "decode_context", "query_key_pairs", "decoding", "computed_prompts")
    for one, other in zip(*found, strict=True):
        assert [getattr(one, field) for field in fields] == [getattr(other, field) for field in fields]
        assert (one.reached, one.reached_pairs) == (other.reached, other.reached_pairs)


def busy(**options: Any) -> System:
    system = {"model": "llama-3.1-8b", "gpu": "h100", "max_model_len": 2048, "num_blocks": 700}
    return System(**system, pipeline_parallel_size=4, cost="roofline", **options)


def requests() -> Trace:
    return make_trace("sharegpt", arrivals="poisson", rate=40.0, num_requests=80, seed=1)


@pytest.mark.parametrize("is_async", [True, False])
def test_iterations_that_overlap_count_once_in_means_over_time(is_async: bool) -> None:
    result = run(busy(async_scheduling=is_async), requests(), steps="iterations")
    summary, steps = result.summary, result.steps
    assert sum(summary["memory"]["strict"]["per_second"].values()) == pytest.approx(100)
    assert summary["requests"]["finished"] == 80
    computing = steps[steps["num_tokens"] > 0]
    ends = (computing["start"] + computing["step_s"]).to_numpy()
    assert (computing["start"].to_numpy()[1:] < ends[:-1]).any()
    assert (np.diff(ends) > 0).all()
    span = ends[-1] - computing["start"].iloc[0]
    for stage in summary["stages"]:
        assert stage["layers"] == 8
        assert 0 < stage["busy"] < 1
        assert stage["busy"] * span < computing["step_s"].sum()


def test_iterations_that_overlap_have_tracks_of_their_own(tmp_path: Path) -> None:
    timeline = Timeline(every=True)
    result = run(busy(), requests(), steps="iterations", timeline=timeline)
    trace_events.write(tmp_path / "x", timeline, result.steps, title="x", capacity=700 * 16)
    events = json.loads((tmp_path / "x").read_text(encoding="utf-8"))["traceEvents"]
    tracks: dict[int, list[tuple[int, int]]] = {}
    for event in events:
        if event.get("cat") == "iteration" and event["dur"]:
            tracks.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
    named = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert {"iterations", "iterations, 2"} <= set(named)
    assert len(tracks) > 1
    for of_track in tracks.values():
        assert all(end <= start for (_, end), (start, _) in pairwise(of_track))


def test_the_stage_with_the_fewest_blocks_decides_for_all() -> None:
    """Of Llama 3.1 8B the first of three has 11 layers and the token table, the last 10 and the head."""
    system = System(model="llama-3.1-8b", gpu="h100", max_model_len=8192, pipeline_parallel_size=3)
    found = plan(system)
    first, middle, last = found.stages
    table = 128256 * 4096 * 2
    assert first.weights is not None
    assert middle.weights is not None
    assert last.weights is not None
    assert first.weights - middle.weights == table
    layer = (middle.weights * 10) // 11
    assert last.weights - layer == pytest.approx(table + 2 * 4096, abs=1)  # the head, and a norm
    assert [stage.block_bytes for stage in found.stages] == [11 * 65536, 11 * 65536, 10 * 65536]
    assert found.sized.num_blocks == min(stage.blocks for stage in found.stages) == first.blocks
    assert found.as_dict()["stages"][2]["layers"] == 10
    result = run(system, Trace([0.0], [30], [4]))
    assert result.summary["memory"]["num_blocks"] == found.sized.num_blocks - 1  # without the null block
    given = system.model_copy(update={"kv_cache_memory_bytes": 10 * GIB})
    assert plan(given).sized.num_blocks == 10 * GIB // (11 * 65536)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"vllm_version": "0.19.0"}, "what vLLM 0.19.0 does beside it is in no log"),
        ({"kv_offloading_size": 4.0}, "what kv_offloading_size does beside it is in no log"),
        (
            {
                "speculative_method": "ngram",
                "speculative_tokens": 2,
                "acceptance": 0.5,
                "async_scheduling": False,
            },
            "pipeline_parallel_size is 2, and steps are not scheduled asynchronously",
        ),
        ({"policy": "sglang"}, "pipeline_parallel_size is for scheduler vllm-v1"),
        ({"policy": "jenga"}, "it is for vLLM's own blocks, not policy jenga"),
        ({"sizing": "paper"}, "sizing is paper; it is for sizing vllm"),
        ({"pipeline_parallel_size": 33}, "more than the 32 layers of llama-3.1-8b"),
        (
            {"model": "deepseek-v4-flash", "tensor_parallel_size": 4, "gpu": "h200"},
            "which of the caches of deepseek-v4-flash belong to which of its layers is not known",
        ),
    ],
)
def test_what_is_not_known_of_pipelines_is_refused(options: dict[str, Any], said: str) -> None:
    system = {"model": "llama-3.1-8b", "gpu": "h100", "max_model_len": 2048, "pipeline_parallel_size": 2}
    with pytest.raises(PagesimError, match=said):
        run(System(**{**system, **options}), Trace([0.0], [30], [4]))


def test_a_model_that_no_stage_has_room_for_does_not_start() -> None:
    system = System(model="llama-3.1-405b", gpu="h100", max_model_len=2048, pipeline_parallel_size=2)
    with pytest.raises(CapacityError, match="the smallest tensor_parallel_size that fits is 8"):
        run(system, Trace([0.0], [30], [4]))
