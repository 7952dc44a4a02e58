"""Scenario files: a scenario as TOML, read and written, and where its plug-ins come from."""

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
"""The table of a scenario file that says where the plug-ins come from that it names."""


def read_toml(path: Path) -> dict[str, Any]:
    """Return a TOML file's table.

    Raises:
        PagesimError: it cannot be read or is no TOML.
    """
    try:
        return parse_toml(read_text(path))
    except OSError as error:
        raise PagesimError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise PagesimError(f"{path}: is no TOML file: {reason(error)}") from None


def read_scenario(kind: type[M], file: Path) -> M:
    """Return what a scenario file holds.

    What it says that it needs is not looked for yet: flags may name something else.

    Raises:
        PagesimError: it cannot be read, or a field is unknown or out of bounds.
    """
    values = read_toml(file)
    values.pop(NEEDS, None)
    return checked(kind, values, str(file), strict=True)


def check_needs(file: Path, model: BaseModel) -> None:
    """Say where a plug-in comes from that a scenario file names and that is not here.

    Args:
        file: a scenario file.
        model: what is to be run, perhaps with other options than the file's.

    Raises:
        PagesimError: a plug-in is missing.
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
    """Return a flat model as TOML, options that were left out also left out, and which plug-ins it needs.

    Args:
        model: the options.
        leave_out: one of them that is left out, but not what it needs.
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
    # JSON's strings, numbers and booleans are TOML's as well.
    return "inf" if value == inf else json.dumps(value)


def plugin_sources(model: BaseModel) -> list[str]:
    """Return hashes of the code of the plug-ins that a scenario uses, for its key.

    Raises:
        PagesimError: a plug-in was registered in this process alone, or there is none of its name.
    """
    found = [plugins(option).source(name) for option, name in dict.fromkeys(_parts(model))]
    return [source for source in found if source is not None]


def _parts(model: BaseModel) -> list[tuple[str, str]]:
    """Return the (option, name) of the parts that a model names, and of those that its policies name."""
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
    """Return the options that are paths as absolute ones: the copy stored with a result runs anywhere.

    What is not in the working directory is looked for in the folder ``beside``.
    """
    from pagesim.models.catalogue import known_as
    from pagesim.workloads import SPECS, workloads
    from pagesim.workloads.conversations import PREFIX
    from pagesim.workloads.servegen import PREFIX as SERVEGEN
    from pagesim.workloads.tokenizer import APPROXIMATE, GPT2

    # A name that is known is never a path, whatever lies in the working directory.
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
        except (OSError, ValueError):  # too long for a path, say; what opens it says so
            continue
    return found
