"""A folder's settings, an environment, a name or too little memory ends no command in a traceback."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

TRACE = b"prompt_tokens,output_tokens\n5,6\n7,8\n"
STARTS = "import sys; from pagesim.cli.main import app; sys.argv[0] = 'pagesim'; sys.exit(app())"


def started(*argv, cwd, limit=0, **environment):
    """Run ``pagesim`` in a process and a folder of its own; return its exit code, output and errors."""

    def limited():
        if limit:
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    done = subprocess.run(
        [sys.executable, "-c", STARTS, *argv],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        timeout=60,
        check=False,
        preexec_fn=limited,
    )
    return done.returncode, done.stdout, done.stderr.decode("utf-8", "replace")


@pytest.fixture(scope="module")
def figures(tmp_path_factory) -> dict[str, bytes]:
    """Return the figures of a run where there are no settings."""
    return drawn(tmp_path_factory.mktemp("plain"))


def drawn(folder: Path, **environment: str) -> dict[str, bytes]:
    (folder / "t.csv").write_bytes(TRACE)
    code, _, err = started("run", "--trace", "t.csv", "--out", "out", cwd=folder, **environment)
    assert code == 0, err
    return {file.name: file.read_bytes() for file in (folder / "out").iterdir() if file.stem == "memory"}


@pytest.mark.parametrize(
    "settings",
    [
        b"font.size: 40\nsavefig.bbox: tight\naxes.facecolor: red",
        pytest.param(b"backend: nonsense", marks=pytest.mark.slow),
        b"\xff\xfe",
    ],
)
def test_figures_do_not_depend_on_the_folder_of_the_command(settings, figures, tmp_path):
    (tmp_path / "matplotlibrc").write_bytes(settings)
    assert drawn(tmp_path) == figures


@pytest.mark.parametrize(
    "environment",
    [
        {"MPLBACKEND": "nonsense"},
        pytest.param({"MPLBACKEND": "tkagg"}, marks=pytest.mark.slow),
        pytest.param({"MATPLOTLIBRC": "mine"}, marks=pytest.mark.slow),
    ],
)
def test_figures_do_not_depend_on_the_environment(environment, figures, tmp_path):
    (tmp_path / "mine").write_text("font.size: 40")
    assert drawn(tmp_path, **environment) == figures
    assert set(figures) == {"memory.png", "memory.svg"}


@pytest.mark.parametrize("encoding", ["ascii:strict", "idna", "utf-16"])
def test_an_encoding_of_the_terminal_that_cannot_say_it_ends_no_command(encoding, tmp_path):
    # Each of them is an encoding of Python's, and some are not meant for texts, or lack a dash.
    code, _, err = started("list", "nö–", cwd=tmp_path, PYTHONIOENCODING=encoding)
    assert code == 2
    assert "Traceback" not in err.replace("\0", "")
    code, out, err = started("list", "gpus", cwd=tmp_path, PYTHONIOENCODING=encoding)
    assert code == 0, err
    assert out


@pytest.mark.parametrize(
    "argv",
    [
        ("run", "--trace", b"t\xff.csv"),
        ("run", "--trace", "t.csv", "--out", b"o\xff"),
        pytest.param(("plan", "--gpu", "h100", "--model", b"m\xff"), marks=pytest.mark.slow),
        pytest.param(("trace", "convert", "t.csv", b"o\xff.parquet"), marks=pytest.mark.slow),
        pytest.param(("report", b"o\xff"), marks=pytest.mark.slow),
    ],
)
def test_bytes_in_a_name_that_are_no_text_are_said(argv, tmp_path):
    (tmp_path / "t.csv").write_bytes(TRACE)
    (Path(os.fsdecode(os.fsencode(tmp_path) + b"/t\xff.csv"))).write_bytes(TRACE)
    code, _, err = started(*argv, cwd=tmp_path)
    assert code == 2
    assert "\\udcff" in err
    assert "holds bytes that are no UTF-8, and a result could not name it; rename it" in err
    assert err.count("\n") == 1


def test_a_folder_whose_name_is_no_text_is_said_when_a_result_must_name_it(tmp_path):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/w\xff"))
    folder.mkdir()
    (folder / "t.csv").write_bytes(TRACE)
    code, _, err = started("run", "--trace", "t.csv", "--out", "out", cwd=folder)
    assert code == 2
    assert "w\\udcff" in err
    assert "holds bytes that are no UTF-8" in err
    assert sorted(file.name for file in folder.iterdir()) == ["t.csv"]
    assert started("run", "--trace", "t.csv", cwd=folder)[0] == 0


def test_memory_that_is_exhausted_is_a_sentence(tmp_path):
    rows = b"5,6\n" * 8_000_000
    (tmp_path / "t.csv").write_bytes(b"prompt_tokens,output_tokens\n" + rows)
    code, _, err = started(
        "trace", "describe", "t.csv", cwd=tmp_path, limit=1 << 30, OPENBLAS_NUM_THREADS="1"
    )
    assert code == 2
    assert err.startswith("pagesim: memory is exhausted: this needs more than")
    assert err.count("\n") == 1
