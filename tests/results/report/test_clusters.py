"""The page about clusters: what each replica had to do, from what was stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pagesim as ps
from pagesim.errors import PagesimError
from pagesim.experiments.clusters import run_pools
from pagesim.results.report import write_report
from pagesim.setup.system import System
from tests.results.report.reading import data_of, unpacked

SYSTEM = {"cost": "affine:0.02,1e-4,1e-6", "num_blocks": 300, "max_model_len": 1024}


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return a cluster of three replicas, one of two pools, and their folders by name."""
    trace = ps.make_trace("sharegpt", arrivals="poisson", rate=6.0, num_requests=80)
    found = {
        "even": ps.simulate_cluster(trace, "vllm-sosp", replicas=3, router="least-loaded", **SYSTEM),
        "apart": run_pools(System(policy="vllm-v1", **SYSTEM), trace, prefill=1, decode=2, steps=True),
    }
    folder = tmp_path_factory.mktemp("clusters")
    return {name: (result, result.save(folder / name)) for name, result in found.items()}


@pytest.fixture(scope="module")
def page(clusters: dict[str, Any]) -> Path:
    folders = [folder for _, folder in clusters.values()]
    write_report(folders, folders[0].parent / "report.html")
    return folders[0].parent / "report.html"


def test_every_request_is_with_one_replica_from_its_arrival_to_its_end(clusters: Any, page: Path) -> None:
    data = data_of(page)
    for cluster, (result, _) in zip(data["systems"], clusters.values(), strict=True):
        clock = unpacked(cluster["over_time"]["clock"])
        names = cluster["replicas"]["names"]
        outstanding = unpacked(cluster["outstanding"]).reshape(len(names), len(clock))
        requests = result.requests[result.requests["status"] != "rejected"]
        assert len(requests) > 60
        for at in range(0, len(clock), 37):
            there = (requests["arrival_s"] <= clock[at]) & ~(requests["finish_s"] <= clock[at])
            assert outstanding[:, at].sum() == there.sum()
        assert unpacked(cluster["replicas"]["most"]).tolist() == outstanding.max(axis=1).tolist()
        held = unpacked(cluster["over_time"]["num_running"])
        waiting = unpacked(cluster["over_time"]["num_waiting"])
        assert (held + waiting == outstanding.sum(axis=0)).all()


def test_replicas_are_named_by_their_pools_and_pools_have_ledgers(page: Path) -> None:
    even, apart = data_of(page)["systems"]
    assert even["replicas"]["names"] == ["0", "1", "2"]
    assert even["pools"] is None
    assert apart["replicas"]["names"] == ["prefill 0", "decode 0", "decode 1"]
    for ledger in apart["pools"].values():
        shares = [unpacked(column) for name, column in ledger.items() if name != "clock"]
        assert np.sum(shares, axis=0) == pytest.approx(100)
    assert "landing" in apart["pools"]["decode"]


def test_a_cluster_and_a_single_system_do_not_share_a_page(clusters: Any, tmp_path: Path) -> None:
    single = ps.simulate("fixed:10,10").save(tmp_path / "single")
    with pytest.raises(PagesimError, match="make a page of each kind"):
        write_report([clusters["even"][1], single], tmp_path / "report.html")


@pytest.mark.parametrize("file", ["requests.parquet", "summary.json"])
def test_a_damaged_cluster_is_named(clusters: Any, tmp_path: Path, file: str) -> None:
    folder = clusters["even"][0].save(tmp_path / "damaged")
    (folder / file).write_bytes(b"PAR1")
    with pytest.raises(PagesimError, match=f"{file}: was changed since the result was stored"):
        write_report([folder], tmp_path / "report.html")
    (folder / "manifest.json").unlink()
    with pytest.raises(PagesimError, match=r"is no result of pagesim run \(it has no manifest.json\)"):
        write_report([folder], tmp_path / "report.html")


def test_a_browser_draws_it_light_and_dark(browser: Any, page: Path) -> None:
    browser.open(page)
    assert browser.run("document.querySelectorAll('#maps .heatmaplayer .hm').length") == 2
    assert browser.run("document.querySelectorAll('#memories .barlayer .bars').length") > 4
    rows = browser.run(
        "[...document.querySelectorAll('#replica-tables th[scope=row]')].map(th => th.textContent)"
    )
    assert rows == ["0", "1", "2", "prefill 0", "decode 0", "decode 1"]
    browser.goes_dark()
