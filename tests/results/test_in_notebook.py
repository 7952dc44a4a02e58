"""What a notebook shows of a result: a short text, a figure, the page."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pandas as pd
import pytest

import pagesim as ps


@pytest.fixture(scope="module")
def result() -> ps.Result:
    """A request of 40 + 8 tokens, and one of 20 + 4, alone in a cache of 100 blocks."""
    columns = {"arrival_s": [0.0, 100.0], "prompt_tokens": [40, 20], "output_tokens": [8, 4]}
    trace = pd.DataFrame(columns)
    return ps.simulate(trace, "vllm-sosp", num_blocks=100, cost="affine:0.01,0,0")


def test_the_text_says_what_ran_and_how_it_went(result: ps.Result) -> None:
    lines = repr(result).splitlines()
    assert len(lines) == 4
    assert lines[0] == "<Result of vllm-sosp: opt-13b on a100-40gb, 100 blocks of 16 tokens"
    # An iteration gives each of 8 and of 4 tokens: a prompt's gives the first.
    assert lines[1] == " 2 of 2 requests finished, 12 iterations, 0 preemptions"
    assert lines[2].startswith(" latency p50 0.0")


def test_the_figure_is_of_the_memory_over_time(result: ps.Result) -> None:
    labels = [axes.get_ylabel() for axes in result.plot().axes]
    assert labels == ["KV cache (%)", "requests"]
    bare = ps.simulate(ps.make_trace("fixed:10,3", num_requests=1), steps="none", num_blocks=10)
    with pytest.raises(ps.PagesimError, match="steps='stretches'"):
        bare.plot()


def test_the_page_stands_in_a_frame_that_loads_nothing(result: ps.Result, tmp_path: Path) -> None:
    report = result.report()
    frame = report._repr_html_()
    within = re.fullmatch(r'<iframe srcdoc="([^"]*)" sandbox="allow-scripts" style="[^"]*"></iframe>', frame)
    assert within is not None
    assert html.unescape(within[1]) == report.html == report.save(tmp_path / "page.html").read_text("utf-8")
    assert "Where the KV cache went" in report.html
    assert len(repr(report)) < 20
