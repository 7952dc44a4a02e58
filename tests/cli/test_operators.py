"""Operator tables on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagesim.costs.profiles import load_profile
from tests.commands import Cli
from tests.costs.operators.conftest import write_store


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    return write_store(tmp_path / "tables", "h100_sxm")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tables").mkdir()
    monkeypatch.chdir(tmp_path)


def test_a_profile_is_imported_and_used(tables: Path, cli: Cli):
    options = ("--system", "h100_sxm", "--model", "llama-3.1-8b", "--tp", "2", "--tables", tables)
    done = cli("profile", "import", "aiconfigurator", *options)
    assert done.code == 0, done.err
    assert "vllm_graph, vllm 1.2.0" in done.out or "vllm 1.2.0" in done.out
    assert load_profile(Path("llama-3.1-8b-h100-tp2.json")).tp == 2
    run = (
        "run",
        "--trace",
        "sharegpt",
        "--rate",
        "2",
        "--duration",
        "5",
        "--policy",
        "vllm-v1",
        "--gpu",
        "h100",
    )
    model = ("--model", "llama-3.1-8b", "--tensor-parallel-size", "2")
    done = cli(*run, *model, "--cost", "profile:llama-3.1-8b-h100-tp2.json", "--json")
    assert done.code == 0, done.err
    done = cli("profile", "import", "aiconfigurator", "mine.json", *options, "--kv-dtype", "fp8")
    assert done.code == 0, done.err
    assert "a cache in fp8 was not timed on h100" in done.err
    assert load_profile(Path("mine.json")).kv_dtype == "fp8"


def test_what_is_not_there_is_a_sentence(tables: Path, cli: Cli):
    done = cli(
        "profile", "import", "aiconfigurator", "--system", "h9", "--model", "opt-13b", "--tables", tables
    )
    assert (done.code, done.err) == (2, "pagesim: system is 'h9'; it must be one of h100_sxm\n")
    wrong = ("--system", "h100_sxm", "--model", "qwen3-30b-a3b", "--tp", "4", "--expert-parallel-size", "3")
    done = cli("profile", "import", "aiconfigurator", *wrong, "--tables", tables)
    assert done.code == 2
    assert "expert_parallel_size is 3; it must divide the 4 GPUs" in done.err


def test_a_file_of_vidurs_that_is_not_there_is_a_sentence(cli: Cli):
    files = ("--linear", "gone.csv", "--attention", "gone.csv", "--model", "llama-2-7b", "--gpu", "a100-80gb")
    for arguments in (("out.json", *files), (*files, "out.json")):
        done = cli("profile", "import", "vidur", *arguments)
        assert (done.code, done.err) == (2, "pagesim: gone.csv: cannot be read (No such file or directory)\n")
