"""A run as Prometheus would have scraped it: names, numbers worked out by hand, and the format's own rules.

The server takes 100 ms an iteration. Three requests of 20 tokens come at once, and two may run: the first two
have their tokens at 0.1, 0.2 and 0.3 s, the third at 0.4, 0.5 and 0.6 s.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pagesim as ps
from pagesim.results.prometheus import openmetrics

SERVER: dict[str, Any] = {"model": "llama-3.1-8b", "gpu": "h100", "num_blocks": 100, "frontend": "0"}
COST = "affine:0.1,0,0"
SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\{([^}]*)\} (\S+) (\S+)")


def run(policy: str = "vllm-v1", **options: Any) -> ps.Result:
    trace = ps.Trace(np.zeros(3), np.full(3, 20), np.full(3, 3))
    return ps.simulate(trace, policy, cost=COST, **{**SERVER, **options})


@pytest.fixture(scope="module")
def text() -> str:
    return openmetrics(run(max_num_seqs=2, async_scheduling=False, vllm_version="0.19.0"))


def samples(text: str, name: str, **labels: str) -> list[tuple[float, float]]:
    """Return (instant, value) of a sample with these labels."""
    found = []
    for line in text.splitlines():
        match = SAMPLE.fullmatch(line)
        if match and match[1] == name and all(f'{k}="{v}"' in match[2] for k, v in labels.items()):
            found.append((float(match[4]), float(match[3])))
    return found


def test_counters_and_histograms_are_those_worked_out_by_hand(text: str) -> None:
    # All is over at 0.6 s, so the second scrape, at 1 s, sees the whole.
    assert samples(text, "vllm:request_success_total")[:2] == [(0, 0), (1, 3)]
    assert samples(text, "vllm:prompt_tokens_total")[1] == (1, 60)
    assert samples(text, "vllm:generation_tokens_total")[1] == (1, 9)
    first = "vllm:time_to_first_token_seconds"
    assert [samples(text, f"{first}_bucket", le=le)[1][1] for le in ("0.08", "0.25", "0.5", "+Inf")] == [
        0,
        2,
        3,
        3,
    ]
    assert samples(text, f"{first}_sum")[1][1] == pytest.approx(0.1 + 0.1 + 0.4)
    assert samples(text, f"{first}_count")[1][1] == 3
    e2e = "vllm:e2e_request_latency_seconds"
    assert samples(text, f"{e2e}_sum")[1][1] == pytest.approx(0.3 + 0.3 + 0.6)
    assert [samples(text, f"{e2e}_bucket", le=le)[1][1] for le in ("0.5", "0.8")] == [2, 3]
    # Two gaps a request, 100 ms each.
    assert samples(text, "vllm:inter_token_latency_seconds_count")[1][1] == 6
    assert samples(text, "vllm:inter_token_latency_seconds_sum")[1][1] == pytest.approx(0.6)
    assert samples(text, "vllm:request_queue_time_seconds_sum")[1][1] == pytest.approx(0.3)


def test_gauges_are_what_runs_waits_and_is_in_use(text: str) -> None:
    assert samples(text, "vllm:num_requests_running", engine="0", model_name="llama-3.1-8b")[0] == (0, 2)
    assert samples(text, "vllm:num_requests_waiting")[0] == (0, 1)
    # Two blocks of 16 tokens each; the null block is none.
    assert samples(text, "vllm:kv_cache_usage_perc")[0][1] == pytest.approx(4 / 99)
    assert samples(text, "vllm:num_requests_running")[1] == (1, 0)
    assert samples(text, "vllm:num_preemptions_total")[-1][1] == 0


def test_prefix_hits_are_tokens_of_those_that_were_looked_up() -> None:
    trace = ps.Trace(
        np.array([0.0, 5.0]), np.full(2, 40), np.full(2, 2), hash_ids=[(1, 2), (1, 2)], hash_block_size=16
    )
    found = openmetrics(ps.simulate(trace, "vllm-v1", cost=COST, enable_prefix_caching=True, **SERVER))
    assert samples(found, "vllm:prefix_cache_queries_total")[-1][1] == 80
    assert samples(found, "vllm:prefix_cache_hits_total")[-1][1] == 32
    assert samples(found, "vllm:prefix_cache_hits_total")[4][1] == 0


def test_preemptions_are_those_of_the_summary() -> None:
    trace = ps.Trace(np.zeros(20), np.full(20, 60), np.full(20, 100))
    result = ps.simulate(trace, "vllm-v1", cost="affine:0.01,0,0", **{**SERVER, "num_blocks": 40})
    counted = sum(result.summary["preemptions"].values())
    assert counted > 0
    assert samples(openmetrics(result), "vllm:num_preemptions_total")[-1][1] == counted


def test_sglang_has_its_own_names() -> None:
    text = openmetrics(run("sglang"))
    assert samples(text, "sglang:num_requests_total", model_name="llama-3.1-8b")[-1][1] == 3
    assert samples(text, "sglang:time_to_first_token_seconds_bucket", le="400.0")[-1][1] == 3
    assert samples(text, "sglang:token_usage")
    assert "vllm:" not in text


@pytest.mark.parametrize("policy", ["vllm-v1", "sglang", "orca-max"])
def test_the_text_keeps_the_formats_rules(policy: str) -> None:
    # OpenMetrics 1.0: a family at a time, its type first; counters end in _total; buckets do not fall and end
    # in +Inf, which is the count; instants of a metric rise; the text ends in EOF.
    lines = openmetrics(run(policy)).split("\n")
    assert lines[-2:] == ["# EOF", ""]
    kinds: dict[str, str] = {}
    buckets: list[tuple[float, float]] = []
    seen: dict[str, float] = {}
    family = ""
    for line in lines[:-2]:
        if (typed := re.fullmatch(r"# TYPE (\S+) (gauge|counter|histogram)", line)) is not None:
            family = typed[1]
            assert family not in kinds, "a family stands in one place"
            kinds[family] = typed[2]
            continue
        match = SAMPLE.fullmatch(line)
        assert match is not None, line
        name, labels, value, at = match[1], match[2], float(match[3]), float(match[4])
        endings = {"gauge": ("",), "counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}
        assert name in {family + ending for ending in endings[kinds[family]]}, line
        key = f"{name}{{{labels}}}"
        assert seen.get(key, -1.0) < at, "instants rise"
        seen[key] = at
        if name.endswith("_bucket"):
            bound = re.search(r'le="([^"]+)"', labels)
            assert bound is not None
            buckets.append((float(bound[1].replace("+Inf", "inf")), value))
        if name.endswith("_count"):
            assert buckets[-1] == (np.inf, value)
            assert all(one[0] < other[0] and one[1] <= other[1] for one, other in pairwise(buckets))
            buckets = []
    assert "histogram" in kinds.values()


def test_a_stored_result_has_it(tmp_path: Path) -> None:
    result = run()
    result.save(tmp_path / "out")
    assert (tmp_path / "out" / "metrics.prom").read_text() == openmetrics(result)
    assert ps.load(tmp_path / "out").summary == result.summary
