"""A folder's settings, an environment, a name or too little memory ends no command in a traceback."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import HANGS_AFTER_S

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
        env={name: value for name, value in {**os.environ, **environment}.items() if value is not None},
        capture_output=True,
        timeout=HANGS_AFTER_S,
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


SETTINGS = [
    [{"COLUMNS": columns} for columns in ("0", "-5", "x", "1", "9" * 30, "100000", "٣")],
    [{"TERM": "nonsense"}, {"TERM": None}, {"TERM": "dumb", "LINES": "0"}, {"TTY_INTERACTIVE": "1"}],
    [{"FORCE_COLOR": "1"}, {"NO_COLOR": "1"}, {"TTY_COMPATIBLE": "1"}, {"JUPYTER_COLUMNS": "x"}],
    [{"PYTHONUTF8": "1"}, {"PYTHONDEVMODE": "1"}, {"PYTHONOPTIMIZE": "2"}, {"PYTHONINTMAXSTRDIGITS": "640"}],
    [
        *({"LC_ALL": name} for name in ("C", "xx_YY.zzz", "tr_TR.UTF-8")),
        {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
        {"LANG": "de_DE.ISO-8859-1", "LC_ALL": None},
        {"LANG": None, "LC_ALL": None},
    ],
    [{"TZ": "nonsense/zone"}, {"TZ": "UTC+99:99"}],
    [{"HOME": folder} for folder in (None, "/nowhere", "/dev/null", "")],
    [
        {"TMPDIR": "/proc"},
        {"TMPDIR": "/nowhere"},
        {"XDG_CACHE_HOME": "/proc"},
        {"JOBLIB_TEMP_FOLDER": "/proc"},
    ],
    [{"MPLCONFIGDIR": folder} for folder in ("/proc/1/x", "/dev/null", "")],
    [{"MATPLOTLIBRC": "/nowhere"}, {"DISPLAY": "nonsense:99"}, {"PATH": ""}, {"RAY_ADDRESS": "nonsense"}],
    [{"PYTHONWARNINGS": "nonsense"}, {"PYTHONHASHSEED": "5"}, {"PYTHONWARNINGS": "error"}],
    [{"OMP_NUM_THREADS": number} for number in ("0", "x")],
    [{"LOKY_MAX_CPU_COUNT": number} for number in ("x", "-1")],
    [{"ARROW_NUM_THREADS": "x"}, {"ARROW_IO_THREADS": "-1"}, {"USER": None, "LOGNAME": None}],
]
"""What a variable may be; variables of different lines have nothing to do with each other."""

SAID = {
    ("list", "models"): 0,
    ("run", "--policies", "orca-max,vllm-sosp", "--trace", "t.csv", "--out", "out"): 0,
    ("plan", "--model", "nö–×"): 2,
}
"""Commands, and their exit codes."""


@pytest.mark.slow_but("2")
@pytest.mark.parametrize("which", range(7))
def test_a_setting_of_the_terminal_or_of_the_machine_ends_no_command(which, tmp_path):
    settings: dict[str, str | None] = {}
    for values in SETTINGS:
        settings |= values[which] if which < len(values) else {}
    (tmp_path / "t.csv").write_bytes(TRACE)
    for argv, expected in SAID.items():
        code, _, err = started(*argv, cwd=tmp_path, **settings)
        assert code == expected, err
        assert err or not code
        assert "Traceback" not in err


@pytest.mark.parametrize("name", ["sharegpt", "opt-13b", "a100-40gb", "config.json"])
def test_a_file_that_is_called_as_what_there_is_is_not_taken_for_it(name, succeeds, tmp_path, monkeypatch):
    (tmp_path / name).write_text("raise SystemExit(99)")
    monkeypatch.chdir(tmp_path)
    succeeds("run", "--trace", "sharegpt", "--num-requests", "2", "--model", "opt-13b", "--gpu", "a100-40gb")


@pytest.mark.slow_but("-w")
@pytest.mark.parametrize("name", ["a\nb", "x" * 200, "w\x1b[31m", " ", "-w", "%s", "w'\"", "~"])
def test_a_result_is_stored_in_a_folder_of_any_name(name, tmp_path):
    (tmp_path / name).mkdir()
    (tmp_path / name / "t.csv").write_bytes(TRACE)
    code, _, err = started("run", "--trace", "t.csv", "--out", "out", cwd=tmp_path / name)
    assert code == 0, err
    assert (tmp_path / name / "out" / "summary.json").exists()


@pytest.mark.parametrize(
    ("number", "code", "said"), [(1, 2, b"pagesim: output: Bad file descriptor\n"), (2, 0, b"")]
)
def test_a_stream_that_is_closed_ends_no_command_in_a_traceback(number, code, said, tmp_path):
    closing = f"import os; os.close({number}); {STARTS}"
    command = [sys.executable, "-c", closing, "list", "gpus"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=HANGS_AFTER_S, check=False)
    assert (done.returncode, done.stderr) == (code, said)


def test_memory_that_is_exhausted_is_a_sentence(tmp_path):
    # A file of zeros that takes no room on the disk. Python asks for the memory of all of it at once and gets
    # none: memory ends there, and never inside a library, which may wait for ever for what it lacks.
    with (tmp_path / "t.csv").open("wb") as file:
        file.truncate(64 << 30)
    code, _, err = started("trace", "describe", "t.csv", cwd=tmp_path, limit=16 << 30)
    assert code == 2
    assert err.startswith("pagesim: memory is exhausted: this needs more than")
    assert err.count("\n") == 1
