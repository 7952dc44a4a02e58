"""The words of a server's command: its variables and flags, how their values are read, and a refusal."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pagesim.errors import PagesimError, brief


class FlagRefused(PagesimError):
    """A flag or a variable of a line is refused.

    Attributes:
        name: the flag's, without its dashes.
        instead: words that take its place in the nearest line that runs; none where it is left out.
    """

    def __init__(self, name: str, sentence: str, instead: tuple[str, ...] = ()) -> None:
        super().__init__(f"--serve: {sentence}")
        self.name, self.instead = name, instead


@dataclass(frozen=True, slots=True)
class Given:
    """A flag as it stands in a line.

    Attributes:
        name: the flag's; '' for a word that is no flag.
        values: that it has; ``false`` for a switch that is off.
        words: of the line that spell it.
        path: the names behind its dots, where it is about a part of an object.
    """

    name: str
    values: list[str]
    words: list[str]
    path: tuple[str, ...] = ()


Reader = Callable[[str, str], dict[str, Any]]
"""What makes options of a flag's name and its value; PagesimError where the value is off."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_NUMBER = re.compile(r"-\d+$|-\d*\.\d+$")
_SHELL = re.compile(r"[$`]|^(?:[&|;<>()]+|\d?>.*)$")


def number(option: str, read: Callable[[str], Any]) -> Reader:
    """Return the reader of a number that is an option's value.

    Args:
        option: its name.
        read: makes the number; ValueError or OverflowError where it is none.
    """

    def reads(name: str, text: str) -> dict[str, Any]:
        try:
            return {option: read(text)}
        except (ValueError, OverflowError):
            wanted = "a number" if read is float else "a whole number"
            raise PagesimError(f"--serve: --{name} is {brief(text, 80)}; it must be {wanted}") from None

    return reads


def choice(option: str, words: Mapping[str, str] | Iterable[str]) -> Reader:
    """Return the reader of one of several words.

    Args:
        option: its name.
        words: its value by the word, or words that are values; '' where a word says what holds without it.
    """
    known = words if isinstance(words, Mapping) else {word: word for word in words}

    def reads(name: str, text: str) -> dict[str, Any]:
        if text not in known:
            raise FlagRefused(
                name, f"--{name} {brief(text, 80)} is not modelled; it may be {', '.join(known)}"
            )
        return {option: known[text]} if known[text] else {}

    return reads


def is_flag(word: str) -> bool:
    """Say whether a word begins a flag: with a dash, and is no number below 0."""
    return word.startswith("-") and not _NUMBER.match(word) and word != "-"


def words_of(line: str) -> tuple[list[str], list[str]]:
    """Return the assignments of variables in front of a command, and its words as a shell splits them.

    Raises:
        PagesimError: a quotation mark is open, or a word means something to a shell only.
    """
    try:
        words = shlex.split(line.replace("\\\n", " "))
    except ValueError as error:
        raise PagesimError(f"--serve cannot be parsed: {str(error).lower()}") from None
    for word in words:
        if _SHELL.search(word):
            raise PagesimError(
                f"--serve holds {brief(word, 80)}, which means something to a shell only; write the command "
                "out"
            )
    variables = []
    while words and _VARIABLE.match(words[0]):
        variables.append(words.pop(0))
    return variables, words
