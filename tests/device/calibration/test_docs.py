"""What docs/how-to/calibration.md, validate.md and usage.md show of them is what happens."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests import commands as command_line  # noqa: E402
from tests.pages import check_programs, commands_in, text_of  # noqa: E402

PAGES = {
    name: [
        words
        for words in commands_in(text_of(f"docs/how-to/{name}.md"))
        if words[0] in ("calibrate", "validate", "ablate") or words[:3] == ["profile", "show", "tiny"]
    ]
    for name in ("calibration", "validate", "usage")
}


@pytest.mark.slow_but("calibration")
@pytest.mark.parametrize("name", ["calibration", "validate"])
def test_its_commands_run_one_after_another(name, tmp_path, monkeypatch, small_grid, succeeds):
    """Those for a GPU are understood up to the device; the others really run, on a small grid."""
    monkeypatch.setattr(command_line, "HANGS_AFTER_S", 600)
    monkeypatch.chdir(tmp_path)
    assert len(PAGES[name]) >= 2
    for words in PAGES[name]:
        if "cuda" not in words and "--recorded" not in words:  # a recorded run is others'
            succeeds(*words, *(("--seconds", "0.002") if words[0] == "calibrate" else ()))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, and they take minutes")
def test_its_commands_for_a_gpu_are_understood(monkeypatch, tmp_path, refused):
    """Up to the device: they name options that there are, and files that the one before writes."""
    monkeypatch.chdir(tmp_path)
    asked = [words for page in PAGES.values() for words in page if "cuda" in words]
    assert len(asked) >= 5
    for words in asked:
        assert refused(*words).startswith("device is 'cuda', but torch "), words


@pytest.mark.slow
def test_its_program_prints_what_is_shown(small_grid):
    assert check_programs(text_of("docs/how-to/calibration.md"), "calibration.md") == 1
