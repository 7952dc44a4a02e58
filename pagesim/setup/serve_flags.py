"""The flags of servers and how each is treated: the rows of ``serve_flags.csv``."""

from __future__ import annotations

import csv
from functools import cache
from importlib import resources
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Engine = Literal["vllm", "sglang"]

Arity = Literal["one", "several", "perhaps", "none", "switch"]
"""Number of values a flag takes; ``perhaps`` is at most one, and a ``switch`` has a ``--no-`` form."""

Kind = Literal["taken", "no effect", "replica", "layers", "refused", "older", "gone"]
"""How a flag is treated.

``taken``: it affects memory or scheduling, like one of pagesim's options. ``no effect``: it affects neither
here. ``replica``: it affects neither if a single replica serves. ``layers``: it affects neither if all layers
keep every token, and is refused otherwise. ``refused``: it affects scheduling and is not modelled. ``older``:
a flag of earlier releases, which this one does not know; it is replaced by what took its place, or refused.
``gone``: one without which the server decides the same.
"""

Reads = Literal["", "own", "switch", "whole", "size", "number", "text"]
"""How the option's value is read: by the flag's own code (``own``), or as a switch, a whole number, a size
such as 8k, a number, or text. Empty if a flag sets no option."""

Words = Annotated[tuple[str, ...], BeforeValidator(lambda text: tuple(str(text).split()))]


class Flag(BaseModel):
    """A flag of a server, or an environment variable."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine: Engine
    flag: str = Field(
        pattern=r"^[a-z0-9-]+(\.\w+)*$|^[A-Z0-9_]+$",
        description="Without its dashes; of a part of an object, behind a dot as on a command line.",
    )
    aliases: Words = Field(description="Other spellings, with their dashes.")
    takes: Arity
    kind: Kind
    option: str = Field(description="Option of a system that a taken flag decides.")
    reads: Reads
    values: Words = Field(description="Values of a refused or older flag that change nothing.")
    instead: str = Field(description="What does the same as an older flag, if anything does.")
    does: str = Field(min_length=10, description="What it does to memory and scheduling, in a sentence.")
    source: str = Field(description="File and line of the release where it is read.")

    @property
    def is_older(self) -> bool:
        """Whether only earlier releases know the flag."""
        return self.kind in ("older", "gone")

    @property
    def is_variable(self) -> bool:
        """Whether this is an environment variable, which precedes the command."""
        return self.flag.isupper()

    @property
    def is_part(self) -> bool:
        """Whether this is a part of another flag's value, which is a JSON object."""
        return "." in self.flag

    @property
    def is_switch(self) -> bool:
        """Whether the flag takes no value."""
        return self.takes in ("none", "switch")

    def replaces(self, values: list[str]) -> bool:
        """Return whether an older flag with these values can be replaced or left out."""
        return bool(self.instead) or values[-1:] in ([value] for value in self.values)

    def spellings(self) -> dict[str, bool]:
        """Return the flag's spellings, with dashes, and whether each turns it on."""
        found = dict.fromkeys((f"--{self.flag}", *self.aliases), True)
        if self.takes == "switch":
            found[f"--no-{self.flag}"] = False
        return found


@cache
def flags_of(engine: Engine) -> dict[str, Flag]:
    """Return the flags and variables of a server, by name."""
    text = resources.files("pagesim.setup").joinpath("serve_flags.csv").read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = list(csv.DictReader(text.splitlines()))
    return {row["flag"]: Flag(**row) for row in rows if row["engine"] == engine}
