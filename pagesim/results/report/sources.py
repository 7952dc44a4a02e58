"""Sources: the results that a page is made of, found in folders and named so that they can be told apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pagesim.errors import PagesimError, reason
from pagesim.results.result import Result, load
from pagesim.setup.files import read_manifest
from pagesim.setup.reading import parse_json, read_text

MOST_SYSTEMS = 12
"""More than these are not compared on one page."""


@dataclass(frozen=True)
class Source:
    """A result and what it is called on the page."""

    name: str
    result: Result


def is_cluster(folder: Path) -> bool:
    """Say whether a folder holds what ``pagesim run --replicas`` stored.

    Raises:
        PagesimError: its manifest is damaged.
    """
    sealed = read_manifest(folder)
    return (folder / "replicas.parquet").exists() if sealed is None else sealed[0] == "cluster"


def find(folders: Sequence[Path]) -> list[Source]:
    """Return the results in these folders; a comparison's are those of its policies.

    Each is called by its policy, and, where several have the same, by its folder, too.

    Raises:
        PagesimError: a folder holds no result of ``pagesim run``, or there are too many of them.
    """
    found: list[tuple[Path, Result]] = []
    for folder in folders:
        found += [(each, load(each)) for each in _parts(folder)]
    if len(found) > MOST_SYSTEMS:
        raise PagesimError(f"{len(found)} results are too many for one page; give at most {MOST_SYSTEMS}")
    policies = [result.scenario.policy for _, result in found]
    names: list[str] = []
    for (folder, _), policy in zip(found, policies, strict=True):
        name = policy
        if policies.count(policy) > 1:
            inside = folder.name == policy
            name = f"{policy} ({(folder.resolve().parent if inside else folder.resolve()).name})"
        while name in names:
            name += "′"
        names.append(name)
    return [Source(name, result) for name, (_, result) in zip(names, found, strict=True)]


def _parts(folder: Path) -> list[Path]:
    try:
        runs = parse_json(read_text(folder / "summary.json")).get("runs")
    except (OSError, ValueError, AttributeError) as error:
        raise PagesimError(f"{folder}: is no result of pagesim run ({reason(error)})") from None
    if runs is not None and not isinstance(runs, dict):
        raise PagesimError(
            f"{folder}: is no result of pagesim run --policies (runs of summary.json is no table)"
        )
    return [folder] if runs is None else [folder / policy for policy in runs]
