"""A trace is described by a table and a figure."""

import numpy as np
import pytest

from pagesim.errors import PagesimError
from pagesim.request import Trace
from pagesim.workloads import describe, make_trace, plot_trace


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
