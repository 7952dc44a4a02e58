"""A command that writes a file replaces only one of its own kind, unless it is told to."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from pagesim.cli.show import write_text
from pagesim.errors import PagesimError
from pagesim.setup.files import put_text

SMALL = ("--trace", "fixed:100,20", "--num-requests", "5", "--num-blocks", "200")
PLAN = ("plan", "--model", "llama-3.1-8b", "--gpu", "h100")

WRITERS = {
    "report": ("report.html", ("report", "{result}", "--instants", "0", "--out", "{}"), True),
    "plan --plot": ("plan.png", (*PLAN, "--plot", "{}"), True),
    "trace convert": ("t.csv", ("trace", "convert", "{trace}", "{}"), True),
    "trace convert to Parquet": ("t.parquet", ("trace", "convert", "{trace}", "{}"), True),
    "trace make": ("t.csv", ("trace", "make", "fixed:10,10", "{}", "--num-requests", "3"), True),
    "trace fit": ("m.json", ("trace", "fit", "{trace}", "{}"), True),
    "trace describe": ("trace.svg", ("trace", "describe", "{trace}", "--out", "{folder}"), False),
    "profile rescale": (
        "p.json",
        ("profile", "rescale", "llama-2-7b-a100-tp1", "{}", "--model", "opt-13b"),
        False,
    ),
}
"""By name: the file, the command, and whether it takes ``--force``."""

OTHERS = {
    "a note": b"mine\n",
    "a page": b"<!doctype html><html><head><title>My thesis</title></head></html>",
    "a table": b"arrival_s,prompt_tokens\n0,1\n",
    "a photograph": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1\x08\6\0\0\0\x1f\x15\xc4\x89IDAT",
    "settings": b'{"schema": 1, "editor": "vi"}',
    "a drawing": b'<svg xmlns="http://www.w3.org/2000/svg"><circle r="1"/></svg>',
    "Parquet": b"PAR1 id, sepal_length PAR1",
}


@pytest.fixture
def fill(tmp_path: Path, succeeds) -> Callable[[str], tuple[list[str], Path]]:
    """Return a function that gives a command and the file that it writes."""
    trace = tmp_path / "in.csv"
    rows = "".join(f"{n},{n + 5},{n % 90 + 1}\n" for n in range(300))
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    folder = tmp_path / "written"
    folder.mkdir()

    def filled(name: str) -> tuple[list[str], Path]:
        file, arguments, _ = WRITERS[name]
        result = tmp_path / "result"
        if "{result}" in arguments and not result.exists():
            succeeds("run", *SMALL, "--out", result)
        values = {"{}": folder / file, "{folder}": folder, "{result}": result, "{trace}": trace}
        return [str(values.get(argument, argument)) for argument in arguments], folder / file

    return filled


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_of_the_same_kind_is_replaced_and_any_other_is_named_and_stays(name, fill, succeeds, refused):
    command, file = fill(name)
    succeeds(*command)
    succeeds(*command)
    written = file.read_bytes()
    for other in OTHERS.values():
        file.write_bytes(other)
        sentence = refused(*command)
        assert sentence.startswith(f"{file}: exists and is no ")
        assert ("--force" in sentence) == WRITERS[name][2]
        assert file.read_bytes() == other
    if WRITERS[name][2]:
        succeeds(*command, "--force")
    else:
        file.rename(file.with_name("moved away"))
        succeeds(*command)
    assert file.read_bytes() == written
    file.write_bytes(b"")  # as mktemp leaves it
    succeeds(*command)


@pytest.mark.parametrize("name", WRITERS)
def test_a_folder_a_fifo_and_a_link_to_nowhere_are_not_replaced(name, fill, refused, tmp_path):
    command, file = fill(name)
    forced = ["--force"] if WRITERS[name][2] else []
    file.mkdir()
    assert "(it is a folder); name a file" in refused(*command, *forced)
    file.rmdir()
    os.mkfifo(file)
    assert "is no regular file" in refused(*command, *forced)
    file.unlink()
    for nowhere in (tmp_path / "nowhere" / "at all", file):
        file.symlink_to(nowhere)
        assert "is no regular file" in refused(*command, *forced)
        file.unlink()


@pytest.mark.parametrize("name", ["report", "trace make"])
def test_what_a_link_points_to_is_looked_at_and_replaced(name, fill, succeeds, refused, tmp_path):
    command, file = fill(name)
    (tmp_path / "precious").write_text("mine")
    file.symlink_to(tmp_path / "precious")
    refused(*command)
    assert (tmp_path / "precious").read_text() == "mine"
    (tmp_path / "precious").unlink()
    file.unlink()
    succeeds(*command)
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    succeeds(*command)
    assert file.is_symlink()


def test_a_table_of_other_columns_is_not_replaced(tmp_path):
    file = tmp_path / "t.csv"
    write_text(file, "a,b\n1,2\n")
    write_text(file, "a,b\n3,4\n")
    with pytest.raises(PagesimError, match="is no table that pagesim wrote"):
        write_text(file, "a,c\n1,2\n")
    assert file.read_text() == "a,b\n3,4\n"


def test_what_a_link_points_to_is_not_replaced_if_it_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name, what in (("pipe", "no regular file"), ("folder", "a folder")):
        link = tmp_path / f"link to {name}"
        link.symlink_to(tmp_path / name)
        with pytest.raises(PagesimError, match=rf"cannot be written \(it is {what}\)"):
            put_text(link, "text")
        assert stat.S_IFMT((tmp_path / name).stat().st_mode) in (stat.S_IFIFO, stat.S_IFDIR)
