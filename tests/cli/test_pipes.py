"""A trace that comes through a pipe is read once; what never begins, or never ends, is refused."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pagesim.workloads import load, source

TRACE = b"prompt_tokens,output_tokens\n5,6\n7,8\n"


@pytest.fixture
def piped(tmp_path) -> Iterator[Callable[[Callable[[int], object]], Path]]:
    """Return a function that makes a pipe and writes to it, as another process would."""
    threads = []

    def make(write: Callable[[int], object]) -> Path:
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)

        def run() -> None:
            writer = os.open(pipe, os.O_WRONLY)
            try:
                write(writer)
            except BrokenPipeError:
                pass
            finally:
                os.close(writer)

        threads.append(threading.Thread(target=run, daemon=True))
        threads[0].start()
        return pipe

    yield make
    for thread in threads:
        thread.join(10)


@pytest.mark.parametrize(
    "command",
    [
        ("run",),
        ("run", "--policies", "orca-max,vllm-sosp"),
        ("sweep", "--grid", "num_blocks=300,400", "--jobs", "2"),
        ("trace", "describe"),
    ],
    ids=" ".join,
)
def test_a_trace_comes_through_a_pipe(command, piped, succeeds):
    pipe = piped(lambda writer: os.write(writer, TRACE))
    given = (pipe,) if command[0] == "trace" else ("--trace", pipe)
    succeeds(*command, *given)


def test_all_of_it_is_read(piped):
    pipe = piped(lambda writer: [os.write(writer, part.encode()) for part in TRACE.decode()])
    assert load(pipe).prompt_tokens.tolist() == [5, 7]


def test_a_pipe_that_nothing_writes_to_is_refused(refused, tmp_path, monkeypatch):
    monkeypatch.setattr(source, "WRITER_WITHIN_S", 0.2)
    os.mkfifo(tmp_path / "pipe")
    for command in (("run", "--trace"), ("trace", "describe"), ("trace", "convert")):
        more = (tmp_path / "out.csv",) if command[-1] == "convert" else ()
        assert "nothing has begun to write to it" in refused(*command, tmp_path / "pipe", *more)


def test_a_pipe_without_an_end_is_refused(piped, refused, monkeypatch):
    monkeypatch.setattr(source, "MOST_PIPED", 5 << 20)

    def endless(writer: int) -> None:
        while True:
            os.write(writer, b"5,6\n" * 10_000)

    assert "more than 5 MiB came" in refused("trace", "describe", piped(endless))


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null", "/dev/full", "/dev/urandom"])
def test_a_device_is_refused(device, refused, tmp_path):
    for command in (("run", "--trace"), ("trace", "describe"), ("trace", "convert")):
        more = (tmp_path / "out.csv",) if command[-1] == "convert" else ()
        assert "is not a regular file" in refused(*command, device, *more)


@pytest.mark.parametrize("target", ["link", "nowhere", "/proc/self/mem", "/proc/self/maps", "/dev/tty"])
def test_a_link_to_what_is_no_trace_is_refused(target, refused, tmp_path):
    (tmp_path / "link").symlink_to(target)
    assert refused("trace", "describe", tmp_path / "link").startswith(f"{tmp_path / 'link'}: ")


def test_runs_over_two_pipes_are_not_taken_for_one(tmp_path, in_a_process):
    # Their paths are the same, and what came through them is not.
    for tokens in (5, 50):
        os.mkfifo(tmp_path / "pipe")
        text = f"prompt_tokens,output_tokens\n{tokens},6\n".encode()
        threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(text,), daemon=True).start()
        argv = ("sweep", "--trace", tmp_path / "pipe", "--grid", "num_blocks=300", "--jobs", "1")
        outcome = in_a_process(*argv, "--out", tmp_path / "out")
        assert outcome.code == 0, outcome.err
        (tmp_path / "pipe").unlink()
    stored = [json.loads(file.read_bytes()) for file in (tmp_path / "out" / "runs").iterdir()]
    assert len(stored) == 2


def test_a_link_to_what_is_no_file_is_not_written_through(succeeds, refused, tmp_path):
    # As root a device would be gone, in the place of which a table was put.
    load = ("--trace", "fixed:20,5", "--num-requests", "3", "--grid", "num_blocks=300", "--jobs", "1")
    sweep = ("sweep", *load, "--out", tmp_path / "out")
    succeeds(*sweep)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "out" / "means.parquet").unlink()
    (tmp_path / "out" / "means.parquet").symlink_to(tmp_path / "pipe")
    assert "it is no regular file" in refused(*sweep)
    assert (tmp_path / "pipe").is_fifo()
