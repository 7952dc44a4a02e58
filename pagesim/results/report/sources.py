"""Sources: the results that a page shows, found in folders and given distinct names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pagesim.errors import PagesimError
from pagesim.results.result import Result, load
from pagesim.setup.files import read_manifest, read_sealed
from pagesim.setup.reading import parse_json

MOST_SYSTEMS = 12
"""Maximum number of results compared on one page."""


@dataclass(frozen=True)
class Source:
    """A result and its name on the page."""

    name: str
    result: Result


def is_cluster(folder: Path) -> bool:
    """Return whether a folder holds a result of ``pagesim run --replicas``.

    Raises:
        PagesimError: its manifest is damaged.
    """
    sealed = read_manifest(folder)
    return sealed is not None and sealed[0] == "cluster"


def find(folders: Sequence[Path]) -> list[Source]:
    """Return the results in these folders; a comparison contributes the results of all its policies.

    Each is named after its policy and, if several share a policy, also after its folder.

    Raises:
        PagesimError: a folder holds no result of ``pagesim run``, or there are too many results.
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
    sealed = read_manifest(folder)
    if sealed is None or sealed[0] != "comparison":
        return [folder]
    files = read_sealed(folder, ("summary.json",), "comparison", "pagesim run --policies")
    return [folder / policy for policy in parse_json(files["summary.json"])["runs"]]
