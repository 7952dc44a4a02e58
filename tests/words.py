"""Words that do not belong into docstrings, comments and documents: find them, and say what to use instead.

Run it from anywhere: python tests/words.py [FILE…]
It prints `file:line: word -> use this` for each and exits with 1; `make lint` runs it over the repository.
The terms to use are those of docs/glossary.md.
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

NAMED = "name the subject: a request, a block, the scheduler, no request, all requests"
FORWARD = "fast-forward, to forward over"


WORDS: dict[str, str] = {
    "anybody|anyone|everybody|everyone|nobody|somebody|someone|whoever|whomever": NAMED,
    "him|himself|herself": "it, the request",
    "leap|leaps|leaping|leapt": FORWARD,
    "restless": "must_replan",
    "undisturbed": "alone; steps_until_next_decision",
    "lane|lanes": "scheduler: there is one decision path; of a vector: elements",
    "adopt|adopts|adopted|readmit": "fork, admit",
    "film|films|filmed|reel|reels": "snapshots, frames",
    "turned away|at the door": "rejected, at submission",
    "in the box": "bundled",
    "hears|overhears": "is called with, observes",
    "rig|rigs": "harness",
    "roofs": "bounds",
}
"""By words, the ones to use."""

EXEMPT: dict[str, set[str]] = {
    "CHANGELOG.md": {"*"},  # says what is called what now
    "docs/design.md": {"lanes"},  # of the version before
    "docs/performance.md": {"lane", "lanes"},  # of the version before
    "tests/words.py": {"*"},
    "tests/test_words.py": {"*"},
    "kernels/layouts.py": {"lane", "lanes"},  # of a vector
    "tests/kernels/test_bad_input.py": {"lane"},
}
"""By file, the words that it may hold."""

SUFFIXES = (".py", ".md", ".ipynb", ".js", ".css", ".html", ".toml")

LISTED = {word: advice for words, advice in WORDS.items() for word in words.split("|")}
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
    """Return a sentence for each word of a file that does not belong there."""
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
