"""Where a result is stored: it appears whole or not at all, and takes only a result's place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pagesim.errors import PagesimError
from pagesim.setup.files import publish

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


@pytest.mark.slow_but("run")
@pytest.mark.parametrize("command", ["run", "compare"])
def test_an_older_result_is_replaced_and_nothing_of_it_stays(command, succeeds, tmp_path):
    out = tmp_path / "out"
    succeeds("run", *SMALL, "--policy", "static", "--out", out)
    assert (out / "batches.parquet").exists()
    (out / "mine.txt").write_text("left in a result")
    succeeds(command, *SMALL, "--out", out)
    assert not (out / "batches.parquet").exists()
    assert not (out / "mine.txt").exists()
    assert (out / "orca-max").exists() == (command == "compare")
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("content", ["summary.json", "notes.txt", ".hidden", "folder/file"])
@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_folder_that_holds_anything_else_is_refused_and_untouched(command, content, refused, tmp_path):
    out = tmp_path / "out"
    (out / content).parent.mkdir(parents=True)
    (out / content).write_text("mine")
    before = everything(tmp_path)
    assert "is not empty and holds no result" in refused(command, *SMALL, "--out", out)
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
    assert "nosuch" in refused("compare", *many, "--policies", "vllm-sosp,nosuch", "--out", tmp_path / "o")
    assert everything(tmp_path) == {}


def test_an_output_that_cannot_be_written_is_named(refused, tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for out in (file, file / "below", "/proc/nosuch/out", tmp_path / ("x" * 300), tmp_path / "dangling"):
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
        publish(out, fails)
    assert everything(tmp_path) == before


def test_a_stored_result_may_be_read_by_others(succeeds, tmp_path):
    succeeds("run", *SMALL, "--out", tmp_path / "out")
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o755


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
