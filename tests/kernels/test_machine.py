"""What is said of a machine, and what tells two machines apart."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pagesim.kernels import machine as module  # noqa: E402
from pagesim.kernels.machine import IDENTITY, describe_machine, identity, nvidia_smi, source  # noqa: E402

GPU = SimpleNamespace(
    name="NVIDIA H200",
    major=9,
    minor=0,
    multi_processor_count=132,
    shared_memory_per_multiprocessor=228 << 10,
    L2_cache_size=60 << 20,
    total_memory=141 << 30,
    uuid="1234-5678",
)
SMI = "580.159.03, 1980, 3201, 1980, 3201, 700.00, 5, 16"


def test_a_cpu_is_described_in_full_and_in_json():
    machine = describe_machine("cpu")
    assert json.loads(json.dumps(machine)) == machine
    assert machine["device"] == "cpu"
    assert machine["device_name"] == machine["cpu"]
    assert machine["torch"] == torch.__version__
    assert machine["driver"] is machine["clock_sm_mhz"] is None
    assert all(
        machine[name] for name in ("python", "pagesim", "source", "date", "cores", "threads", "system")
    )


def test_a_gpu_is_described_with_what_torch_and_its_driver_say(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: GPU)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(module, "_output", lambda *command: asked.append(command) or SMI)
    machine = describe_machine("cuda")
    assert machine["device_name"] == "NVIDIA H200"
    assert machine["compute_capability"] == "9.0"
    assert machine["driver"] == "580.159.03"
    assert (machine["clock_sm_mhz"], machine["clock_memory_mhz"], machine["pcie_generation"]) == (
        1980,
        3201,
        5,
    )
    assert asked[0][:3] == ("nvidia-smi", "-i", "GPU-1234-5678")
    assert machine.keys() == describe_machine("cpu").keys()
    assert tuple(machine) >= IDENTITY or set(IDENTITY) <= machine.keys()


@pytest.mark.parametrize(
    ("said", "clock", "driver"),
    [
        (SMI, 1980, "580.159.03"),
        (SMI.replace("1980", "[N/A]", 1), None, "580.159.03"),
        (SMI.replace("580.159.03", "580.65"), 1980, "580.65"),
        ("No devices were found", None, None),
        (None, None, None),
    ],
)
def test_what_nvidia_smi_does_not_say_is_none(said, clock, driver, monkeypatch):
    monkeypatch.setattr(module, "_output", lambda *_: said)
    facts = nvidia_smi()
    assert (facts["clock_sm_mhz"], facts["driver"]) == (clock, driver)


def test_clocks_and_dates_do_not_tell_machines_apart_and_versions_do():
    machine = describe_machine("cpu")
    later = {**machine, "date": "2030-01-01", "clock_sm_mhz": 1, "commit": "0" * 40}
    assert identity(later) == identity(machine)
    for name in IDENTITY:
        assert identity({**machine, name: "another"}) != identity(machine), name


def test_edited_code_is_another_source(tmp_path, monkeypatch):
    package = tmp_path / "kernels"
    package.mkdir()
    for name in ("machine.py", "decode.py"):
        (package / name).write_text("one = 1\n")
    monkeypatch.setattr(module, "__file__", str(package / "machine.py"))
    before = source.__wrapped__()
    (package / "decode.py").write_text("two = 2\n")
    assert source.__wrapped__() != before
