"""Keys: hashes of everything that a trace, or a run's result, depends on."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from functools import cache, lru_cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import pagesim
import pagesim.workloads
from pagesim.models import model
from pagesim.setup.scenario import Scenario
from pagesim.setup.scenario_files import plugin_sources
from pagesim.setup.system import System

TRACE_OPTIONS = tuple(
    name
    for name in Scenario.model_fields
    if name == "seed" or (name not in System.model_fields and name != "steps")
)
"""The options that determine a trace."""

_PIPED = uuid4().hex
"""Stands for a pipe's content, which no other process can read again."""

OUTSIDE = (
    "cli/",
    "kernels/",
    "device/live/",
    "experiments/sweeps/",
    *(f"experiments/paper/{name}.py" for name in ("drawing", "document", "numbers", "reproduce")),
    "results/plots.py",
    "results/report/",
)
"""Parts of pagesim that do not affect a run's results."""


@cache
def simulator() -> str:
    """Return pagesim's version with a hash of its source code.

    In a checkout, the source changes while the version does not, and results from before an edit must not be
    mistaken for new ones.
    """
    root, workloads = Path(pagesim.__file__).parent, Path(pagesim.workloads.__file__).parent
    files = {f"workloads/{file.relative_to(workloads)}": file for file in workloads.rglob("*")}
    files |= {str(file.relative_to(root)): file for file in root.rglob("*")}
    digest = hashlib.sha256()
    for name, file in sorted(files.items()):
        if file.suffix in (".py", ".json") and not name.startswith(OUTSIDE):
            digest.update(name.encode() + b"\0" + file.read_bytes() + b"\0")
    return f"{pagesim.__version__}+{digest.hexdigest()[:12]}"


def recipe_key(scenario: Scenario) -> str:
    """Return the key of a scenario's trace, from its options and the content of its files."""
    options = {name: getattr(scenario, name) for name in TRACE_OPTIONS}
    contents = [_content(Path(value)) for value in (scenario.trace, scenario.tokenizer) if value]
    return _hash({"options": options, "contents": contents, "pagesim": simulator()})


def run_key(scenario: Scenario, recipe: str) -> str:
    """Return the key of a run.

    Args:
        scenario: the run's scenario.
        recipe: key of its trace, from `recipe_key`.
    """
    options = scenario.model_dump(exclude={"steps"})
    # A model and a profile may be files, whose content may change.
    kind, _, rest = scenario.cost.partition(":")
    profile = _content(Path(rest.partition(",")[0])) if kind == "profile" else None
    spec = asdict(model(scenario.model))
    content = {"model": spec, "profile": profile, "trace": recipe, "plugins": plugin_sources(scenario)}
    return _hash({"options": options, **content, "pagesim": simulator()})


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


def _content(path: Path) -> str | None:
    try:
        if path.is_fifo():
            return _PIPED
        if not path.is_file():
            return None
        stat = path.stat()
        return _file_digest(path, stat.st_mtime_ns, stat.st_size)
    except OSError:  # such as one too long for a path; making the trace reports it
        return None


@lru_cache(maxsize=1024)
def _file_digest(path: Path, changed_ns: int, size: int) -> str:
    """Return a file's hash; the last two arguments are only cache keys, for files that change."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
