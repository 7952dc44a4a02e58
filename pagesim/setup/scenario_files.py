"""Scenario files: read and write scenarios as TOML, with the origins of their plug-ins."""

from __future__ import annotations

import json
from math import inf
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from pagesim.errors import PagesimError, brief, reason
from pagesim.setup.plugins import HOMES, needs, plugins
from pagesim.setup.presets import POLICY_PLUGINS
from pagesim.setup.reading import parse_toml, read_text
from pagesim.setup.scenario import Scenario
from pagesim.setup.system import M, checked

NEEDS = "needs"
"""Table of a scenario file with the origins of the plug-ins that the file names."""


def read_toml(path: Path) -> dict[str, Any]:
    """Return a TOML file's table.

    Raises:
        PagesimError: the file cannot be read or is not TOML.
    """
    try:
        return parse_toml(read_text(path))
    except OSError as error:
        raise PagesimError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise PagesimError(f"{path}: is no TOML file: {reason(error)}") from None


def read_scenario(kind: type[M], file: Path) -> M:
    """Return the model that a scenario file describes.

    The plug-ins that it needs are not checked yet, because flags may name others.

    Raises:
        PagesimError: it cannot be read, or a field is unknown or out of bounds.
    """
    values = read_toml(file)
    values.pop(NEEDS, None)
    return checked(kind, values, str(file), strict=True)


def check_needs(file: Path, model: BaseModel) -> None:
    """Refuse to run if a plug-in that a scenario file needs is missing, and say where it comes from.

    Args:
        file: a scenario file.
        model: scenario to run, whose options may differ from the file's.

    Raises:
        PagesimError: a plug-in is missing, or the file's table of plug-ins is malformed.
    """
    stored = read_toml(file).get(NEEDS, {})
    tables = stored.values() if isinstance(stored, dict) else [None]
    if not all(isinstance(each, dict) and all(isinstance(o, str) for o in each.values()) for each in tables):
        raise PagesimError(f"{file}: {NEEDS} is {brief(stored)}; it must hold tables of texts")
    for option, name in dict.fromkeys(_parts(model)):
        origin = stored.get(option, {}).get(name)
        if origin is not None and name not in plugins(option):
            raise PagesimError(
                f"{file}: {option} {name} is a plug-in that is not here; the file was made with {origin}"
            )


def to_toml(model: BaseModel, leave_out: str = "") -> str:
    """Return a flat model as TOML, without options that are None, and with the plug-ins it needs.

    Args:
        model: the options.
        leave_out: option to omit, although the plug-ins it needs are still listed.
    """
    options = model.model_dump(exclude_none=True, exclude={leave_out})
    lines = [f"{name} = {toml_value(value)}" for name, value in options.items()]
    for option, origins in needs(_parts(model)).items():
        lines += ["", f"[{NEEDS}.{option}]"]
        lines += [f"{json.dumps(name)} = {json.dumps(origin)}" for name, origin in origins.items()]
    return "\n".join(lines) + "\n"


def toml_value(value: Any) -> str:
    """Return an option's value as TOML."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    # JSON's strings, numbers and booleans are also valid TOML.
    return "inf" if value == inf else json.dumps(value)


def plugin_sources(model: BaseModel) -> list[str]:
    """Return origins and code hashes of the plug-ins that a scenario uses, for its cache key.

    Raises:
        PagesimError: a plug-in is registered only in this process, or is missing.
    """
    found = [plugins(option).source(name) for option, name in dict.fromkeys(_parts(model))]
    return [source for source in found if source is not None]


def _parts(model: BaseModel) -> list[tuple[str, str]]:
    """Return (option, name) of the parts that a model and its policies name."""
    found = []
    grid = getattr(model, "grid", None) or {}
    for option in HOMES:
        for value in (getattr(model, option, None), *grid.get(option, ())):
            if isinstance(value, str):
                found.append((option, value.partition(":")[0] if option == "cost" else value))
    of_pools = [getattr(model, name, None) for name in ("prefill_router", "decode_router")]
    found += [("router", name) for name in of_pools if name is not None]
    found += [("policy", name) for name in getattr(model, "policies", ())]
    for option, name in tuple(found):
        if option == "policy" and name in POLICY_PLUGINS and not POLICY_PLUGINS.owns(name):
            policy = POLICY_PLUGINS.find(name)
            found += [("scheduler", policy.scheduler), ("allocator", policy.allocator)]
    return found


def absolute_paths(scenario: Scenario, beside: Path | None = None) -> dict[str, str]:
    """Return path options as absolute paths, so that the copy stored with a result runs anywhere.

    Paths that are not found in the working directory are looked up in the folder ``beside``.
    """
    from pagesim.models.catalogue import known_as
    from pagesim.workloads import SPECS, workloads
    from pagesim.workloads.conversations import PREFIX
    from pagesim.workloads.servegen import PREFIX as SERVEGEN
    from pagesim.workloads.tokenizer import APPROXIMATE, GPT2

    # A known name is never a path, regardless of the working directory.
    names = {*workloads(), APPROXIMATE, GPT2}
    found = {}
    for option in ("trace", "model", "tokenizer", "cost"):
        value = getattr(scenario, option)
        kind = "" if value is None else value.partition(":")[0]
        if value is None or value.lower() in names or known_as(value) or kind in (*SPECS, PREFIX):
            continue
        before, after = "", ""
        if option == "cost":
            kind, _, value = value.partition(":")
            if kind != "profile":
                continue
            value, comma, rest = value.partition(",")
            before, after = "profile:", comma + rest
        if option == "trace" and kind == SERVEGEN:
            value, at, rest = value.partition(":")[2].partition("@")
            before, after = f"{SERVEGEN}:", at + rest
        try:
            for path in (Path(value), *([beside / value] if beside else [])):
                if path.is_file() or ((option == "model" or before == f"{SERVEGEN}:") and path.is_dir()):
                    found[option] = f"{before}{path.resolve()}{after}"
                    break
        except (OSError, ValueError):  # for instance too long; reported when it is opened
            continue
    return found
