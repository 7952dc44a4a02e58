"""The same sweep on a Ray cluster of two nodes gives the same tables."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

CLUSTER = """
import sys
from ray.cluster_utils import Cluster
small = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
cluster = Cluster(initialize_head=True, head_node_args={**small, "include_dashboard": False})
try:
    cluster.add_node(**small)
    cluster.wait_for_nodes()
    print("cluster of", len(cluster.list_all_nodes()), "at", cluster.address, flush=True)
    sys.stdin.read()
finally:
    cluster.shutdown()
"""

SWEEP = (
    *("sweep", "--grid", "policy=orca-max,vllm-sosp,vllm-v1", "--grid", "rate=1,4", "--seeds", "2"),
    *("--num-requests", "40", "--num-blocks", "300"),
)


@pytest.fixture(scope="module")
def address(environment: dict[str, str]) -> Iterator[str]:
    """Start two nodes on this machine, in a process of their own: Ray warns, and changes joblib."""
    if find_spec("ray") is None:
        pytest.skip("needs Ray (the extra ray), which is not installed")
    process = subprocess.Popen(
        [sys.executable, "-c", CLUSTER],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        assert process.stdin
        assert process.stdout
        for line in process.stdout:
            if line.startswith("cluster of 2 at "):
                break
        else:
            pytest.fail("the cluster did not start")
        yield line.split()[-1]
        process.stdin.close()


@pytest.mark.slow
def test_two_nodes_give_the_table_of_this_machine(address, in_a_process, tmp_path):
    for where in (("local",), ("ray", "--address", address)):
        outcome = in_a_process(*SWEEP, "--executor", *where, "--out", tmp_path / where[0])
        assert outcome.code == 0, outcome.err
        assert "12 of 12 runs done" in outcome.out
        assert "WARNING" not in outcome.err
    for name in ("runs.parquet", "means.parquet"):
        assert (tmp_path / "ray" / name).read_bytes() == (tmp_path / "local" / name).read_bytes()


@pytest.mark.slow
def test_a_capacity_search_runs_there_too(address, in_a_process, tmp_path):
    search = ("capacity", "--goal", "ttft<=1s", "--policies", "orca-max,vllm-sosp", "--num-requests", "40")
    for where in (("local",), ("ray", "--address", address)):
        outcome = in_a_process(*search, "--executor", *where, "--out", tmp_path / where[0])
        assert outcome.code == 0, outcome.err
    tables = [(tmp_path / where / "capacity.parquet").read_bytes() for where in ("local", "ray")]
    assert tables[0] == tables[1]


@pytest.mark.slow
def test_a_cluster_that_is_not_there_is_said(in_a_process):
    if find_spec("ray") is None:
        pytest.skip("needs Ray (the extra ray), which is not installed")
    outcome = in_a_process("sweep", "--executor", "ray", "--address", "no-port", "--num-requests", "2")
    assert outcome.code == 2
    assert outcome.err.splitlines()[-1].startswith("pagesim: address is 'no-port'; no Ray cluster there")


def test_without_ray_the_executor_says_how_to_get_it(cli, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    outcome = cli("sweep", "--executor", "ray", "--num-requests", "2")
    assert outcome.err == "pagesim: executor ray needs Ray; pip install '.[ray]' in the checkout\n"
