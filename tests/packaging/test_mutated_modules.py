"""The modules that `make mutants` changes are there."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_module_that_mutants_are_made_of_is_there() -> None:
    read = tomllib.loads((ROOT / "tests/mutation/cosmic-ray.toml").read_text("utf-8"))
    modules = read["cosmic-ray"]["module-path"]
    assert [module for module in modules if not (ROOT / module).is_file()] == []
