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
    "taken": "Read: options of pagesim, and the flags that set each where names differ",
    "replica": "Without an effect where one replica serves",
    "layers": "Without an effect on models whose layers are alike; rejected for other models",
    "refused": "Rejected: they affect memory or scheduling and are not modelled",
}
"""The headings of the kinds, in order; other flags are counted."""

DEPENDENT = "Counts only beside "
"""How the sentence of a flag begins that is rejected because it is a part of another one's feature."""

HEAD = """# Flags of servers

<!-- made by docs/make_flags.py from pagesim/setup/serve_flags.csv -->

What `--serve` ([serve.md](../how-to/serve.md)) does with each flag, JSON key (after a dot) and variable.
`pagesim list flags PATTERN` prints every flag, also those that are only counted here: what it does, where the
release reads it, and what replaces a removed one.
A rejected flag is accepted with the values in parentheses, which change nothing.
"""


def named(flag: Flag) -> str:
    """Return a flag as a line has it, with its other spellings and the values that change nothing."""
    names = (flag.flag,) if flag.is_variable else (f"--{flag.flag}", *flag.aliases)
    values = ", ".join(f"`{value}`" for value in flag.values if value)
    return ", ".join(f"`{name}`" for name in names) + (f" ({values})" if values else "")


def rows(kind: Kind, flags: Iterable[Flag]) -> Iterator[str]:
    """Yield the lines of a section: flags, and the options that those of pagesim's own kind set."""
    alike: dict[str, list[str]] = defaultdict(list)
    for flag in flags:
        alike[f"`{flag.option}`" if kind == "taken" and flag.option else flag.does].append(named(flag))
    if kind != "taken":
        yield " ".join(name for names in alike.values() for name in names)
        return
    same = {head: names for head, names in alike.items() if names == [f"`--{head[1:-1].replace('_', '-')}`"]}
    yield f"- the option of the same name: {' '.join(name for names in same.values() for name in names)}"
    for head, names in alike.items():
        if head not in same:
            yield f"- {head}: {' '.join(names)}"


def page() -> str:
    """Return the page as the table is now."""
    lines = [HEAD]
    for engine in get_args(Engine):
        flags = flags_of(engine).values()
        own = sum(not (flag.is_variable or flag.is_part or flag.is_older) for flag in flags)
        lines += [f"## {TITLES[engine]}: {own} flags", ""]
        for kind, title in SECTIONS.items():
            of_kind = [flag for flag in flags if flag.kind == kind and not flag.does.startswith(DEPENDENT)]
            if of_kind:
                lines += [f"### {title}", "", *rows(kind, of_kind), ""]
        without, removed = (
            sum(flag.kind == "no effect" for flag in flags),
            sum(flag.is_older for flag in flags),
        )
        dependent = sum(flag.does.startswith(DEPENDENT) for flag in flags)
        lines += [
            f"{dependent} flags count only beside another one, and are rejected.",
            f"{without} flags have no effect on memory and scheduling; a note of the run names them.",
            f"{removed} flags of earlier releases are replaced or left out, with a note, or rejected.",
            "",
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
