"""Cost grows with rows, not with tokens: counts that cannot drift, and a run against the clock."""

from __future__ import annotations

import cProfile
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import pagesim as ps

COSTS = "affine:0.024,1e-4,8.2e-7"
HEADS = "kv_heads = 8, head_dim = 128"


def test_three_rows_a_request_at_saturation() -> None:
    trace = ps.make_trace("sharegpt", arrivals="poisson", rate=1.9, num_requests=2000, seed=1)
    summary = ps.simulate(trace, "vllm-sosp", steps="none", num_blocks=983, cost=COSTS).summary
    assert summary["sim"]["rows"] < 3.2 * len(trace)
    assert summary["iterations"] > 4 * summary["sim"]["rows"]


def test_where_no_request_is_preempted_rows_do_not_grow_with_the_outputs() -> None:
    rows = []
    for output in (50, 500):
        trace = ps.make_trace(f"fixed:100,{output}", arrivals="all-at-once", num_requests=200)
        rows.append(ps.simulate(trace, "orca-oracle", steps="none").summary["sim"]["rows"])
    assert rows[1] <= 2 * rows[0]


FAULTS = """
import resource
import pagesim as ps
trace = ps.make_trace("sharegpt", arrivals="poisson", rate=0.5, num_requests=3000, seed=1)
for _ in range(3):  # after two the heap has its size
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    found = ps.simulate(trace, steps="none", num_blocks=983, cost="affine:0.024,1e-4,8.2e-7")
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(found.summary["iterations"], faults)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only of glibc it is known how it keeps memory")
def test_the_ledger_of_one_chunk_takes_the_memory_of_the_one_before() -> None:
    said = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    iterations, faults = map(int, said.stdout.split())
    assert iterations > 150_000
    assert faults < iterations / 500


@pytest.mark.parametrize("window", [256, 1024])
def test_windows_take_hardly_more_rows_than_full_attention(window: int, tmp_path: Path) -> None:
    trace = ps.make_trace("sharegpt", arrivals="poisson", rate=0.5, num_requests=1000, seed=1)
    rows = []
    for windows in (0, 2):
        layers = [f"{{ repeat = {windows}, kind = 'window', window = {window}, {HEADS} }}"] * (windows > 0)
        layers.append(f"{{ kind = 'full', {HEADS} }}")
        model = tmp_path / f"{windows}.toml"
        model.write_text(f"max_model_len = 2048\nlayers = [{', '.join(layers)}]\n")
        options = {"model": str(model), "num_blocks": 983 * (1 + windows), "enable_prefix_caching": False}
        summary = ps.simulate(trace, "vllm-v1", steps="none", cost=COSTS, **options).summary
        rows.append(summary["sim"]["rows"])
    assert rows[1] < 1.1 * rows[0]


@pytest.mark.parametrize(("policy", "most"), [("vllm-sosp", 190), ("vllm-v0", 244), ("vllm-v1", 333)])
def test_a_request_takes_so_many_calls(policy: str, most: int) -> None:
    # Memory is full, and requests are preempted. Unlike a time, the count is the same on every machine.
    trace = ps.make_trace("sharegpt", arrivals="poisson", rate=4, num_requests=3000, seed=1)
    with cProfile.Profile() as profile:
        ps.simulate(trace, policy, steps="none", num_blocks=983, cost=COSTS)
    codes = [(each.code, each.callcount) for each in profile.getstats() if not isinstance(each.code, str)]
    calls = sum(count for code, count in codes if Path(ps.__file__).parent in Path(code.co_filename).parents)
    assert calls / len(trace) < most


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "limit_s"), [("vllm-sosp", 10.0), ("vllm-v0", 20.0), ("vllm-v1", 20.0)])
def test_a_hundred_thousand_requests_take_seconds_and_300_megabytes(
    policy: str, limit_s: float, sharegpt: Path, slowdown: Callable[[], float]
) -> None:
    arguments = ["run", "--trace", str(sharegpt), "--arrivals", "poisson", "--rate", "4", "--json"]
    arguments += ["--num-requests", "100000", "--policy", policy, "--num-blocks", "983", "--cost", COSTS]
    program = f"import sys; sys.argv = ['pagesim', *{arguments!r}]; from pagesim.cli.main import app; app()"
    shares: list[float] = []
    while len(shares) < 5 and min(shares, default=limit_s) >= limit_s:
        busy = slowdown()
        started = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
        shares.append((time.perf_counter() - started) / busy)
    summary = json.loads(done.stdout)
    assert summary["requests"]["unfinished"] == 0
    assert summary["requests"]["finished"] > 94_000, "the file's longest requests do not fit the model"
    assert summary["sim"]["peak_rss_mb"] < 300
    assert min(shares) < limit_s
