"""A server's command within a line of a shell: launchers, variables, redirections and comments."""

from __future__ import annotations

import re
import shlex
from pathlib import PurePosixPath

from pagesim.errors import PagesimError, brief

_COMMENT = re.compile(r"(?m)(?:^|(?<=\s))#.*$")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_LAUNCHER_VARIABLE = re.compile(r"(?:-(?:-env=|e))?([A-Z_][A-Z0-9_]*=.*)", re.DOTALL)
_IMAGE = re.compile(r"vllm-openai[\w-]*(?:[:@]\S+)?")
_REDIRECT = re.compile(r"[\d&]?>{1,2}(?:&\d)?(.*)")
_SHELL = re.compile(r"[$`]|^[&|;<>()]+$")
_ENDS = ("&", "&&", ";", "|", "||")


def command_of(line: str) -> tuple[list[str], list[str]]:
    """Return the variables that are set in front of a server's command, and the command's words.

    Launchers in front of it (``docker run``, ``uv run``, ``nohup``) are left out, except for the variables
    that they set, and so are redirections, what follows the command, and comments. vLLM's own container
    images run ``vllm serve``.

    Raises:
        PagesimError: a quotation mark is not closed, a word of the command has a special meaning to a shell,
            or there is a second server.
    """
    try:
        words = shlex.split(_COMMENT.sub("", line).replace("\\\n", " "))
    except ValueError as error:
        raise PagesimError(f"--serve cannot be parsed: {str(error).lower()}") from None
    variables = []
    while words and _VARIABLE.match(words[0]):
        variables.append(words.pop(0))
    launcher, words = _split_launcher(words)
    variables += [found[1] for word in launcher if (found := _LAUNCHER_VARIABLE.fullmatch(word))]
    words, rest = _split_end(words)
    if _begin(rest) is not None:
        raise PagesimError("--serve starts more than one server; give one of them")
    for word in words:
        if _SHELL.search(word):
            raise PagesimError(
                f"--serve holds {brief(word, 80)}, which means something to a shell only; write the command "
                "out"
            )
    return variables, words


def _begin(words: list[str]) -> int | None:
    """Return where a server's command begins among words; None if there is none."""
    for at, word in enumerate(words):
        name = PurePosixPath(word).name
        if name in ("vllm", "sglang") and words[at + 1 : at + 2] == ["serve"]:
            return at
        if re.fullmatch(r"python[\d.]*", name) and "-m" in words[at + 1 : at + 3]:
            return at
    return None


def _split_launcher(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the words in front of a server's command, and the words from there on."""
    begin = _begin(words)
    if begin is not None:
        command = words[begin:]
        if command[1:3] == ["-u", "-m"]:  # Python's unbuffered output
            del command[1]
        return words[:begin], command
    for at, word in enumerate(words):
        if _IMAGE.fullmatch(PurePosixPath(word).name):
            return words[:at], ["vllm", "serve", *words[at + 1 :]]
    return [], words


def _split_end(words: list[str]) -> tuple[list[str], list[str]]:
    """Return a command's words without redirections, and the words that follow the command."""
    kept: list[str] = []
    at = 0
    while at < len(words):
        if words[at] in _ENDS:
            return kept, words[at + 1 :]
        redirect = _REDIRECT.fullmatch(words[at])
        if redirect is None:
            kept.append(words[at])
        elif not redirect[1] and not words[at][-1].isdigit():
            at += 1  # the file is a word of its own
        at += 1
    return kept, []
