"""Goals: what is understood, and what is named when it is not."""

from __future__ import annotations

import pytest

from pagesim.errors import PagesimError
from pagesim.experiments.sweeps.goals import parse_goal


@pytest.mark.parametrize(
    ("text", "metric", "seconds"),
    [
        ("normalized_latency<=1.0", "normalized_latency.mean", 1.0),
        ("mean_queueing<=2.5s", "queueing.mean", 2.5),
        ("p99_ttft<=2s", "ttft.p99", 2.0),
        ("p95_tpot <= 100ms", "tpot.p95", 0.1),
        ("p50_normalized_latency<=1e-1", "normalized_latency.p50", 0.1),
        ("p90_itl<=.5", "itl.p90", 0.5),
    ],
)
def test_a_goal_is_a_statistic_of_a_latency_and_its_bound(text, metric, seconds):
    goal = parse_goal(text)
    assert goal.metric == metric
    assert goal.seconds == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ttft", "goal is 'ttft'; it must be a latency and its bound"),
        ("ttft<2", "goal is 'ttft<2'; it must be"),
        ("ttft>=2", "goal is 'ttft>=2'; it must be"),
        ("<=2", "goal is '<=2'; it must be"),
        ("ttft<=", "goal is 'ttft<='; it must be"),
        ("p99_tfft<=2", "the latency tfft is unknown"),
        ("p99_tfft<=2", "did you mean ttft?"),
        ("goodput<=2", "the latency goodput is unknown"),
        ("p97_ttft<=2", "the statistic p97 is unknown; it must be one of mean, p50, p90, p95, p99"),
        ("max_tpot<=2", "the statistic max is unknown"),
        ("ttft<=2h", "the unit h is unknown; it must be s or ms"),
        ("ttft<=0", "the bound 0 must be a number above 0"),
        ("ttft<=-1s", "the bound -1 must be a number above 0"),
        ("ttft<=1.2.3", "the bound 1.2.3 must be a number above 0"),
    ],
)
def test_what_is_no_goal_is_named(text, said):
    with pytest.raises(PagesimError) as caught:
        parse_goal(text)
    assert said in str(caught.value)
    assert repr(text)[1:-1] in str(caught.value)
