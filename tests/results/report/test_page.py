"""The page's file: what stands in it, that nothing in it can be more than text, and what is refused."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import pagesim as ps
from pagesim.api import run, trace_of
from pagesim.results.report import write_report
from pagesim.results.report.pack import embed, pack
from pagesim.results.report.sources import find
from pagesim.setup.scenario import Scenario
from tests.results.report.reading import data_of, unpacked

MOST_S = 5
"""Seconds of processor that a page about 20,000 requests takes."""

HOSTILE = "</script><script>alert(1)</script><!-- <img src=x onerror=alert(1)> & \"'\u2028"


def stored(folder: Path, **options: Any) -> Path:
    chosen = Scenario(**{"trace": "fixed:100,20", "num_requests": 8, "num_blocks": 300, **options})
    return run(chosen, trace_of(chosen)).save(folder)


def test_a_page_holds_each_result_its_numbers_and_its_requests(tmp_path: Path) -> None:
    folders = [stored(tmp_path / policy, policy=policy) for policy in ("orca-max", "vllm-sosp")]
    write_report(folders, tmp_path / "report.html", instants=50)
    data = data_of(tmp_path / "report.html")
    assert [system["name"] for system in data["systems"]] == ["orca-max", "vllm-sosp"]
    for folder, system in zip(folders, data["systems"], strict=True):
        result = ps.load(folder)
        assert system["summary"]["ttft"] == result.summary["ttft"]
        assert unpacked(system["waterfall"]["names"]).tolist() == [str(n) for n in range(8)]
        finish_s = unpacked(system["waterfall"]["finish_s"])
        assert finish_s == pytest.approx(result.requests["finish_s"].to_numpy(), rel=0, abs=1e-6)
        assert system["no_frames"] is None
        assert len(unpacked(system["frames"]["shown"])) == 50
        assert result.steps is not None
        assert unpacked(system["over_time"]["used"]).tolist() == result.steps["used"].tolist()


@pytest.mark.slow
def test_a_page_about_many_requests_has_fewer_pictures_and_stays_small(
    tmp_path: Path, slowdown: Callable[[], float]
) -> None:
    options = {"cost": "affine:0.024,1e-4,8.2e-7", "model": "opt-13b", "sizing": "paper"}
    folder = stored(
        tmp_path / "out", trace="sharegpt", num_requests=20_000, rate=1.95, num_blocks=983, **options
    )
    begun = time.process_time()
    write_report([folder], tmp_path / "report.html")
    assert time.process_time() - begun < MOST_S * slowdown()
    system = data_of(tmp_path / "report.html")["systems"][0]
    assert len(unpacked(system["frames"]["shown"])) == 150_000 // 983
    assert (tmp_path / "report.html").stat().st_size < 3.2e6


def test_it_says_how_far_the_replay_is(tmp_path: Path) -> None:
    folders = [
        stored(tmp_path / policy, policy=policy, num_requests=1000, rate=100.0)
        for policy in ("orca-max", "sglang")
    ]
    said: list[str] = []
    write_report(folders, tmp_path / "report.html", instants=2, progress=said.append)
    told = [f"replaying {name}: {share} %" for name in ("orca-max", "sglang") for share in (0, 50, 100)]
    assert said == [*told, "writing the page"]


def test_events_between_pictures_add_up_to_all_there_were(tmp_path: Path) -> None:
    options = {"policy": "vllm-sosp", "n": 3, "num_blocks": 300}
    folder = stored(tmp_path / "out", trace="sharegpt", rate=3.0, num_requests=30, **options)
    write_report([folder], tmp_path / "report.html", instants=50)
    events = data_of(tmp_path / "report.html")["systems"][0]["frames"]["events"]
    summary = ps.load(folder).summary
    assert summary["swapped_blocks"]["out"] > 0
    assert unpacked(events["blocks_swapped_out"]).sum() == summary["swapped_blocks"]["out"]
    assert unpacked(events["blocks_swapped_in"]).sum() == summary["swapped_blocks"]["in"]


def test_a_comparison_is_its_policies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, succeeds: Any) -> None:
    monkeypatch.chdir(tmp_path)
    load = ("--trace", "fixed:10,10", "--num-requests", "3")
    succeeds("run", "--policies", "static,vllm-sosp", *load, "--out", "out")
    assert [source.name for source in find([Path("out")])] == ["static", "vllm-sosp"]
    stored(tmp_path / "small", policy="vllm-sosp")
    names = [source.name for source in find([Path("out"), Path("small"), Path("small")])]
    assert names == ["static", "vllm-sosp (out)", "vllm-sosp (small)", "vllm-sosp (small)′"]


def test_a_name_cannot_end_the_script_that_holds_it() -> None:
    text = embed({"name": HOSTILE})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"name": HOSTILE}


def test_hostile_names_stay_in_the_data(tmp_path: Path) -> None:
    table = pd.DataFrame({"request_id": [HOSTILE, "a"], "prompt_tokens": 20, "output_tokens": 5})
    table.assign(arrival_s=0.0).to_csv(tmp_path / "<b>trace.csv", index=False)
    folder = stored(tmp_path / "<img src=x>", trace=str(tmp_path / "<b>trace.csv"), num_requests=2)
    clean = stored(tmp_path / "clean")
    write_report([folder, clean], tmp_path / "report.html", instants=10)
    assert HOSTILE in data_of(tmp_path / "report.html")["systems"][0]["waterfall"]["names"]
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "alert(1)" not in re.sub(r'(?s)id="data">.*?</script>', "", page)
    assert "<b>trace" not in page
    assert "<img src=x" not in page


def test_only_the_pages_own_scripts_may_run_and_nothing_may_be_fetched(tmp_path: Path) -> None:
    write_report([stored(tmp_path / "out")], tmp_path / "report.html", instants=0)
    page = (tmp_path / "report.html").read_text("utf-8")
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-inline" not in policy.split("style-src")[0]
    assert "http" not in policy
    for script in re.findall(r"<script>(.*?)</script>", page, re.S):
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert not re.findall(
        r'<(?:link|script|img|iframe)[^>]*(?:src|href)="(?!data:)', page.split("<script>")[0]
    )


def test_numbers_come_back_as_they_were() -> None:
    assert unpacked(pack([1.5, float("nan"), float("inf")])).tolist()[0] == 1.5
    assert unpacked(pack(np.array([-2, 2**31 - 1]))).tolist() == [-2, 2**31 - 1]


def test_without_instants_nothing_is_replayed(tmp_path: Path) -> None:
    write_report([stored(tmp_path / "out")], tmp_path / "report.html", instants=0)
    (system,) = data_of(tmp_path / "report.html")["systems"]
    assert system["frames"] is None
    assert system["no_frames"] == "it was not asked for"


def test_a_result_without_steps_has_a_page(tmp_path: Path) -> None:
    ps.simulate("fixed:10,10", steps="none").save(tmp_path / "out")
    write_report([tmp_path / "out"], tmp_path / "report.html")
    (system,) = data_of(tmp_path / "report.html")["systems"]
    assert system["over_time"] is None
    assert "given as an object" in system["no_frames"]


def test_what_is_no_result_is_refused_in_a_sentence(tmp_path: Path, refused: Any) -> None:
    out = ("--out", tmp_path / "report.html")
    good = stored(tmp_path / "good")
    assert "is no result of pagesim run" in refused("report", tmp_path / "nosuch", *out)
    assert "instants is 1; it must be 0 or from 2 to 5000" in refused("report", good, *out, "--instants", 1)
    assert "window is '5:1'" in refused("report", good, *out, "--window", "5:1")
    assert "window is '5:5': it must have a length" in refused("report", good, *out, "--window", "5:5")
    assert "is a folder); name a file" in refused("report", good, "--out", tmp_path)
    assert "13 results are too many" in refused("report", *[good] * 13, *out)
    ps.simulate_cluster("fixed:10,10", replicas=2).save(tmp_path / "cluster")
    assert "is the result of a cluster, and others are not" in refused(
        "report", tmp_path / "cluster", good, *out
    )
    assert not (tmp_path / "report.html").exists()


def test_a_page_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, refused: Any) -> None:
    good = stored(tmp_path / "good")
    assert "cannot be written" in refused("report", good, "--out", tmp_path / "nosuch" / "report.html")
    page = tmp_path / "report.html"
    page.write_text("old")
    (good / "requests.parquet").unlink()
    refused("report", good, "--out", page)
    assert page.read_text() == "old"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["good", "report.html"]


def test_the_command_says_where_the_page_is(tmp_path: Path, succeeds: Any) -> None:
    page = tmp_path / "page.html"
    told = succeeds("report", stored(tmp_path / "out"), "--out", page, "--window", "0:1").out
    assert "page.html" in told
    assert data_of(page)["window"] == [0.0, 1.0]
