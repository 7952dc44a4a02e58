"""The same sweep on a Ray cluster of two nodes gives the same tables."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from types import ModuleType

import pytest

from pagesim.experiments.sweeps import workers

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
    search = (
        "sweep",
        "--find",
        "rate",
        "--slo",
        "ttft<=1s",
        "--policies",
        "orca-max,vllm-sosp",
        "--num-requests",
        "40",
    )
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


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Put modules in the place of Ray's, which may not be installed."""
    ray = ModuleType("ray")
    backend = ModuleType("ray.util.joblib.ray_backend")
    backend.RayBackend = type("RayBackend", (), {})
    ray.is_initialized = lambda: False
    modules = {
        "ray": ray,
        "ray.util": ModuleType("ray.util"),
        "ray.util.joblib": ModuleType("ray.util.joblib"),
    }
    for name, module in {**modules, "ray.util.joblib.ray_backend": backend}.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr("joblib.register_parallel_backend", lambda *_: None)
    monkeypatch.setattr(workers, "ANSWERS_WITHIN_S", 1.0)
    return ray


REFUSED = ("sweep", "--executor", "ray", "--num-requests", "2", "--address")


def test_a_port_that_nothing_listens_on_is_said_at_once(stand_in, refused):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
        said = refused(*REFUSED, address)
        assert said == f"address is '{address}'; no Ray cluster there ([Errno 111] Connection refused)"


def test_a_cluster_that_does_not_answer_is_waited_for_so_long_and_no_longer(stand_in, refused):
    stand_in.init = lambda **_: time.sleep(50)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        began = time.monotonic()
        said = refused(*REFUSED, address)
    assert said == f"address is '{address}'; no Ray cluster there (it does not answer within 1 s)"
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "x" * 9000 + ":6379"])
def test_an_address_that_is_none_is_said(address, stand_in, refused):
    assert "no Ray cluster there (" in refused(*REFUSED, address)


def test_without_ray_the_executor_says_how_to_get_it(cli, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    outcome = cli("sweep", "--executor", "ray", "--num-requests", "2")
    assert outcome.err == "pagesim: executor ray needs Ray; pip install '.[ray]' in the checkout\n"
