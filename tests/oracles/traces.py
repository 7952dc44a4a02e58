"""Traces: the requests that a driver sends to vLLM, read from the CSV file beside the logs."""

from __future__ import annotations

import csv
from collections.abc import Hashable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """A row of a trace: one request, or ``n`` samples of one prompt.

    Attributes:
        row: its number in the file, from 0.
        arrival_s: when it arrives.
        prompt_tokens: length of its prompt.
        output_tokens: how many tokens each sample generates.
        prefix: which prefix its prompt begins with; ``""`` for none.
        prefix_tokens: how many tokens of the prompt are that prefix.
        parent: the row whose prompt and first output its prompt begins with; None for none.
        priority: a smaller one comes first.
    """

    row: int
    arrival_s: float
    prompt_tokens: int
    output_tokens: tuple[int, ...]
    prefix: str
    prefix_tokens: int
    parent: int | None
    priority: int


def read_trace(file: Path) -> list[Row]:
    """Return the rows of a trace by arrival, those that arrive together in the file's order."""
    rows = []
    with file.open(encoding="utf-8", newline="") as lines:
        for number, cells in enumerate(csv.DictReader(lines)):
            lengths = tuple(map(int, cells["output_tokens"].split(";")))
            if len(lengths) == 1:
                lengths *= int(cells["n"])
            row = Row(
                row=number,
                arrival_s=float(cells["arrival_s"]),
                prompt_tokens=int(cells["prompt_tokens"]),
                output_tokens=lengths,
                prefix=cells.get("prefix_id") or "",
                prefix_tokens=int(cells.get("prefix_tokens") or 0),
                parent=int(cells["parent"]) if cells.get("parent") else None,
                priority=int(cells.get("priority") or 0),
            )
            rows.append(row)
    return sorted(rows, key=lambda row: row.arrival_s)


@dataclass
class Tokens:
    """Ids of the tokens of prompts and outputs: equal where vLLM is to see equal tokens, else different.

    Attributes:
        rows: the trace, by the rows' numbers.
        numbers: the id of each token that was asked for.
    """

    rows: dict[int, Row]
    numbers: dict[Hashable, int] = field(default_factory=dict)

    def prompt(self, row: Row) -> list[int]:
        """Return the prompt of a row: what it shares with others, then tokens that are its own."""
        if row.parent is not None:
            parent = self.rows[row.parent]
            shared = self.prompt(parent)
            shared += [self.output(parent.row, 0, at) for at in range(parent.output_tokens[0])]
        else:
            shared = [self._number("prefix", row.prefix, at) for at in range(row.prefix_tokens)]
        return shared + [self._number("own", row.row, at) for at in range(row.prompt_tokens - len(shared))]

    def output(self, row: int, sample: int, at: int) -> int:
        """Return the token that a sample of a row generates after ``at`` others."""
        return self._number("output", row, sample, at)

    def _number(self, *token: Hashable) -> int:
        return self.numbers.setdefault(token, len(self.numbers))
