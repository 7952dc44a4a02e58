"""Write docs/api.md, all of the public API, and tests/signatures.txt, which freezes it.

Run it from the root of the repository after a change that is meant: python docs/make_api.py
"""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "api.md"
SIGNATURES = ROOT / "tests" / "signatures.txt"

MODULES = (
    "pagesim",
    "pagesim.results.plots",
    "pagesim.workloads",
    "pagesim.kvcache",
    "pagesim.kvcache.conformance",
    "pagesim.scheduling",
    "pagesim.setup.registry",
    "pagesim.costs",
    "pagesim.costs.specs",
    "pagesim.sim.clock",
    "pagesim.costs.profiles",
    "pagesim.experiments.clusters",
    "pagesim.experiments.ablations",
    "pagesim.device.live",
    "pagesim.device.calibration",
    "pagesim.device.validation",
    "pagesim.kernels",
    "pagesim.kernels.swap",
    "pagesim.kernels.timing",
)
"""Where what is public lives: what each names in ``__all__``."""

HEAD = """# The public API

What you may rely on: the names below. `pagesim` itself is shown in full; of the packages that
[extending.md](extending.md) and other pages use, the first paragraph on each part (`help()` has the rest).
What is not here may change without a word in [CHANGELOG.md](../CHANGELOG.md). Lengths are in tokens, sizes
in blocks, times in seconds unless a name says ticks (picoseconds), and shapes stand in brackets: `[N]` is
one value a request.

*Made by `python docs/make_api.py`; a test says if it is out of date.*
"""


def signature(part: Any) -> list[str]:
    """Return a function's or class's parameters and what it returns; nothing if users do not call it."""
    if isinstance(part, type) and (
        issubclass(part, enum.Enum | BaseException) or getattr(part, "_is_protocol", False)
    ):
        return []
    if isinstance(part, type) and issubclass(part, BaseModel):
        fields = part.model_fields.items()
        return [*(name if field.is_required() else f"{name}=…" for name, field in fields), ""]
    found = inspect.signature(part)
    texts = []
    star = False
    for parameter in found.parameters.values():
        star = star or parameter.kind is parameter.VAR_POSITIONAL
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            texts.append("*")
            star = True
        texts.append(_plain(str(parameter)))
    gives = (
        "" if isinstance(part, type) or found.return_annotation is found.empty else found.return_annotation
    )
    return [*texts, _plain(f" -> {gives}") if gives else ""]


def _plain(text: str) -> str:
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)
    # Where something stands in memory is another each time.
    return re.sub(r"<[^<>]* at 0x[0-9a-f]+>|<factory>", "…", text)


def called(name: str, part: Any, width: int | None = None) -> str:
    """Return a name with its signature, a parameter a line where it is wider than ``width``."""
    *parameters, gives = signature(part) or [""]
    if not parameters and not signature(part):
        return name
    line = f"{name}({', '.join(parameters)}){gives}"
    if width is None or len(line) <= width:
        return line
    inner = "".join(f"    {parameter},\n" for parameter in parameters)
    return f"{name}(\n{inner}){gives}"


def members(part: type, public: Collection[object]) -> Iterator[str]:
    """Yield a class's methods and properties with their signatures, but those of its public bases."""
    if issubclass(part, enum.Enum):
        yield from part.__members__
        return
    seen: set[str] = set()
    for home in part.__mro__:
        if home is not part and (home in public or not home.__module__.startswith("pagesim.")):
            continue
        for name, member in vars(home).items():
            if name.startswith("_") or name in seen:
                continue
            if issubclass(part, BaseModel) and name.startswith("model_"):
                continue
            seen.add(name)
            if isinstance(member, property | cached_property):
                yield name
            elif isinstance(member, classmethod | staticmethod):
                yield called(name, member.__func__)
            elif inspect.isfunction(member):
                yield called(name, member)


def names(module: ModuleType) -> list[str]:
    """Return the names that a module offers; a plain module without ``__all__`` those it defines."""
    if hasattr(module, "__all__"):
        return sorted(module.__all__)
    return sorted(
        name
        for name, part in vars(module).items()
        if inspect.isfunction(part) and part.__module__ == module.__name__ and not name.startswith("_")
    )


def is_called(part: Any) -> bool:
    """Whether it is a class or a function, rather than a constant or the name of a type."""
    return inspect.isclass(part) or inspect.isroutine(part) or hasattr(part, "cache_info")


def kind(part: Any) -> str:
    """Return what something is that is neither a class nor a function."""
    plain = isinstance(part, str | int | float | Sequence | Mapping) or type(part).__module__.startswith(
        "pagesim"
    )
    return "a constant" if plain else "a type"


def everything() -> dict[str, dict[str, Any]]:
    """Return every public part by its name, by the module that offers it."""
    modules = {home: import_module(home) for home in MODULES}
    return {home: {name: getattr(module, name) for name in names(module)} for home, module in modules.items()}


def frozen() -> str:
    """Return every public name with its signature, a line each; under classes their members."""
    parts = everything()
    public = {part for home in parts.values() for part in home.values() if inspect.isclass(part)}
    lines = []
    for home, offered in parts.items():
        for name, part in offered.items():
            lines.append(called(f"{home}.{name}", part) if is_called(part) else f"{home}.{name}")
            if inspect.isclass(part):
                lines += [f"    .{member}" for member in members(part, public)]
    return "\n".join(lines) + "\n"


def page() -> str:
    """Return the page."""
    texts = [HEAD]
    for home, offered in everything().items():
        texts.append(f"\n## {home}\n\n{first_paragraph(import_module(home))}\n")
        if home != "pagesim":
            texts.append("\n| | |\n|---|---|\n")
        for name, part in offered.items():
            if home == "pagesim":
                shown = f"{called(name, part, 100)}\n\n{inspect.getdoc(part)}"
                texts.append(f"\n### {name}\n\n```text\n{shown}\n```\n")
            else:
                said = first_paragraph(part) if is_called(part) else kind(part)
                texts.append(f"| `{name}` | {said} |\n")
    return "".join(texts)


def first_paragraph(part: Any) -> str:
    """Return the first paragraph of a docstring, fit for a cell of a table."""
    paragraph = " ".join((inspect.getdoc(part) or "").split("\n\n")[0].split())
    return paragraph.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    SIGNATURES.write_text(frozen(), encoding="utf-8")
