"""Arrival processes have the rate and the burstiness that was asked for, and take requests in order."""

import random

import numpy as np
import pandas as pd
import pytest

from pagesim.errors import PagesimError
from pagesim.workloads import KINDS, NO_ARRIVALS, arrival_rate, arrive, gap_cv, load
from pagesim.workloads.trace import Trace


def lengths(size: int, **columns) -> Trace:
    """A trace without arrivals whose prompts are 1, 2, 3, ... tokens long."""
    return Trace(np.zeros(size), np.arange(1, size + 1), np.full(size, 7), notes=(NO_ARRIVALS,), **columns)


def recorded() -> Trace:
    return Trace(np.array([1.0, 2.0, 5.0, 9.0]), np.array([1, 2, 3, 4]), np.full(4, 7))


@pytest.mark.parametrize(
    ("kind", "cv", "expected_cv"),
    [("poisson", None, 1.0), ("gamma", 3.0, 3.0), ("gamma", 0.5, 0.5), ("constant", None, 0.0)],
)
def test_a_process_has_its_rate_and_its_cv(kind, cv, expected_cv):
    trace = arrive(lengths(10), kind, rate=4.0, cv=cv, num_requests=50_000, seed=3)
    assert len(trace) == 50_000
    assert arrival_rate(trace.arrival_s) == pytest.approx(4.0, rel=0.05)
    assert gap_cv(trace.arrival_s) == pytest.approx(expected_cv, rel=0.05, abs=1e-6)


def test_constant_arrivals_are_evenly_spaced_from_zero():
    trace = arrive(lengths(3), "constant", rate=2.0, duration=2.5)
    assert trace.arrival_s.tolist() == [0.0, 0.5, 1.0, 1.5, 2.0]


@pytest.mark.parametrize("kind", ["poisson", "gamma", "constant"])
def test_without_a_duration_or_a_number_each_request_arrives_once(kind):
    trace = arrive(lengths(5), kind, rate=1.0, cv=2.0 if kind == "gamma" else None)
    assert trace.prompt_tokens.tolist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("kind", ["poisson", "gamma", "constant"])
def test_duration_and_number_stop_at_whichever_comes_first(kind):
    cv = 2.0 if kind == "gamma" else None
    long = arrive(lengths(5), kind, rate=10.0, cv=cv, duration=50.0)
    assert long.arrival_s.max() < 50
    assert len(long) == pytest.approx(500, rel=0.3)
    few = arrive(lengths(5), kind, rate=10.0, cv=cv, duration=50.0, num_requests=7)
    assert few.arrival_s.tolist() == long.arrival_s[:7].tolist()


def test_requests_are_taken_in_order_and_repeated_with_new_ids():
    trace = arrive(lengths(3, request_id=np.array(["a", "b", "c"])), "all-at-once", num_requests=5)
    assert trace.prompt_tokens.tolist() == [1, 2, 3, 1, 2]
    assert trace.request_id.tolist() == [0, 1, 2, 3, 4]
    once = arrive(lengths(3, request_id=np.array(["a", "b", "c"])), "all-at-once", num_requests=2)
    assert once.request_id.tolist() == ["a", "b"]


def test_a_repeated_conversation_is_a_new_session():
    source = lengths(3, session_id=np.array(["x", "x", None], object))
    trace = arrive(source, "all-at-once", num_requests=6)
    assert trace.session_id is not None
    assert trace.session_id.tolist() == [0, 0, 1, 2, 2, 3]


def test_a_client_gives_up_as_long_after_its_arrival_as_before():
    source = Trace(np.array([1.0, 2.0]), np.ones(2), np.ones(2), abort_s=np.array([4.0, np.inf]))
    trace = arrive(source, "constant", rate=0.1)
    assert trace.abort_s is not None
    assert trace.abort_s.tolist() == [3.0, np.inf]


def test_recorded_arrivals_are_cut_and_never_repeated():
    assert arrive(recorded(), "recorded").arrival_s.tolist() == [1.0, 2.0, 5.0, 9.0]
    assert arrive(recorded(), "recorded", duration=5.0).arrival_s.tolist() == [1.0, 2.0]
    assert arrive(recorded(), "recorded", num_requests=3).prompt_tokens.tolist() == [1, 2, 3]
    with pytest.raises(PagesimError, match="num_requests is 5; the trace has 4 recorded arrivals"):
        arrive(recorded(), "recorded", num_requests=5)


def test_replay_scales_the_recorded_arrivals_to_a_rate_and_keeps_their_shape():
    trace = arrive(recorded(), "replay", rate=0.75)  # recorded: 3 gaps in 8 s, 0.375 a second
    assert trace.arrival_s.tolist() == [0.0, 0.5, 2.0, 4.0]


@pytest.mark.parametrize("kind", ["recorded", "replay"])
def test_arrivals_that_were_not_recorded_cannot_be_replayed(kind):
    with pytest.raises(PagesimError, match="no recorded arrivals"):
        arrive(lengths(3), kind, rate=1.0 if kind == "replay" else None)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_trace_and_another_one_another(kind):
    options = {
        "recorded": {},
        "replay": {"rate": 2.0},
        "gamma": {"rate": 2.0, "cv": 2.0},
        "all-at-once": {"num_requests": 20},
    }.get(kind, {"rate": 2.0, "duration": 30.0})
    first, second, other = (arrive(recorded(), kind, seed=seed, **options) for seed in (1, 1, 2))
    assert first.arrival_s.tolist() == second.arrival_s.tolist()
    assert first.prompt_tokens.tolist() == second.prompt_tokens.tolist()
    if kind in ("poisson", "gamma", "sosp"):
        assert first.arrival_s.tolist() != other.arrival_s.tolist()


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in ("recorded", "replay")])
def test_new_arrivals_replace_the_note_that_there_were_none(kind):
    options = {"constant": {}, "gamma": {"cv": 1.5}, "sosp": {"duration": 9.0}}.get(kind, {})
    rate = {} if kind == "all-at-once" else {"rate": 5.0}
    trace = arrive(lengths(3), kind, **rate, **options)
    assert NO_ARRIVALS not in trace.notes
    assert kind in trace.notes[-1]


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("poisson", {}, "arrivals poisson need a rate"),
        ("gamma", {"rate": 1.0}, "arrivals gamma need a cv"),
        (
            "poisson",
            {"rate": 1.0, "cv": 2.0},
            "arrivals poisson take no cv; leave it out, or choose one of gamma",
        ),
        ("all-at-once", {"duration": 3.0}, "arrivals all-at-once take no duration"),
        ("all-at-once", {"rate": 3.0}, "arrivals all-at-once take no rate"),
        ("recorded", {"rate": 3.0}, "arrivals recorded take no rate"),
        ("sosp", {"rate": 3.0}, "arrivals sosp need a duration"),
        ("sosp", {"rate": 3.0, "duration": 3.0, "num_requests": 3}, "arrivals sosp take no num_requests"),
        ("uniform", {}, "arrivals 'uniform' are unknown; choose one of recorded, replay, poisson"),
        ("poisson", {"rate": 0.0}, "rate is 0; it must be a number from 1e-06 to 1e+06"),
        ("poisson", {"rate": -2.0}, "rate is -2; it must be a number from"),
        ("poisson", {"rate": float("nan")}, "rate is nan; it must be a number from"),
        ("poisson", {"rate": 1.0, "duration": float("inf")}, "duration is inf; it must be a number from"),
        ("gamma", {"rate": 1.0, "cv": 0.0}, "cv is 0; it must be a number from"),
        ("poisson", {"rate": 1.0, "num_requests": 0}, "num_requests is 0; it must be a whole number from 1"),
        ("poisson", {"rate": 1.0, "seed": -1}, "seed is -1; it must be a whole number from 0"),
        ("sosp", {"rate": 1.0, "duration": 9.0, "seed": 2**32}, "seed is 4294967296; arrivals sosp take one"),
        ("poisson", {"rate": 1e6, "duration": 1e6}, "rate and duration ask for 1e+12 requests"),
        ("poisson", {"rate": 1e-6, "duration": 1.0}, "nothing arrives within 1 s at 1e-06 requests/s"),
        ("sosp", {"rate": 1e-6, "duration": 1.0}, "nothing arrives within 1 s at 1e-06 requests/s"),
    ],
)
def test_missing_and_contradictory_options_are_refused_in_a_sentence(kind, options, said):
    with pytest.raises(PagesimError) as caught:
        arrive(recorded(), kind, **options)
    assert str(caught.value).startswith(said)


def test_an_empty_trace_cannot_arrive():
    with pytest.raises(PagesimError, match="no requests"):
        arrive(lengths(0), "poisson", rate=1.0)


def test_the_papers_generator_leaves_the_global_random_state_alone():
    def state():
        return random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002 - it is what is tested

    before = state()
    arrive(lengths(9), "sosp", rate=2.0, duration=30.0)
    assert state() == before


def test_the_papers_generator_keeps_short_requests_takes_the_first_and_shuffles_them():
    source = Trace(np.zeros(4), np.array([10, 1000, 1040, 11]), np.array([1, 1047, 1008, 2]))
    trace = arrive(source, "sosp", rate=2.0, duration=3.0)
    times, counts = np.unique(np.round(trace.arrival_s * 100), return_counts=True)
    drawn = np.random.RandomState(0).poisson(0.02, 300)
    assert times.tolist() == np.flatnonzero(drawn).tolist()
    assert counts.tolist() == drawn[drawn > 0].tolist()
    pairs = ([(10, 1), (1000, 1047), (11, 2)] * len(trace))[: len(trace)]
    random.Random(0).shuffle(pairs)
    assert list(zip(trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True)) == pairs


@pytest.mark.parametrize(
    ("golden", "rate", "duration"),
    [("sosp_fig2_vllm", 4.0, 900), ("sosp_n2_vllm_1.0", 1.0, 600), ("sosp_block256_vllm_2.0", 2.0, 300)],
)
def test_the_papers_generator_gives_the_requests_of_the_golden_logs(shared, golden, rate, duration):
    log = pd.read_parquet(shared / "golden" / f"{golden}.requests.parquet")
    source = load(shared / "data" / "sharegpt_sosp23_opt.parquet")
    trace = arrive(source, "sosp", rate=rate, duration=duration)
    assert trace.arrival_s.tolist() == log["arrival_s"].tolist()
    assert trace.prompt_tokens.tolist() == log["prompt_tokens"].tolist()
    assert trace.output_tokens.tolist() == [int(v) for v in log["output_tokens"]]


def conversations() -> Trace:
    """Three conversations of four turns, one after another, and a request of its own."""
    turns = np.array([10, 20, 30, 40] * 3 + [5])
    return Trace(
        np.arange(13.0), turns, np.full(13, 5), session_id=np.array([*("aaaabbbbcccc"), None], object)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_rounds_of_every_conversation_arrive_in_order(kind):
    options = {
        "recorded": {},
        "gamma": {"rate": 2.0, "cv": 2.0, "num_requests": 35},
        "all-at-once": {"num_requests": 35},
        "replay": {"rate": 2.0},
        "sosp": {"rate": 2.0, "duration": 17.0},
    }.get(kind, {"rate": 2.0, "num_requests": 35})
    trace = arrive(conversations(), kind, **options)
    assert trace.session_id is not None
    turns: dict[object, list[int]] = {}
    for request in trace:
        if request.prompt_tokens != 5:
            turns.setdefault(request.session_id, []).append(request.prompt_tokens)
    # Copies are conversations of their own; the last may be cut short.
    assert len(turns) == -(-sum(map(len, turns.values())) // 4)
    for prompts in turns.values():
        assert prompts == [10, 20, 30, 40][: len(prompts)]


def test_the_papers_generator_puts_rounds_in_order_where_the_shuffle_put_the_conversation():
    source = conversations().take(slice(0, 12))
    plain = arrive(source.with_columns({"session_id": None}), "sosp", rate=2.0, duration=12.0)
    trace = arrive(source, "sosp", rate=2.0, duration=12.0)
    assert trace.arrival_s.tolist() == plain.arrival_s.tolist()
    assert len(trace) > 12
    assert sorted(trace.prompt_tokens.tolist()) == sorted(plain.prompt_tokens.tolist())
    shuffled = list(range(len(trace)))
    random.Random(0).shuffle(shuffled)
    assert trace.session_id is not None
    assert trace.session_id.tolist() == [row // 4 for row in shuffled]  # conversations of four, and copies
    assert trace.notes[-1].endswith("; the turns of a conversation keep their order")


def test_every_column_follows_its_request():
    source = lengths(
        3,
        n=np.array([1, 2, 2]),
        hash_ids=[(4,), (5,), ()],
        hash_block_size=4,
        sample_tokens=[(7,), (7, 2), (3, 7)],
        prefix_tokens=np.array([0, 2, 1]),
    )
    trace = arrive(source, "all-at-once", num_requests=5)
    assert trace.hash_ids == [(4,), (5,), (), (4,), (5,)]
    assert trace.hash_block_size == 4
    assert trace.sample_tokens == [(7,), (7, 2), (3, 7), (7,), (7, 2)]
    assert trace.prefix_tokens is not None
    assert trace.prefix_tokens.tolist() == [0, 2, 1, 0, 2]
