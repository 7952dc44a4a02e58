"""A trace is described by a table and a figure."""

import numpy as np
import pytest

from pagesim.errors import PagesimError
from pagesim.workloads import describe, ideal_reuse, make_trace, plot_trace, reuse_distances, session_reuse
from pagesim.workloads.trace import Trace


def value(trace: Trace, measure: str, statistic: str) -> float:
    table = describe(trace)
    (found,) = table[(table["measure"] == measure) & (table["statistic"] == statistic)]["value"]
    return float(found)


def test_the_table_has_the_statistics_of_lengths_and_arrivals():
    trace = Trace(np.array([1.0, 2.0, 4.0]), np.array([10, 20, 60]), np.array([1, 2, 3]))
    assert value(trace, "prompt_tokens", "mean") == 30
    assert value(trace, "prompt_tokens", "p50") == 20
    assert value(trace, "output_tokens", "max") == 3
    assert value(trace, "total_tokens", "max") == 63
    assert value(trace, "requests", "count") == 3
    assert value(trace, "arrivals", "rate") == pytest.approx(2 / 3)
    assert value(trace, "arrivals", "gap_cv") == pytest.approx(1 / 3)
    assert value(trace, "arrivals", "duration") == 3


def test_requests_that_arrive_together_have_no_rate():
    assert np.isnan(value(make_trace("alpaca"), "arrivals", "rate"))


@pytest.mark.slow_but("trace0")
@pytest.mark.parametrize("trace", [make_trace("azure-conv"), make_trace("alpaca"), make_trace("fixed:1,1")])
def test_the_figure_draws_every_request_once(trace, tmp_path):
    figure = plot_trace(trace)
    lengths, arrivals = figure.axes
    assert [text.get_text() for text in lengths.get_legend().get_texts()] == [
        f"prompt, mean {trace.prompt_tokens.mean():.0f}",
        f"output, mean {trace.output_tokens.mean():.0f}",
    ]
    if trace.arrival_s.any():
        heights, edges, _ = arrivals.patches[0].get_data()
        assert (heights * np.diff(edges)).sum() == pytest.approx(len(trace))
        assert arrivals.get_ylim()[1] >= heights.max()
    else:
        assert [text.get_text() for text in arrivals.texts] == ["all at 0 s"]
    figure.savefig(tmp_path / "trace.png")


@pytest.mark.parametrize("show", [describe, plot_trace])
def test_an_empty_trace_cannot_be_described(show):
    with pytest.raises(PagesimError, match="no requests"):
        show(Trace(np.empty(0), np.empty(0), np.empty(0)))


def prompts(*rows: tuple[int, tuple[int, ...]]) -> Trace:
    """Requests with these prompt tokens and ids of blocks of 4."""
    return Trace(
        np.arange(len(rows)),
        np.array([tokens for tokens, _ in rows]),
        np.ones(len(rows)),
        hash_ids=[ids for _, ids in rows],
        hash_block_size=4,
    )


@pytest.mark.parametrize(
    ("rows", "hits", "blocks"),
    [
        pytest.param([(8, (1, 2)), (12, (1, 2, 3))], 2, 5, id="as far as an earlier prompt goes"),
        pytest.param([(8, (1, 2)), (8, (3, 2))], 0, 4, id="an id after another one is another prefix"),
        pytest.param([(8, (1, 2)), (12, (1, 3, 2))], 1, 5, id="none after the first that differs"),
        pytest.param([(8, (1, 1)), (8, (1, 1))], 2, 4, id="no prompt hits itself"),
        pytest.param([(8, (1, 2)), (4, (1,)), (8, (1, 2))], 3, 5, id="a shorter prompt forgets nothing"),
        pytest.param([(5, (1, 2)), (6, (1, 2))], 2, 4, id="a block filled in part counts"),
        pytest.param([(9, (1,)), (9, (1,)), (9, ())], 1, 9, id="blocks without an id never hit"),
    ],
)
def test_a_block_is_reused_if_all_of_the_prompt_up_to_it_was_seen(rows, hits, blocks):
    trace = prompts(*rows)
    assert ideal_reuse(trace) == (hits, blocks)
    assert value(trace, "prompt_blocks", "count") == blocks
    assert value(trace, "prompt_blocks", "ideal_reuse") == pytest.approx(100 * hits / blocks)


def test_without_ids_nothing_is_said_of_reuse():
    trace = make_trace("alpaca")
    assert "prompt_blocks" not in set(describe(trace)["measure"])
    with pytest.raises(PagesimError, match="the trace has no hash_ids"):
        ideal_reuse(trace)


def test_mooncakes_conversations_reuse_what_was_published(shared):
    trace = make_trace(shared / "data" / "mooncake_fast25_conversation.parquet")
    assert ideal_reuse(trace) == (105_710, 288_500)
    assert value(trace, "prompt_blocks", "ideal_reuse") == pytest.approx(36.6, abs=0.05)
    # Full blocks alone: what a cache of whole blocks can reuse.
    full = trace.prompt_tokens // trace.hash_block_size
    whole = trace.with_columns(
        {
            "hash_ids": [ids[:count] for ids, count in zip(trace.hash_ids, full.tolist(), strict=True)],
            "prompt_tokens": np.maximum(1, full * trace.hash_block_size),
        }
    )
    hits, _ = ideal_reuse(whole)
    assert (hits, int(full.sum())) == (105_592, 276_491)


@pytest.mark.parametrize(
    ("rows", "distances"),
    [
        pytest.param([(8, (1, 2)), (8, (1, 2))], [1, 1], id="the prompt's other block lies between"),
        pytest.param([(4, (1,)), (4, (1,))], [0], id="nothing between"),
        pytest.param([(4, (1,)), (8, (2, 3)), (8, (2, 3)), (4, (1,))], [1, 1, 2], id="a block counts once"),
    ],
)
def test_a_distance_counts_the_other_blocks_used_since(rows, distances):
    assert reuse_distances(prompts(*rows)).tolist() == distances


def test_distances_are_those_of_a_stack_of_blocks():
    rng = np.random.default_rng(5)
    trace = prompts(*((4, (int(block),)) for block in rng.zipf(1.5, 400) % 60))
    stack, expected = [], []
    for (block,) in trace.hash_ids or ():
        if block in stack:
            expected.append(stack.index(block))
            stack.remove(block)
        stack.insert(0, block)
    assert reuse_distances(trace).tolist() == expected


def test_sessions_are_described_by_their_turns_and_what_these_take_over():
    trace = Trace(
        np.arange(4.0),
        np.array([100, 50, 160, 120]),
        np.array([10, 5, 8, 8]),
        session_id=np.array(["a", "b", "a", "a"], object),
        think_s=np.array([9.0, 9.0, 2.0, 4.0]),
    )
    assert session_reuse(trace) == 110  # the third turn of a begins anew
    assert value(trace, "prompt_tokens", "from_last_turn") == pytest.approx(100 * 110 / 430)
    assert value(trace, "sessions", "count") == 2
    assert value(trace, "turns", "mean") == 2
    assert value(trace, "think", "mean") == 3  # first turns do not think
    with pytest.raises(PagesimError, match="the trace has no session_id"):
        session_reuse(make_trace("alpaca"))
