"""What the documentation shows is what happens: its programs are run, and so are its commands."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from tests import commands as command_line
from tests.pages import COMMAND, ROOT, text_of, words_of

PAGES = (
    "docs/how-to/clusters.md",
    "docs/how-to/extending.md",
    "docs/reference/metrics.md",
    "docs/explanation/performance.md",
    "docs/reference/profiles.md",
)
WALKS = (
    "README.md",
    "docs/how-to/closed-loops.md",
    "docs/tutorial.md",
    "docs/explanation/ledger.md",
    "docs/explanation/hybrid.md",
    "docs/explanation/fast-forward.md",
    "docs/reference/policies.md",
    "docs/reference/vllm-defaults.md",
    "docs/how-to/serve.md",
    "docs/reference/roofline.md",
    "docs/explanation/tiers.md",
)
"""Pages whose steps are taken one after another in one folder, and whose outputs are compared."""

FENCE = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
STEP = re.compile(rf"{COMMAND.pattern}|{FENCE.pattern}|^```\n(.*?)^```$", re.DOTALL | re.MULTILINE)

NEEDS = {
    "pagesim profile import": "needs tables of operators, which are others'",
}
"""What some commands need that is not here."""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands that pages show take minutes."""
    monkeypatch.setattr(command_line, "HANGS_AFTER_S", 600)


def commands() -> list[tuple[str, str]]:
    found = [(page, command) for page in PAGES for command in COMMAND.findall(text_of(page))]
    assert len(found) > 5
    return found


@pytest.mark.parametrize("page", [page for page in PAGES if FENCE.search(text_of(page))])
def test_its_programs_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    globals_: dict[str, object] = {"__name__": "documentation"}
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        for block in FENCE.findall(text_of(page)):
            exec(compile(block, page, "exec"), globals_)
    assert output.getvalue(), "a program of the documentation prints something"


@pytest.mark.parametrize(("page", "command"), commands())
def test_its_commands_run(page, command, tmp_path, monkeypatch, succeeds) -> None:
    for beginning, reason in NEEDS.items():
        if command.startswith(beginning):
            pytest.skip(f"{beginning} {reason}")
    monkeypatch.chdir(tmp_path)
    assert succeeds(*words_of(command)).out


def lines_of(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("page", WALKS)
def test_its_steps_print_what_it_shows(page, tmp_path, monkeypatch, capsys, succeeds) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    globals_: dict[str, object] = {"__name__": "documentation"}
    printed, steps = None, 0
    for command, program, shown in STEP.findall(text_of(page)):
        if command:
            printed = succeeds(*words_of(command)).out
        elif program:
            exec(compile(program, page, "exec"), globals_)
            printed = capsys.readouterr().out
        else:
            assert printed is not None, "an output stands after what prints it"
            assert lines_of(shown) in lines_of(printed)
        steps += 1
    assert steps > 1


LINK = re.compile(r"\]\(([^)\s:]+)\)")
MOST_BYTES = 100_000
"""Of a picture in docs/pictures."""


def anchors_of(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda page: page.stem
)
def test_its_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(page.read_text("utf-8")):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), f"{link} leads nowhere"
        if anchor:
            assert anchor in anchors_of(target), f"{link} leads to no heading"
        if target.parent.name == "pictures":
            assert target.stat().st_size < MOST_BYTES


@pytest.mark.parametrize("page", ["docs/explanation/tour.md", "docs/explanation/design.md"])
def test_every_file_that_it_names_is_there(page: str) -> None:
    places = (ROOT, ROOT / "pagesim")
    rooms = [folder for place in places for folder in place.rglob("*") if folder.is_dir()]
    named = re.findall(r"`([\w/]+(?:\.(?:py|js|html)|/))`", text_of(page))
    assert len(named) > 40
    for name in named:
        # A file that is named after its neighbour stands without its folder.
        near = places if "/" in name.rstrip("/") else (*places, *rooms)
        assert any((folder / name.removeprefix("pagesim/")).exists() for folder in near), name
