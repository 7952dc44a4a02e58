"""``pagesim doctor`` says what is there and how to get what is not, whatever is missing."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests.commands import HANGS_AFTER_S

torch = pytest.importorskip("torch", reason="torch is not installed")

from pagesim.kernels import doctor  # noqa: E402
from pagesim.kernels.doctor import EXTRAS, PEERS, REQUIRED, State, examine  # noqa: E402

BLOCKED = """
import sys
for name in sys.argv[1].split():
    sys.modules[name] = None
from pagesim.cli.main import app
sys.argv = ["pagesim", "doctor"]
app()
"""


@pytest.fixture
def without(environment):
    """Return a function that runs the doctor where some packages are missing."""

    def run(*names: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", BLOCKED, " ".join(names)]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=HANGS_AFTER_S, check=False
        )

    return run


def findings() -> dict[str, doctor.Finding]:
    return {finding.name: finding for finding in examine()}


def test_everything_has_a_line(succeeds):
    shown = succeeds("doctor").out
    optional = ("torch", "triton", "CUDA driver", "CUDA GPU", *PEERS, *EXTRAS)
    for name in ("python", "pagesim", *REQUIRED, *optional):
        assert sum(line[2:].startswith(f"{name} ") for line in shown.splitlines()) == 1, name
    assert f"✓ torch                  {torch.__version__}" in shown


def test_without_torch_and_triton_it_says_how_to_get_them(without):
    done = without("torch", "triton", "ray")
    assert done.returncode == 0, done.stderr
    said = {line[:24].strip(): line[25:] for line in done.stdout.splitlines()}
    assert (
        said["– torch"] == "kernels, bench and calibration need it: pip install '.[kernels]' in the checkout"
    )
    assert said["– triton"] == "the kernels need it on a GPU: pip install '.[kernels]' in the checkout"
    assert said["– ray"] == "pip install '.[ray]' in the checkout (runs sweeps on many machines)"


def test_without_something_required_it_says_so_and_fails(without):
    done = without("simpy", "torch", "triton")
    assert done.returncode == 1
    assert "✗ simpy                  not installed: pip install simpy" in done.stdout


# The command line's own libraries, and what the kernels import, among them.
@pytest.mark.slow_but("pydantic")
@pytest.mark.parametrize("name", REQUIRED)
def test_whatever_required_thing_is_missing_every_line_is_there(name, without):
    done = without(name, "torch", "triton")
    assert done.returncode == 1, done.stderr
    assert not done.stderr
    said = {line[:24].strip(): line[25:] for line in done.stdout.splitlines()}
    package = {"re2": "google-re2"}.get(name, name)  # as in pyproject.toml
    assert said[f"✗ {name}"] == f"not installed: pip install {package}"
    assert {line[2:] for line in said} >= {"python", "pagesim", *REQUIRED, *PEERS, *EXTRAS}


def test_without_numpy_a_torch_that_is_there_is_still_told(without):
    done = without("numpy")
    assert "– CUDA GPU               it is looked for once numpy is installed" in done.stdout


def test_any_other_command_names_the_library_that_is_missing(environment):
    program = BLOCKED.replace('"doctor"', '"list", "models"')
    command = [sys.executable, "-c", program, "pydantic"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=HANGS_AFTER_S, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("pagesim: pydantic is not installed and this command needs it: pip install")
    assert done.stderr.count("\n") == 1


def test_a_gpu_is_described(monkeypatch):
    facts = SimpleNamespace(
        name="NVIDIA H200",
        major=9,
        minor=0,
        multi_processor_count=132,
        total_memory=140 << 30,
        L2_cache_size=60 << 20,
    )
    driver = SimpleNamespace(version=lambda: "13.0", has_batched=True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: facts)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr("pagesim.kernels.swap.driver.driver", lambda: driver)
    monkeypatch.setattr("pagesim.kernels.swap.copies.driver", lambda: driver)
    monkeypatch.setattr(doctor, "nvidia_smi", lambda: {"driver": "580.159.03"})
    found = findings()
    assert found["CUDA GPU"].detail == "NVIDIA H200, sm_90, 132 SMs, 140 GiB, 60 MiB of L2"
    assert found["CUDA driver"].detail == "580.159.03, up to CUDA 13.0"
    assert found["batched copies"] == doctor.Finding("batched copies", State.FINE, "cuMemcpyBatchAsync")
    driver.has_batched = False
    assert "a driver of CUDA 12.8 or later, this one is of 13.0" in findings()["batched copies"].detail


def test_a_torch_without_a_gpu_says_which_of_two_reasons_it_is(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "CUDA build" in findings()["CUDA GPU"].detail
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert "torch sees none" in findings()["CUDA GPU"].detail


def test_a_library_that_cannot_be_loaded_is_broken(monkeypatch):
    load = doctor.import_module

    def breaks(name: str) -> object:
        if name in ("numpy", "torch"):
            raise OSError("libfoo.so: cannot open shared object file\nmore")
        return load(name)

    monkeypatch.setattr(doctor, "import_module", breaks)
    found = findings()
    for name in ("numpy", "torch"):
        assert found[name].state is State.BROKEN
        assert found[name].detail == "cannot be imported: libfoo.so: cannot open shared object file"
    assert found["numpy"].required
    assert not found["torch"].required
