"""The words of a server's command: flags, readers of their values, and refusals."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pagesim.errors import PagesimError, brief


class FlagRefused(PagesimError):
    """A flag or a variable of a line is refused.

    Attributes:
        name: name of the flag, without dashes, or of the variable.
        instead: words that replace it in the nearest line that runs; empty if it is removed.
    """

    def __init__(self, name: str, sentence: str, instead: tuple[str, ...] = ()) -> None:
        super().__init__(f"--serve: {sentence}")
        self.name, self.instead = name, instead


@dataclass(frozen=True, slots=True)
class Given:
    """A flag as it appears in a line.

    Attributes:
        name: name of the flag; '' for a word that is not a flag.
        values: values of the flag; ``false`` for a switch that is off.
        words: words of the line that spell the flag and its values.
        path: names after its dots, if it sets a part of an object.
    """

    name: str
    values: list[str]
    words: list[str]
    path: tuple[str, ...] = ()


Reader = Callable[[str, str], dict[str, Any]]
"""Makes options from a flag's name and value; raises PagesimError if the value is invalid."""

_NUMBER = re.compile(r"-\d+$|-\d*\.\d+$")


def number(option: str, read: Callable[[str], Any]) -> Reader:
    """Return a reader of an option whose value is a number.

    Args:
        option: name of the option.
        read: parser of the number, which raises ValueError or OverflowError for other text.
    """

    def reads(name: str, text: str) -> dict[str, Any]:
        try:
            return {option: read(text)}
        except (ValueError, OverflowError):
            wanted = "a number" if read is float else "a whole number"
            raise PagesimError(f"--serve: --{name} is {brief(text, 80)}; it must be {wanted}") from None

    return reads


def machines(flags: Mapping[str, list[str]], gpus: int) -> int:
    """Return the machines of ``--nnodes``, which must divide the GPUs evenly, as both engines demand."""
    found: int = number("nnodes", int)("nnodes", flags.get("nnodes", ["1"])[-1])["nnodes"]
    if found < 1 or gpus % found:
        raise FlagRefused("nnodes", f"--nnodes is {found}; it must divide the {gpus} GPUs evenly")
    return found


def choice(option: str, words: Mapping[str, str] | Iterable[str]) -> Reader:
    """Return a reader of an option whose value is one of several words.

    Args:
        option: name of the option.
        words: option values by word, or words that are the values; '' if a word means the default.
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
    """Return whether a word begins a flag: it starts with a dash and is not a negative number."""
    return word.startswith("-") and not _NUMBER.match(word) and word != "-"
