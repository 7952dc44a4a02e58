"""A server's shell command: the options that it sets, and the flags that have no effect here."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from types import ModuleType
from typing import Any

from pagesim.errors import PagesimError, brief
from pagesim.setup import serve_sglang, serve_vllm
from pagesim.setup.serve_shell import command_of
from pagesim.setup.serve_words import FlagRefused

FOREIGN = ("scheduler", "reservation", "allocator", "page_size")
"""Options that replace parts of the engine."""


@dataclass(frozen=True, slots=True)
class ServeLine:
    """The meaning of a server's command line.

    Attributes:
        options: system options that the line sets, by name.
        notes: notes, such as the flags that have no effect here.
        engine: engine that the line starts.
        refuses: returns why the line is incompatible with other given options; None if it is not.
        full_graphs: whether CUDA graphs cover whole iterations.
    """

    options: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    engine: str = "vLLM"
    refuses: Callable[[Mapping[str, Any]], str | None] = lambda given: None
    full_graphs: bool = True

    def merged_with(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options given next to the line, updated with the line's own.

        Raises:
            PagesimError: the given options contradict the line, or name no GPU.
        """
        if given.get("gpu") is None:
            raise PagesimError("--serve needs the GPU that is served on; name it with --gpu")
        for name in FOREIGN:
            if given.get(name) not in (None, self.options["policy"]):
                raise PagesimError(f"--serve is about {self.engine} as it is; leave {name} {given[name]} out")
        for name, value in self.options.items():
            other = given.get(name, value)
            if other is not None and other != value:
                raise PagesimError(
                    f"--serve says {name} {value}, and beside it {name} is {other}; leave one of them out"
                )
        refusal = self.refuses(given)
        if refusal is not None:
            raise PagesimError(f"--serve: {refusal}")
        return {**given, **self.options}


def read_serve(line: str) -> ServeLine:
    """Parse a server's command line.

    Args:
        line: command of vLLM 0.33.0 (``vllm serve MODEL …`` or ``python -m
            vllm.entrypoints.openai.api_server …``) or SGLang 0.5.23 (``sglang serve MODEL …`` or ``python -m
            sglang.launch_server …``), in a line of a shell (`command_of`).

    Raises:
        PagesimError: it is no such line, a flag is unknown or not modelled, or a value is invalid; the
            message names it, and its remedy is the nearest line that can be read.
    """
    assignments, words = command_of(line)
    try:
        return _read(assignments, words)
    except FlagRefused as refused:
        raise PagesimError(str(refused), _nearest(assignments, words)) from None


def _read(assignments: list[str], words: list[str]) -> ServeLine:
    server, begin = _server(words)
    if server is serve_vllm:
        options, notes, full_graphs = serve_vllm.read(assignments, words[begin:])
        return ServeLine(options, notes, full_graphs=full_graphs)
    options, notes, refuses = serve_sglang.read(assignments, words[begin:], first_is_model=begin == 2)
    return ServeLine(options, notes, "SGLang", refuses)


def _server(words: list[str]) -> tuple[ModuleType, int]:
    """Return the module that reads a server's flags, and the index of the first word after its command."""
    command = PurePosixPath(words[0]).name if words else ""
    module = words[2] if re.fullmatch(r"python[\d.]*", command) and words[1:2] == ["-m"] and words[2:] else ""
    for server, name in ((serve_vllm, "vllm"), (serve_sglang, "sglang")):
        if module == server.MODULE:
            return server, 3
        if command == name and words[1:2] == ["serve"]:
            return server, 2
    raise PagesimError(
        f"--serve is {brief(' '.join(words), 80)}; it must begin with vllm serve, sglang serve, or python -m "
        f"{serve_vllm.MODULE} or {serve_sglang.MODULE}"
    )


def _nearest(assignments: list[str], words: list[str]) -> str:
    """Return the line with refused flags removed or replaced; '' if that does not make it readable."""
    server, begin = _server(words)
    words = [*words[:begin], *server.TABLE.renewed(words[begin:])[0]]
    for _ in words:
        try:
            _read(assignments, words)
        except FlagRefused as refused:
            assignments = [each for each in assignments if each.partition("=")[0] != refused.name]
            own = server.TABLE.replaced(words[begin:], refused.name, refused.instead)
            words = [*words[:begin], *own]
        except PagesimError:
            return ""
        else:
            parted = (each.split("=", 1) for each in assignments)
            return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in parted), shlex.join(words)])
    return ""
