"""The modules that `make mutants` changes are there."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "settings", sorted((ROOT / "tests/mutation").glob("*.toml")), ids=lambda each: each.stem
)
def test_every_module_that_mutants_are_made_of_is_there(settings: Path) -> None:
    modules = tomllib.loads(settings.read_text("utf-8"))["cosmic-ray"]["module-path"]
    assert modules
    assert [module for module in modules if not (ROOT / module).exists()] == []
