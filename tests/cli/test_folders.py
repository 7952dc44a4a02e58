"""Where a result is stored: it appears whole or not at all, and takes only a result's place."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from pagesim.cli.main import app
from pagesim.errors import PagesimError
from pagesim.setup import files
from pagesim.setup.files import publish, put_text

SMALL = ("--trace", "fixed:100,20", "--num-requests", "5")


def everything(folder: Path) -> dict[str, bytes | None]:
    """Return all that lies below a folder, hidden files too."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def names(folder: Path) -> list[str]:
    """Return the names of what lies in a folder, hidden files too."""
    return sorted(path.name for path in folder.iterdir())


def test_an_older_result_is_replaced_and_nothing_of_it_stays(succeeds, tmp_path):
    out = tmp_path / "out"
    succeeds("run", *SMALL, "--policy", "static", "--out", out)
    assert (out / "batches.parquet").exists()
    succeeds("run", *SMALL, "--out", out)
    assert not (out / "batches.parquet").exists()
    assert names(tmp_path) == ["out"]


COMMANDS = {
    "run": ("run", *SMALL),
    "compare": ("run", *SMALL, "--policies", "orca-max,vllm-sosp"),
    "cluster": ("run", *SMALL, "--replicas", "2"),
    "sweep": ("sweep", *SMALL, "--grid", "num_blocks=300", "--jobs", "1"),
}

HELD = {
    "run": "holds a run",
    "compare": "holds a comparison",
    "cluster": "holds a cluster",
    "sweep": "holds no",
}


@pytest.mark.slow_but("run-compare", "compare-run", "cluster-run", "sweep-run", "run-sweep")
@pytest.mark.parametrize("after", COMMANDS)
@pytest.mark.parametrize("before", COMMANDS)
def test_a_result_takes_the_place_of_its_own_kind_alone(before, after, succeeds, refused, tmp_path):
    out = tmp_path / "out"
    succeeds(*COMMANDS[before], "--out", out)
    held = everything(tmp_path)
    if before == after:
        succeeds(*COMMANDS[after], "--out", out)
        assert names(out) == sorted({Path(name).parts[1] for name in held if len(Path(name).parts) > 1})
        return
    assert (HELD[before] if after != "sweep" else "holds no sweep") in refused(*COMMANDS[after], "--out", out)
    assert everything(tmp_path) == held


USERS = {
    "a file": lambda out: (out / "mine.txt").write_text("mine"),
    "a hidden file": lambda out: (out / ".mine").write_text("mine"),
    "an empty folder": lambda out: (out / "mine").mkdir(),
    "a file in a folder": lambda out: (
        (out / "mine").mkdir(),
        (out / "mine" / "summary.json").write_text("{}"),
    ),
    "a link": lambda out: (out / "mine").symlink_to(out.parent / "elsewhere"),
    "a link to a folder": lambda out: (out / "mine").symlink_to(out.parent),
    "a link to itself": lambda out: (out / "mine").symlink_to("mine"),
    "a FIFO": lambda out: os.mkfifo(out / "mine"),
}
"""What a user may have put into a result's folder; `mine` is in its name."""


@pytest.mark.parametrize("what", USERS)
@pytest.mark.parametrize("command", ["run", "compare"])
def test_what_a_user_put_beside_a_result_is_named_and_stays(
    command, what, succeeds, refused, tmp_path, results
):
    out = tmp_path / "out"
    shutil.copytree(results[command], out)
    USERS[what](out)
    before = everything(tmp_path)
    sentence = refused(*COMMANDS[command], "--out", out)
    assert re.match(rf"{out}/\.?mine\S*: was not written by pagesim", sentence)
    assert everything(tmp_path) == before
    for mine in [path for path in out.iterdir() if "mine" in path.name]:  # the advice: move it away
        mine.rename(tmp_path / mine.name)
    succeeds(*COMMANDS[command], "--out", out)


@pytest.mark.parametrize("file", ["scenario.toml", "summary.json", "memory.svg", "orca-max/requests.parquet"])
def test_a_file_of_a_result_that_a_user_changed_is_named_and_stays(file, refused, tmp_path, results):
    out = tmp_path / "out"
    shutil.copytree(results["compare"], out)
    with (out / file).open("ab") as changed:
        changed.write(b"\n# a note\n")
    before = everything(tmp_path)
    sentence = refused(*COMMANDS["compare"], "--out", out)
    assert sentence.startswith(f"{out}/{file}: was changed since pagesim wrote it")
    assert everything(tmp_path) == before


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict[str, Path]:
    """Return a folder with a run and one with a comparison."""
    found = {}
    for command in ("run", "compare"):
        found[command] = tmp_path_factory.mktemp("results") / command
        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(SystemExit):
            patch.setattr(sys, "argv", ["pagesim", *COMMANDS[command], "--out", str(found[command])])
            app()
    return found


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_what_is_written_has_the_modes_that_the_umask_says(umask, succeeds, tmp_path):
    before = os.umask(umask)
    try:
        succeeds("run", *SMALL, "--out", tmp_path / "out")
        succeeds("trace", "make", "fixed:10,10", tmp_path / "t.csv", "--num-requests", "2")
        succeeds("profile", "rescale", "llama-2-7b-a100-tp1", tmp_path / "p.json", "--model", "opt-13b")
    finally:
        os.umask(before)
    for path in tmp_path.rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o777 if path.is_dir() else 0o666) & ~umask, path


def test_a_draft_is_new_follows_no_link_and_is_on_the_disk_before_it_is_renamed(tmp_path, monkeypatch):
    (tmp_path / "precious").write_text("mine")
    calls = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(files.secrets, "token_hex", lambda _: "foreseen")
    monkeypatch.setattr(files.os, "fsync", lambda opened: (calls.append("fsync"), fsync(opened)))
    monkeypatch.setattr(Path, "replace", lambda a, b: (calls.append("replace"), replace(a, b)))
    (tmp_path / ".pagesim.foreseen").symlink_to(tmp_path / "precious")
    with pytest.raises(PagesimError, match=r"out: cannot be written \(File exists\)"):
        put_text(tmp_path / "out", "text")
    assert (tmp_path / "precious").read_text() == "mine"
    assert calls == []
    (tmp_path / ".pagesim.foreseen").unlink(missing_ok=True)
    put_text(tmp_path / "out", "text")
    assert calls[:2] == ["fsync", "replace"]
    assert names(tmp_path) == ["out", "precious"]


def test_no_two_drafts_have_one_name():
    assert len({files._draft(Path("x/out")).name for _ in range(100)}) == 100


def test_through_a_link_the_file_behind_it_is_written(tmp_path):
    (tmp_path / "link").symlink_to("file")
    put_text(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "text"


@pytest.mark.parametrize("content", ["summary.json", "notes.txt", ".hidden", "folder/file"])
@pytest.mark.parametrize("flags", [(), ("--policies", "orca-max,vllm-sosp")])
def test_a_folder_that_holds_anything_else_is_refused_and_untouched(flags, content, refused, tmp_path):
    out = tmp_path / "out"
    (out / content).parent.mkdir(parents=True)
    (out / content).write_text("mine")
    before = everything(tmp_path)
    assert "is not empty and holds no result" in refused("run", *SMALL, *flags, "--out", out)
    assert everything(tmp_path) == before


def test_an_empty_folder_is_filled(succeeds, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    succeeds("run", *SMALL, "--out", out)
    assert (out / "summary.json").exists()


def test_a_time_line_is_stored_with_the_result_and_needs_a_folder(succeeds, refused, tmp_path):
    succeeds("run", *SMALL, "--out", tmp_path / "without")
    succeeds("run", *SMALL, "--trace-events", "--out", tmp_path / "with")
    assert set(names(tmp_path / "with")) - set(names(tmp_path / "without")) == {"trace-events.json"}
    assert "give --out DIR" in refused("run", *SMALL, "--trace-events")


def test_folders_above_are_made(succeeds, tmp_path):
    succeeds("run", *SMALL, "--out", tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c" / "summary.json").exists()


def test_through_a_link_the_folder_behind_it_is_filled(succeeds, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for _ in range(2):
        succeeds("run", *SMALL, "--out", tmp_path / "link")
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "real" / "summary.json").exists()
        assert names(tmp_path) == ["link", "real"]


@pytest.mark.slow_but("flags0", "flags5")
@pytest.mark.parametrize(
    "flags",
    [
        ("--max-batch", "3"),
        ("--policy", "nosuch"),
        ("--model", "nosuch"),
        ("--trace", "nosuch"),
        ("--cost", "affine:1"),
        ("--cost", "affine:1000,0,0", "--num-requests", "1000", "--max-num-seqs", "1"),
    ],
)
def test_a_run_that_fails_leaves_nothing_behind_and_the_older_result_alone(
    flags, succeeds, refused, tmp_path
):
    succeeds("run", *SMALL, "--out", tmp_path / "old")
    before = everything(tmp_path)
    refused("run", *SMALL, *flags, "--out", tmp_path / "old")
    refused("run", *SMALL, *flags, "--out", tmp_path / "new" / "deep")
    assert everything(tmp_path) == before


def test_a_comparison_with_one_unknown_policy_fails_before_any_work(refused, tmp_path):
    # Ten million requests would take minutes under the first.
    many = ("--trace", "sharegpt", "--rate", "10", "--duration", "1000000")
    assert "nosuch" in refused("run", *many, "--policies", "vllm-sosp,nosuch", "--out", tmp_path / "o")
    assert everything(tmp_path) == {}


def test_an_output_that_cannot_be_written_is_named(refused, tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    below = ("/proc/nosuch/out", "/sys/x", "/proc/version", "/proc/version/x")
    for out in (file, file / "below", tmp_path / ("x" * 300), tmp_path / "dangling", *below):
        sentence = refused("run", *SMALL, "--out", out)
        assert sentence.startswith(f"{out}: ")
        assert re.search("is no folder|cannot be written", sentence)
    assert file.read_text() == "mine"
    assert names(tmp_path) == ["dangling", "file"]


def test_a_full_disk_leaves_the_older_result_and_no_draft(succeeds, tmp_path):
    out = tmp_path / "out"
    succeeds("run", *SMALL, "--out", out)
    before = everything(tmp_path)

    def fails(folder: Path) -> None:
        (folder / "summary.json").write_text("half of it")
        raise OSError(28, "No space left on device")

    with pytest.raises(PagesimError, match=r"cannot be written \(No space left on device\)"):
        publish(out, fails, "run")
    assert everything(tmp_path) == before


def test_a_full_standard_output_is_said_in_one_sentence(in_a_process):
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("needs /dev/full, which this system lacks")
    with full.open("w") as out:
        outcome = in_a_process("run", *SMALL, "--json", stdout=out)
    assert outcome.code == 2
    assert outcome.err.splitlines()[-1] == "pagesim: output: No space left on device"
    assert "Traceback" not in outcome.err


def test_a_reader_that_has_seen_enough_is_no_error(start):
    process = start("list", "models")
    with process:
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode in (0, 1)
