"""A disk that is full or read-only ends every command that writes in one sentence."""

from __future__ import annotations

import contextlib
import json
import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import joblib  # it looks for semaphores once, when it is imported, and under a limit finds none
import pytest

from pagesim.costs.profiles import Sample, analytic_profile
from pagesim.hardware import gpu
from pagesim.models import model

SMALL = ("--trace", "fixed:100,20", "--num-requests", "5")
TINY = ("--model", "tiny", "--num-blocks", "60", "--device", "cpu")

WRITERS = {
    "run": ("run", *SMALL, "--trace-events", "--out", "{}"),
    "compare": ("run", *SMALL, "--policies", "orca-max,vllm-sosp", "--out", "{}"),
    "cluster": ("run", *SMALL, "--replicas", "2", "--out", "{}"),
    "sweep": ("sweep", *SMALL, "--grid", "num_blocks=300,400", "--jobs", "1", "--out", "{}"),
    "capacity": (
        *("sweep", "--find", "rate", "--slo", "p99_ttft<=2s", "--policies", "orca-max"),
        *("--jobs", "1", "--highest", "1"),
        *("--trace", "fixed:100,20", "--num-requests", "20", "--out", "{}"),
    ),
    "ablate": (
        *("ablate", "preemption", "--profile", "analytic-a100-40gb", "--trace", "sharegpt", "--rate", "2"),
        *("--duration", "5", "--num-blocks", "500", "--out", "{}"),
    ),
    "reproduce": ("reproduce", "fig11", "--quick", "--jobs", "1", "--out", "{}"),
    "trace describe": ("trace", "describe", "fixed:100,20", "--num-requests", "50", "--out", "{}"),
    "trace make": ("trace", "make", "sharegpt", "{}.csv", "--num-requests", "2000", "--rate", "1"),
    "trace convert": ("trace", "convert", "{input}", "{}.parquet"),
    "trace fit": ("trace", "fit", "{input}", "{}.json"),
    "profile show": ("profile", "show", "{profile}", "--out", "{}"),
    "profile rescale": ("profile", "rescale", "llama-2-7b-a100-tp1", "{}.json", "--model", "opt-13b"),
    "bench copy": ("bench", "copy", "--device", "cpu", "--quick", "--seconds", "0.001", "--out", "{}"),
    "live": ("run", "--device", "auto", *TINY, "--trace", "fixed:30,4", "--num-requests", "2", "--out", "{}"),
    "validate": ("validate", "--live", *TINY, "--profile", "{profile}", "--trace", "fixed:30,4",
                 "--num-requests", "2", "--policies", "vllm-sosp", "--out", "{}"),
}  # fmt: skip
"""Commands that write, and where their path goes."""

NEED_TORCH = ("bench copy", "live", "validate")


@pytest.fixture
def arguments(tmp_path) -> Callable[[str, Path], list[str]]:
    """Return a function that gives a command's arguments."""

    def fill(name: str, out: Path) -> list[str]:
        if name in NEED_TORCH:
            pytest.importorskip("torch", reason="torch is not installed")
        source = tmp_path / "input.csv"
        rows = "".join(f"{n},{n + 5},{n % 90 + 1}\n" for n in range(3000))
        source.write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
        profile = tmp_path / "tiny.json"
        samples = tuple(Sample("linear", 0, size, 0, 1e-3 * size) for size in (1, 8, 64))
        analytic = analytic_profile(gpu("a100-40gb"), model("tiny"))
        analytic.model_copy(update={"samples": samples}).save(profile)
        names = {"{}": str(out), "{input}": str(source), "{profile}": str(profile)}
        filled = []
        for argument in WRITERS[name]:
            for name_in_braces, value in names.items():
                argument = argument.replace(name_in_braces, value)
            filled.append(argument)
        return filled

    return fill


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Let every write beyond so many bytes of a file fail, as on a disk that is full there."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def check_sentence(outcome, out: Path) -> None:
    assert outcome.code == 2, outcome
    said = [line for line in outcome.err.splitlines() if line.startswith("pagesim: ")]
    assert len(said) == 1, outcome.err
    assert "Traceback" not in outcome.err
    assert str(out.parent) in said[0], "it names what cannot be written"
    assert "cannot be" in said[0] or "is no folder" in said[0] or "not a folder" in said[0]


@pytest.mark.slow_but("run-0", "sweep-1500", "bench copy-0", "trace convert-1500", "live-0")
@pytest.mark.parametrize("size", [0, 1500])
@pytest.mark.parametrize("name", WRITERS)
def test_a_disk_that_is_full_after_some_bytes_is_a_sentence(name, size, arguments, cli, tmp_path):
    out = tmp_path / "folder" / "out"
    out.parent.mkdir()
    asked = arguments(name, out)
    with files_of_at_most(size):
        outcome = cli(*asked)
    check_sentence(outcome, out)
    for file in out.parent.rglob("*"):
        # What is there is whole: a store of runs that are over, say, and never the beginning of a file.
        assert file.is_dir() or not file.name.startswith("."), file
        if file.suffix == ".json":
            json.loads(file.read_text())


@pytest.mark.parametrize("name", WRITERS)
def test_a_place_below_a_file_is_a_sentence(name, arguments, cli, tmp_path):
    (tmp_path / "file").write_text("mine")
    out = tmp_path / "file" / "out"
    outcome = cli(*arguments(name, out))
    check_sentence(outcome, out)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.fixture
def mounted(tmp_path) -> Iterator[Callable[[str], Path]]:
    """Return a function that mounts a small file system of its own."""
    places: list[Path] = []

    def mount(options: str) -> Path:
        place = tmp_path / "mounted"
        place.mkdir(exist_ok=True)
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], capture_output=True, check=False
        )
        if done.returncode:
            pytest.skip("needs leave to mount a tmpfs, which only root has")
        places.append(place)
        return place

    yield mount
    for place in places:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.slow_but("size=4k-run", "size=64k,ro-profile rescale", "size=1m,nr_inodes=1-bench copy")
@pytest.mark.parametrize("name", ["run", "sweep", "trace make", "profile rescale", "reproduce", "bench copy"])
@pytest.mark.parametrize("options", ["size=4k", "size=64k,ro", "size=1m,nr_inodes=1"])
def test_a_real_file_system_that_is_full_or_read_only_is_a_sentence(
    name, options, arguments, cli, tmp_path, mounted
):
    asked = arguments(name, mounted(options) / "out")
    check_sentence(cli(*asked), tmp_path / "mounted" / "out")


def test_a_machine_without_semaphores_is_a_sentence(cli, monkeypatch, tmp_path):
    def no_processes(*_: object, **__: object) -> None:
        raise AssertionError("ThreadingBackend does not accept setting the inner_max_num_threads argument.")

    monkeypatch.setattr(joblib, "parallel_config", no_processes)
    outcome = cli("sweep", *SMALL, "--grid", "num_blocks=300,400", "--out", tmp_path / "out")
    assert outcome.code == 2
    assert outcome.err.startswith("pagesim: no worker process can be started")
