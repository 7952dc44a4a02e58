"""Preferred terms: find words of docstrings, comments and documents for which the field has a better one.

Run it from anywhere: python tests/words.py [FILE…]
It prints `file:line: word -> preferred term` for each and exits with 1; `make lint` runs it over everything.
docs/reference/glossary.md defines the terms.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]

PREFERRED: dict[str, str] = {
    # Memory
    "allocator": "placement|placements",
    "internal fragmentation: unused reservation": "over-reserved|over-reservation|over_reserved",
    "external fragmentation": "external holes|in holes",
    # Scheduling
    "fast-forward, to forward over": "leap|leaps|leaping|leapt",
    "bit-identical": "changes no bit|to the last bit",
    "affects scheduling": "change what is decided|changes what is decided",
    "must_replan": "restless",
    "alone; steps_until_next_decision": "undisturbed",
    "scheduler (there is one decision path); of a vector: elements": "lane|lanes",
    "fork, admit": "adopt|adopts|adopted|readmit",
    "rejected, at submission": "turned away|at the door",
    # Everything else
    "a clause that says what the argument is": "see there",
    "Random seed.": "seed of everything that is drawn",
    "a request, a block, the scheduler, no request, all requests": (
        "anybody|anyone|everybody|everyone|nobody|somebody|someone|whoever|whomever"
    ),
    "it, the request": "him|himself|herself",
    "snapshots, frames": "film|films|filmed|reel|reels",
    "bundled": "in the box",
    "is called with, observes": "hears|overhears",
    "harness": "rig|rigs",
    "bounds": "roofs",
}
"""By preferred term, the words for which it stands."""

EXEMPT: dict[str, set[str]] = {
    "CHANGELOG.md": {"*"},  # says what is called what now
    "pagesim/cli/spellings.py": {"placement"},  # what users of the version before write
    "tests/words.py": {"*"},
    "tests/test_words.py": {"*"},
}
"""By file, the words that it may hold all the same."""

SUFFIXES = (".py", ".md", ".ipynb", ".js", ".css", ".html", ".toml")

LISTED = {word: term for term, words in PREFERRED.items() for word in words.split("|")}
PATTERN = re.compile(rf"(?<![\w-])(?:{'|'.join(LISTED)})(?![\w-])", re.IGNORECASE)


def prose_of(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of prose, numbered: comments and strings of Python, a notebook's text, a whole page."""
    if path.suffix == ".py":
        kinds = (tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING))
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in kinds:
                yield from enumerate(token.string.splitlines(), start=token.start[0])
    elif path.suffix == ".ipynb":
        for cell in json.loads(text)["cells"]:
            for line in cell["source"] if cell["cell_type"] == "markdown" else ():
                place = text.find(json.dumps(line, ensure_ascii=False))
                yield text[: max(0, place)].count("\n") + 1, line
    else:
        yield from enumerate(text.splitlines(), start=1)


def check(path: Path, name: str) -> list[str]:
    """Return a sentence for each word of a file for which there is a better term."""
    text = path.read_text(encoding="utf-8")
    allowed, lower = EXEMPT.get(name, set()), text.lower()
    if "*" in allowed or not any(word in lower for word in LISTED):
        return []
    return [
        f"{name}:{number}: {found[0]} -> {LISTED[found[0].lower()]}"
        for number, line in prose_of(path, text)
        for found in PATTERN.finditer(line)
        if found[0].lower() not in allowed
    ]


def tracked() -> list[Path]:
    """Return the files of the repository that hold prose."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *(f"*{suffix}" for suffix in SUFFIXES)],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    files = (ROOT / name for name in listed.stdout.splitlines())
    return [path for path in files if path.is_file() and "pagesim/kernels/" not in path.as_posix()]


def main(given: list[str]) -> int:
    """Check the given files, or all; return the exit code."""
    if given:
        found = [line for each in given for line in check(Path(each), each)]
    else:
        found = [line for path in tracked() for line in check(path, path.relative_to(ROOT).as_posix())]
    for line in found:
        print(line)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
