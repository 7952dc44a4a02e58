"""What a sentence tells a person to type is there: commands, options, extras of the package."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from pagesim.cli.commands import cli as app
from pagesim.cli.flags import ENGINE_FIELDS
from pagesim.setup.serve_flags import flags_of

ROOT = Path(__file__).parents[2]
COMMAND = re.compile(r"\bpagesim ((?:[a-z][a-z-]*(?: |\b))+)")
OPTION = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]*[a-z0-9])\b")
EXTRAS = re.compile(r"pip install (?:-e )?'([^']*)'")


def texts() -> Iterator[tuple[str, str]]:
    """Yield every text in the code that a person may read, with its place; parts of f-strings joined."""
    for folder in ("pagesim", "kernels", "workloads"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            if file.is_relative_to(ROOT / "pagesim" / "kernels") or "pagesim/workloads" in str(file):
                continue  # the two symlinks
            tree = ast.parse(file.read_text(encoding="utf-8"))
            inside: set[int] = set()
            for node in ast.walk(tree):
                place = f"{file.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
                if isinstance(node, ast.JoinedStr):
                    inside |= {id(part) for part in ast.walk(node)}
                    parts = [p.value if isinstance(p, ast.Constant) else "{}" for p in node.values]
                    yield place, "".join(map(str, parts))
                elif (
                    isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside
                ):
                    yield place, node.value


TEXTS = list(texts())


def commands() -> dict[str, Any]:
    """Return all commands by their words, groups among them."""
    found: dict[str, Any] = {}

    def walk(command: Any, words: str) -> None:
        found[words] = command
        for name, own in getattr(command, "commands", {}).items():
            walk(own, f"{words} {name}".strip())

    walk(typer.main.get_command(app), "")
    return found


VERBS = {
    *(
        "and",
        "as",
        "asks",
        "calls",
        "cannot",
        "checks",
        "decides",
        "did",
        "does",
        "gives",
        "has",
        "is",
        "knows",
        "lacks",
        "reads",
        "replays",
        "that",
        "writes",
        "wrote",
    ),
}
"""Words that follow where pagesim itself is what a sentence is about."""


def test_every_command_that_a_text_names_is_there():
    known = commands()
    groups = {name for name, command in known.items() if hasattr(command, "commands")}
    named = [(place, found[1].split()) for place, text in TEXTS for found in COMMAND.finditer(text)]
    assert len(named) > 50
    wrong = []
    for place, words in named:
        name = ""
        while name in groups and words and (name or words[0] not in VERBS):
            name = f"{name} {words.pop(0)}".strip()
        if name not in known:
            wrong.append(f"{place}: pagesim {name}")
    assert not wrong, wrong


OTHERS = {
    *(
        "save-detailed",
        "save-result",
        "output-details",
        "request-rate",
        "burstiness",
        "streaming",
    ),  # of the clients of vLLM and SGLang, and of AIPerf
    *("no", "model-type"),  # the beginning of an option, and one of SGLang's that is read by itself
    *("rules", "targets", "vllm"),  # of scripts in the checkout
    *("query-gpu", "format"),  # of nvidia-smi
    *("no-optional-locks", "porcelain", "untracked-files", "error-unmatch"),  # of git
}
"""Options that texts name and that are neither pagesim's nor a server's."""


def test_every_option_that_a_text_names_is_a_commands_or_an_engines():
    known = {
        spelling.removeprefix("--")
        for command in commands().values()
        for param in command.params
        for spelling in (*param.opts, *param.secondary_opts)
    }
    served = {*flags_of("vllm"), *flags_of("sglang")}
    engines = {name.replace("_", "-") for name in (*ENGINE_FIELDS, *(f"no-{each}" for each in ENGINE_FIELDS))}
    wrong = [
        f"{place}: --{found[1]}"
        for place, text in TEXTS
        for found in OPTION.finditer(text)
        if found[1] not in known | served | engines | OTHERS
    ]
    assert not wrong


def test_every_extra_that_is_to_be_installed_is_one_and_from_the_checkout():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pages = [(str(file), file.read_text(encoding="utf-8")) for file in (ROOT / "docs").rglob("*.md")]
    found = [(place, each) for place, text in (*TEXTS, *pages) for each in EXTRAS.findall(text)]
    assert len(found) > 8
    for place, what in found:
        extras = re.fullmatch(r"\.\[([a-z,]+|\{\})\]", what)
        assert extras, f"{place}: {what}; the package is on no index"
        assert {*extras[1].split(",")} <= {*project["optional-dependencies"], "{}"}, place
