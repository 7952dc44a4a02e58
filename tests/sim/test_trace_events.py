"""The time line of a run: what Perfetto needs, and nothing that the tables contradict."""

from __future__ import annotations

import json
import resource
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest

from pagesim.accounting.ledger import ENTRIES
from pagesim.accounting.timeline import Timeline
from pagesim.api import run
from pagesim.costs import Itemised, IterationShape, Target, parse_cost
from pagesim.hardware import gpu
from pagesim.models import model
from pagesim.results import trace_events
from pagesim.results.trace_events import ENGINE, ITERATIONS, MEMORY, REQUESTS, SWAPS
from pagesim.setup.system import System
from pagesim.workloads import make_trace
from pagesim.workloads.trace import Trace

TIGHT = {"num_blocks": 200, "cpu_blocks": 400}
SYSTEMS = {
    "preempted and swapped": {"policy": "vllm-sosp", "preemption": "auto", **TIGHT},
    "samples are swapped": {"policy": "vllm-sosp", **TIGHT, "max_model_len": 1000},
    "cut off and clients that leave": {"policy": "vllm-v0", "until": 14.0, "client_timeout": 8.0, **TIGHT},
    "prompts in chunks": {
        "policy": "vllm-v1",
        "num_blocks": 300,
        "max_num_batched_tokens": 256,
        "async_scheduling": False,
    },
    "reserved ahead": {"policy": "orca-pow2", "num_blocks": 300},
    "static batches": {"policy": "static", "num_blocks": 300},
    "straight line": {"policy": "vllm-sosp", "cost": "affine:0.02,1e-4,1e-6,1e-5", **TIGHT},
    "a profile": {"policy": "vllm-sosp", "cost": "profile:analytic-a100-40gb", **TIGHT},
    "stepping": {"policy": "vllm-sosp", "fast_forward": False, **TIGHT},
}


def near(a: float, b: float, most: float = 1.0) -> bool:
    """Whether two times are the same but for the rounding to whole microseconds."""
    return abs(a - b) <= most


@pytest.fixture(
    scope="module", params=[(name, every) for name in SYSTEMS for every in (False, True)], ids=str
)
def told(request, tmp_path_factory):
    """A run's result and its events, as the file holds them."""
    name, every = request.param
    options = {"max_model_len": 2048, **SYSTEMS[name]}
    trace = make_trace("sharegpt", arrivals="poisson", rate=4.0, num_requests=50, seed=3)
    if name == "samples are swapped":
        trace = trace.with_columns({"n": np.full(len(trace), 2)})
    timeline = Timeline(every=every)
    result = run(System(**options), trace, steps="iterations" if every else "stretches", timeline=timeline)
    file = tmp_path_factory.mktemp("events") / trace_events.FILE
    memory = result.summary["memory"]
    capacity = memory["num_blocks"] * memory["block_size"]
    trace_events.write(file, timeline, result.steps, title="x", capacity=capacity)
    return result, json.loads(file.read_text(encoding="utf-8"))["traceEvents"], capacity


def slices(events, process, thread=None):
    return [e for e in events if e["ph"] == "X" and e["pid"] == process and thread in (None, e["tid"])]


def test_every_event_has_what_its_kind_needs(told):
    _, events, _ = told
    assert {event["ph"] for event in events} >= {"M", "X", "C"}
    for event in events:
        assert event["ph"] in ("M", "X", "C", "i")
        assert {"name", "ts", "pid", "tid"} <= event.keys()
        assert type(event["ts"]) is int
        assert event["ts"] >= 0
        assert type(event["pid"]) is type(event["tid"]) is int
        if event["ph"] == "X":
            assert type(event["dur"]) is int
            assert event["dur"] >= 0
        if event["ph"] == "i":
            assert event["s"] == "t"


def test_every_track_has_a_name_and_a_place(told):
    _, events, _ = told
    named = {
        kind: set() for kind in ("thread_name", "thread_sort_index", "process_name", "process_sort_index")
    }
    for event in events:
        if event["ph"] == "M":
            named[event["name"]].add((event["pid"], event["tid"]))
    tracks = {(event["pid"], event["tid"]) for event in events if event["ph"] in ("X", "i")}
    assert tracks <= named["thread_name"] == named["thread_sort_index"]
    assert {pid for pid, _ in tracks} <= {pid for pid, _ in named["process_name"]}
    assert named["process_name"] == named["process_sort_index"]


def test_slices_of_a_track_follow_one_another(told):
    _, events, _ = told
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    for track in tracks.values():
        for one, other in pairwise(track):
            assert one["ts"] + one["dur"] <= other["ts"]


def test_the_counters_sum_to_the_capacity(told):
    result, events, capacity = told
    counters = [e for e in events if e["ph"] == "C" and e["name"] == MEMORY]
    assert len(counters) >= len(result.steps)
    for event in counters:
        assert tuple(event["args"]) == ENTRIES
        assert sum(event["args"].values()) == capacity


def test_the_slices_of_iterations_are_the_table_of_steps(told):
    result, events, _ = told
    shown = slices(events, ENGINE, ITERATIONS)
    assert len(shown) == len(result.steps)
    assert sum(e["args"]["iterations"] for e in shown) == result.summary["iterations"]
    for row, event in zip(result.steps.itertuples(), shown, strict=True):
        assert near(event["ts"], row.start * 1e6)
        assert event["args"]["batch"] == row.num_running
        if event["args"]["iterations"] == 1:
            assert near(event["dur"], row.step_s * 1e6)


def test_the_terms_of_the_cost_sum_to_what_an_iteration_takes(told):
    _, events, _ = told
    for event in slices(events, ENGINE, ITERATIONS):
        terms = event["args"]["cost, µs"]
        assert near(sum(terms.values()), event["dur"], 2)


@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("gpt-oss-20b", "window attention"),
        ("llama4-scout", "chunk attention"),
        ("deepseek-v3.2", "sparse attention"),
        ("jamba-1.5-mini", "states"),
    ],
)
def test_terms_of_layers_that_do_not_look_back_on_all_sum_up_likewise(name, part, every):
    rng = np.random.default_rng(4)
    trace = Trace(np.sort(rng.random(12) * 9), rng.integers(1, 9000, 12), rng.integers(1, 300, 12))
    options = {"policy": "vllm-v1", "async_scheduling": False, "max_model_len": 10_000, "num_blocks": 30_000}
    system = System(model=name, gpu="h200", tensor_parallel_size=8, cost="roofline", **options)
    timeline = Timeline(every=every)
    result = run(system, trace, steps="iterations" if every else "stretches", timeline=timeline)
    found = list(trace_events.events(timeline, result.steps, title="x", capacity=1))
    shown = slices(found, ENGINE, ITERATIONS)
    assert sum(e["args"]["iterations"] for e in shown) == result.summary["iterations"]
    for event in shown:
        terms = event["args"]["cost, µs"]
        assert near(sum(terms.values()), event["dur"], 2)
        assert bool(terms.get(part)) == bool(event["dur"])


def test_the_link_moves_the_blocks_that_the_summary_counts(told):
    result, events, _ = told
    for name, moved in (("swap in", "in"), ("swap out", "out")):
        shown = [e["args"]["blocks"] for e in slices(events, ENGINE, SWAPS) if e["name"] == name]
        assert sum(shown) == result.summary["swapped_blocks"][moved]


def test_the_slices_of_a_request_are_its_row(told):
    result, events, _ = told
    over = max((e["ts"] + e["dur"] for e in slices(events, ENGINE, ITERATIONS)), default=0)
    tracks = defaultdict(list)
    for event in slices(events, REQUESTS):
        tracks[event["tid"] - 1].append(event)
    assert tracks
    for row, request in enumerate(result.requests.itertuples()):
        own = tracks[row]
        if request.status == "rejected" or not own:
            assert not own
            continue
        assert near(own[0]["ts"], request.arrival_s * 1e6)
        end = over if np.isnan(request.finish_s) else request.finish_s * 1e6
        assert near(own[-1]["ts"] + own[-1]["dur"], end)
        for one, other in pairwise(own):
            assert one["ts"] + one["dur"] == other["ts"]
            assert one["name"] != other["name"]
        queued = sum(e["dur"] for e in own if e["name"] == "queued")
        scheduled = request.first_scheduled_s * 1e6
        assert near(queued, (end if np.isnan(scheduled) else scheduled) - own[0]["ts"], 2)
        decoding = [e["ts"] for e in own if e["name"] == "decode"]
        if decoding:
            # No request that is preempted in the instant of its first token is seen decoding before.
            lost = [e["ts"] for e in own if e["name"] in ("preempted", "swapped")]
            first = request.first_token_s * 1e6
            assert near(decoding[0], first) or any(near(when, first) for when in lost)
        names = [e["name"] for e in own]
        # A request that is preempted and comes back at the same instant has no slice of no length.
        assert names.count("preempted") <= request.recomputes
        assert names.count("swapped") <= request.swaps
        assert {"preempted", "swapped"} & set(names) or not request.recomputes + request.swaps


def test_what_the_systems_are_for_happens(told, request):
    result, events, _ = told
    name = request.node.callspec.params["told"][0]
    seen = {e["name"] for e in slices(events, REQUESTS)} | {e["name"] for e in slices(events, ENGINE)}
    expected = {
        "preempted and swapped": {"preempted", "swapped", "swap in", "swap out", "mixed"},
        "samples are swapped": {"swapped", "swap in"},
        "prompts in chunks": {"mixed", "prefill", "decode"},
    }.get(name, {"queued", "prefill"})
    assert expected <= seen
    if name.startswith("cut off"):
        assert result.summary["requests"]["unfinished"]
        assert result.summary["requests"]["aborted"]


@pytest.mark.parametrize("spelling", ["affine:0.02,1e-4,1e-6,1e-5", "roofline", "profile:analytic-a100-40gb"])
@pytest.mark.parametrize(
    "shape",
    [
        IterationShape(0, 0, 0, 0, 0, 5, 0, 0, 0, 0),
        IterationShape(8, 8, 900, 900, 0, 0, 7, 2, 8, 8),
        IterationShape(300, 300, 900, 0, 40_000, 3, 7, 2, 0, 1),
        IterationShape(300, 300, 900, 600, 40_000, 0, 0, 0, 5, 6),
    ],
)
def test_the_parts_of_a_cost_sum_to_the_iteration(spelling, shape):
    cost = parse_cost(
        spelling, Target(model=model("opt-13b"), gpu=gpu("a100-40gb"), tp=1, block_size=16, kv_dtype="fp16")
    )
    assert isinstance(cost, Itemised)
    assert sum(cost.parts(shape).values()) == pytest.approx(cost.iteration(shape), abs=10)


def test_a_request_that_was_turned_away_is_an_instant():
    trace = Trace(np.zeros(2), np.array([5, 10_000]), np.array([5, 5]))
    timeline = Timeline(every=False)
    result = run(System(), trace, timeline=timeline)
    found = list(trace_events.events(timeline, result.steps, title="x", capacity=1))
    (instant,) = [e for e in found if e["ph"] == "i"]
    assert (instant["name"], instant["pid"], instant["tid"]) == ("rejected", REQUESTS, 2)


def test_a_run_without_iterations_has_a_time_line_too(tmp_path):
    trace = Trace(np.zeros(1), np.array([10_000]), np.array([5]))
    timeline = Timeline(every=False)
    result = run(System(), trace, timeline=timeline)
    trace_events.write(tmp_path / "x", timeline, result.steps, title="x", capacity=1)
    assert json.loads((tmp_path / "x").read_text())["traceEvents"]


@pytest.mark.slow
def test_a_hundred_thousand_requests_need_no_gigabytes(tmp_path):
    trace = make_trace("fixed:200,40", arrivals="poisson", rate=20.0, num_requests=100_000)
    timeline = Timeline(every=False)
    result = run(System(cost="affine:0.01,1e-5,1e-7"), trace, timeline=timeline)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    trace_events.write(tmp_path / "x", timeline, result.steps, title="x", capacity=1)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert (tmp_path / "x").stat().st_size > 100 << 20
    assert grown < 400 << 10
