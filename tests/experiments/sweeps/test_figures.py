"""Figures of sweeps: what is drawn, the same bytes each time, and what is refused."""

from __future__ import annotations

import pytest

import pagesim as ps
from pagesim.experiments.sweeps.figures import capacity_bars, curves
from pagesim.results.plots import save

GRID = {"policy": ["vllm-sosp", "token-granular"], "rate": [1.0, 2.0], "block_size": [8, 16]}


@pytest.fixture(scope="module")
def means():
    return ps.sweep("fixed:100,20", grid=GRID, num_requests=20, seeds=2, jobs=1).means


def test_a_curve_shows_the_means_and_their_confidence(means):
    figure = curves(means, list(GRID), x="rate", y="latency.mean", hue="policy")
    assert [axes.get_title() for axes in figure.axes] == ["block_size 8", "block_size 16"]
    axes = figure.axes[0]
    assert axes.get_xlabel() == "rate (requests/s)"
    assert axes.get_ylabel() == "latency.mean (s)\nmean over seeds"
    own = means[(means["policy"] == "vllm-sosp") & (means["block_size"] == 8)]
    line, caps, (bars,) = axes.containers[0]
    assert line.get_xdata().tolist() == [1.0, 2.0]
    assert line.get_ydata().tolist() == own["latency.mean"].tolist()
    assert len(caps) == 2
    middles, margins = own["latency.mean"], own["latency.mean.ci95"]
    for (low, high), middle, margin in zip(bars.get_segments(), middles, margins, strict=True):
        assert (low[1], high[1]) == pytest.approx((middle - margin, middle + margin))


def test_a_policy_without_the_option_is_a_level_line_and_in_every_panel(means):
    figure = curves(means, list(GRID), x="block_size", y="ttft.p99", hue="policy")
    assert [axes.get_title() for axes in figure.axes] == ["rate 1.0", "rate 2.0"]
    texts = [text.get_text() for text in figure.axes[-1].get_legend().get_texts()]
    assert texts == ["vllm-sosp", "token-granular"]
    level = [line for line in figure.axes[0].lines if line.get_linestyle() == "--"]
    own = means[(means["policy"] == "token-granular") & (means["rate"] == 1.0)]
    assert [line.get_ydata()[0] for line in level] == own["ttft.p99"].tolist()
    by_rate = curves(means, list(GRID), x="rate", y="ttft.p99", hue="policy")
    assert [len(axes.containers) for axes in by_rate.axes] == [2, 2]


def test_texts_that_are_numbers_are_drawn_as_numbers():
    grid = {"shared_prefix": ["10", "100", "40"]}
    means = ps.sweep("fixed:100,20", grid=grid, num_requests=5, jobs=1).means
    (axes,) = curves(means, list(grid), x="shared_prefix", y="prefix.share").axes
    line, _, _ = axes.containers[0]
    assert line.get_xdata().tolist() == [10.0, 40.0, 100.0]


def test_names_may_be_an_axis(means):
    figure = curves(means, list(GRID), x="policy", y="ttft.p99", hue="rate")
    labels = [text.get_text() for text in figure.axes[0].get_xticklabels()]
    assert labels == ["vllm-sosp", "token-granular"]


def test_a_figure_has_the_same_bytes_each_time(means, tmp_path):
    for name in ("a", "b"):
        save(curves(means, list(GRID), x="rate", y="ttft.p99", hue="policy"), tmp_path / name)
    for ending in ("png", "svg"):
        assert (tmp_path / f"a.{ending}").read_bytes() == (tmp_path / f"b.{ending}").read_bytes()


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({"x": "rate", "y": "ttft"}, "y is 'ttft'; it must be a metric, one of requests.total"),
        (
            {"x": "gpu", "y": "ttft.p99"},
            "x is 'gpu'; it must be a metric or an option of the grid (policy, rate",
        ),
        (
            {"x": "rate", "y": "ttft.p99", "hue": "ttft.p50"},
            "hue is 'ttft.p50'; it must be an option of the grid",
        ),
    ],
)
def test_a_name_that_is_not_there_is_said(names, said, means):
    with pytest.raises(ps.PagesimError) as caught:
        curves(means, list(GRID), **names)
    assert str(caught.value).startswith(said)


def test_bars_say_when_there_is_no_rate():
    goals = {"goals": "p99_ttft<=0.5s", "num_requests": 60, "jobs": 1}
    rates = ps.capacity("fixed:500,50", ["orca-max", "vllm-sosp"], highest=6.0, **goals).rates
    rates.loc[2] = ["static", float("nan"), 0.1, "fails at the lowest rate", float("nan")]
    axes = capacity_bars(rates).axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["static", "vllm-sosp", "orca-max"]
    texts = [text.get_text() for text in axes.texts]
    assert texts == ["fails at the lowest rate", "≥ 6", f"{rates['rate'][0]:.4g}"]
