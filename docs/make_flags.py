"""Write docs/reference/flags.md: what becomes of every flag and variable of the servers that lines are of.

Run it from the root of the repository after a change of serve_flags.csv: python docs/make_flags.py
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import get_args

from pagesim.setup import serve_sglang, serve_vllm
from pagesim.setup.serve_flags import Engine, Flag, Kind, flags_of

PAGE = Path(__file__).parent / "reference" / "flags.md"

TITLES: dict[Engine, str] = {
    "vllm": f"vLLM {serve_vllm.RELEASE}",
    "sglang": f"SGLang {serve_sglang.RELEASE}",
}

SECTIONS: dict[Kind, str] = {
    "taken": "Taken: they decide on memory or scheduling, as an option of pagesim's does",
    "replica": "Without an effect where one replica serves",
    "layers": "Without an effect where all layers keep every token alike, and refused elsewhere",
    "refused": "Refused: they affect memory or scheduling, and are not modelled",
    "older": "Of earlier releases, which this one does not know",
    "no effect": "Without an effect on memory and scheduling here",
}
"""The headings of the kinds, in order."""

HEAD = """# Flags of servers

<!-- made by docs/make_flags.py from pagesim/setup/serve_flags.csv -->

What `--serve` ([serve.md](../serve.md)) makes of each flag, part of an object (behind a dot) and variable.
Where it is read in the release's code, `pagesim list flags PATTERN` says.
"""


def named(flag: Flag) -> str:
    """Return a flag as a line has it, with its other spellings."""
    names = (flag.flag,) if flag.is_variable else (f"--{flag.flag}", *flag.aliases)
    return ", ".join(f"`{name}`" for name in names)


def rows(kind: Kind, flags: Iterable[Flag]) -> Iterator[str]:
    """Yield the lines of a section."""
    if kind == "no effect":
        alike = defaultdict(list)
        for flag in flags:
            alike[flag.does].append(named(flag))
        for does, names in alike.items():
            yield f"- {does} {' '.join(names)}"
        return
    told = {"taken": "option", "refused": "but for"}.get(kind, "")
    yield f"| flag | {told} | |" if told else "| flag | |"
    yield "|---|---|---|" if told else "|---|---|"
    for flag in flags:
        more = {"option": f"`{flag.option}`", "but for": ", ".join(f"`{each}`" for each in flag.values)}
        cells = [named(flag), *([more[told] if more[told] != "``" else ""] if told else ()), flag.does]
        yield f"| {' | '.join(cells)} |"


def page() -> str:
    """Return the page as the table is now."""
    lines = [HEAD]
    for engine in get_args(Engine):
        flags = flags_of(engine).values()
        own = sum(not (flag.is_variable or flag.is_part or flag.kind == "older") for flag in flags)
        lines += [f"## {TITLES[engine]}: {own} flags", ""]
        for kind, title in SECTIONS.items():
            of_kind = [flag for flag in flags if flag.kind == kind]
            if of_kind:
                lines += [f"### {title}", "", *rows(kind, of_kind), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
