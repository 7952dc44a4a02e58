"""Request: one row of a trace; Trace: all of them, as columns in order of arrival."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pagesim.errors import TraceError, brief

MAX_TOKENS = 10_000_000
"""More tokens than this in one prompt or output is taken for a mistake."""

MAX_SAMPLES = 1024
"""More samples or beams than this for one request is taken for a mistake."""

MAX_THINK_S = 1e6
"""A client that thinks for longer than this between two turns is taken for a mistake."""

MAX_PRIORITY = 2**31 - 1
"""Priorities further from 0 than this are taken for a mistake."""

HASH_BLOCK_SIZE = 512
"""Prompt tokens that an id of ``hash_ids`` stands for unless a trace says otherwise: Mooncake's."""

WHOLE_NUMBERS = {
    "prompt_tokens": (1, MAX_TOKENS),
    "output_tokens": (1, MAX_TOKENS),
    "n": (1, MAX_SAMPLES),
    "beam_width": (1, MAX_SAMPLES),
    "prefix_tokens": (0, MAX_TOKENS),
    "priority": (-MAX_PRIORITY, MAX_PRIORITY),
}
"""Columns of whole numbers, and the least and the largest that each holds."""

IntColumn = npt.NDArray[np.int64]
FloatColumn = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Request:
    """One request as a client sends it, with the output length that the model will turn out to produce.

    The fields are those of a ``Trace``, and its ``row`` there; ``sample_tokens`` is empty where all samples
    are alike.
    """

    request_id: int | str
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    n: int = 1
    beam_width: int = 1
    hash_ids: tuple[int, ...] = ()
    session_id: int | str | None = None
    abort_s: float | None = None
    sample_tokens: tuple[int, ...] = ()
    prefix_tokens: int = 0
    think_s: float | None = None
    priority: int = 0
    row: int = 0


@dataclass(frozen=True)
class Trace:
    """Requests as columns of equal length, sorted by arrival (stable: equal arrivals keep their order).

    Three columns say which prompts begin alike:

    - ``hash_ids`` name a prompt's blocks. Two prompts are the same as far as their ids are, from the first
      on. Where a trace has them, they alone say what prompts share.
    - ``prefix_tokens`` is about one text that prompts begin with. Two of them share its first tokens, as many
      as the smaller of their numbers says.
    - ``session_id``: requests of a session are the turns of one conversation, in order of arrival. A turn
      whose prompt is at least as long as the previous turn's prompt and output together extends it: its first
      tokens are that prompt and output. A turn with a shorter prompt begins anew.

    Where a trace has ``think_s``, only the first turn of a session arrives at ``arrival_s``. Each later one
    is sent when the turn before it is over and its client has thought for so long: a closed loop.

    Args:
        arrival_s: seconds from the start of the trace, ``[N]``, finite and not negative.
        prompt_tokens: tokens of the prompt, ``[N]``, 1 to ``MAX_TOKENS``.
        output_tokens: tokens to generate per sample, ``[N]``, 1 to ``MAX_TOKENS``; where the samples of a
            request differ in length, its longest.
        n: parallel samples per request, ``[N]``; ones when left out.
        beam_width: beams per request, ``[N]``; ones when left out (no beam search).
        request_id: distinct names, ``[N]``; the row numbers when left out.
        hash_ids: for each request the ids of its prompt's blocks of ``hash_block_size`` tokens (Mooncake), at
            most one for each block that the prompt begins; a last block need not be full. Where there are
            fewer, the rest of the prompt is shared with no other. None when unknown.
        session_id: for each request the conversation it belongs to, or None when unknown.
        abort_s: when the client goes away, ``[N]``, infinity for never; or None when no client does.
        sample_tokens: for each request the tokens that each of its ``n`` samples generates, 1 to
            ``MAX_TOKENS``, the longest as ``output_tokens`` says; with beam search all are alike. None when
            the samples of every request are alike; given so, it becomes None.
        hash_block_size: prompt tokens that each of ``hash_ids`` stands for; means nothing without them.
        prefix_tokens: leading tokens of each prompt that are the same in all requests, ``[N]``, 0 for none to
            ``prompt_tokens``. None when it is 0 for all; given so, it becomes None.
        think_s: seconds from the end of a session's previous turn until a turn is sent, ``[N]``, 0 to
            ``MAX_THINK_S``, of no meaning for first turns; or None when all requests arrive at ``arrival_s``.
        priority: what a scheduler that serves by priority goes by, vLLM's the smallest first, SGLang's the
            largest, ``[N]``, within ``MAX_PRIORITY`` of 0. None when it is 0 for all; given so, it becomes
            None.
        notes: what was noticed or assumed while the trace was made (shown to the user, never silent).

    Raises:
        TraceError: a column's length, or a value, is out of bounds.
    """

    arrival_s: FloatColumn
    prompt_tokens: IntColumn
    output_tokens: IntColumn
    n: IntColumn = field(default_factory=lambda: np.empty(0, np.int64))
    beam_width: IntColumn = field(default_factory=lambda: np.empty(0, np.int64))
    request_id: npt.NDArray[Any] = field(default_factory=lambda: np.empty(0, np.int64))
    hash_ids: Sequence[tuple[int, ...]] | None = None
    session_id: npt.NDArray[Any] | None = None
    abort_s: FloatColumn | None = None
    sample_tokens: Sequence[tuple[int, ...]] | None = None
    hash_block_size: int = HASH_BLOCK_SIZE
    prefix_tokens: IntColumn | None = None
    think_s: FloatColumn | None = None
    priority: IntColumn | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        size = len(self.prompt_tokens)
        put = object.__setattr__
        put(self, "arrival_s", np.asarray(self.arrival_s, np.float64))
        for name in ("n", "beam_width"):
            if not len(getattr(self, name)):
                put(self, name, np.ones(size, np.int64))
        for name, (low, high) in WHOLE_NUMBERS.items():
            if (column := getattr(self, name)) is not None:
                column = np.asarray(column)
                good = (column >= low) & (column <= high) & _whole(column)
                self._check(name, column, good, f"a whole number from {low} to {high}")
                put(self, name, column.astype(np.int64) if low == 1 or column.any() else None)
        if self.prefix_tokens is not None:
            good = self.prefix_tokens <= self.prompt_tokens
            self._check("prefix_tokens", self.prefix_tokens, good, "at most prompt_tokens")
        if not len(self.request_id):
            put(self, "request_id", np.arange(size))
        times = self.arrival_s
        self._check("arrival_s", times, np.isfinite(times) & (times >= 0), "a finite time from 0 s")
        if self.abort_s is not None:
            put(self, "abort_s", np.asarray(self.abort_s, np.float64))
            self._check("abort_s", self.abort_s, self.abort_s >= self.arrival_s, "at or after arrival_s")
        ids, counts = np.unique(self.request_id, return_counts=True)
        if (counts > 1).any():
            raise TraceError(f"request_id {ids[counts > 1][0]} occurs {counts.max()} times; ids are distinct")
        for name in ("n", "beam_width", "request_id", "hash_ids", "session_id", "sample_tokens"):
            column = getattr(self, name)
            if column is not None and len(column) != size:
                raise TraceError(f"column {name} has {len(column)} values, prompt_tokens has {size}")
        self._settle_hash_ids()
        self._settle_samples()
        self._settle_thinking()
        if (np.diff(times) < 0).any():
            for name, column in self.columns_at(np.argsort(times, kind="stable")).items():
                put(self, name, column)

    def _settle_hash_ids(self) -> None:
        block_size = self.hash_block_size
        if not 1 <= block_size <= MAX_TOKENS or block_size % 1:
            raise TraceError(
                f"hash_block_size is {block_size}; it must be a whole number from 1 to {MAX_TOKENS}"
            )
        object.__setattr__(self, "hash_block_size", int(block_size))
        if self.hash_ids is None:
            return
        ids = [_whole_numbers("hash_ids", row, value) for row, value in enumerate(self.hash_ids)]
        most = -(-self.prompt_tokens // self.hash_block_size)
        for row in np.flatnonzero(np.fromiter(map(len, ids), np.int64, len(ids)) > most).tolist():
            raise TraceError(
                f"row {row}: hash_ids has {len(ids[row])} ids of {self.hash_block_size} tokens each; "
                f"a prompt of {self.prompt_tokens[row]} tokens has at most {most[row]}"
            )
        object.__setattr__(self, "hash_ids", ids)

    def _settle_samples(self) -> None:
        if self.sample_tokens is None:
            return
        lengths = [
            _whole_numbers("sample_tokens", row, value) for row, value in enumerate(self.sample_tokens)
        ]
        columns = (self.n.tolist(), self.output_tokens.tolist(), self.beam_width.tolist())
        for row, (own, n, longest, beams) in enumerate(zip(lengths, *columns, strict=True)):
            if len(own) != n or min(own) < 1 or max(own) != longest:
                raise TraceError(
                    f"row {row}: sample_tokens is {brief(own)}; it must be n lengths, {n}, from 1 to "
                    f"{MAX_TOKENS}, the longest as output_tokens, {longest}"
                )
            if beams > 1 and min(own) != longest:
                raise TraceError(
                    f"row {row}: sample_tokens is {brief(own)} and beam_width is {beams}; "
                    "with beam search all samples must be equally long"
                )
        alike = all(min(own) == max(own) for own in lengths)
        object.__setattr__(self, "sample_tokens", None if alike else lengths)

    def _settle_thinking(self) -> None:
        if self.think_s is None:
            return
        column = np.asarray(self.think_s, np.float64)
        good = (column >= 0) & (column <= MAX_THINK_S)
        self._check("think_s", column, good, f"a time from 0 to {MAX_THINK_S:g} s")
        if self.session_id is None:
            raise TraceError("think_s needs sessions: give the column session_id, too")
        object.__setattr__(self, "think_s", column)

    def _check(self, name: str, column: npt.NDArray[Any], good: npt.NDArray[np.bool_], wanted: str) -> None:
        if len(column) != len(self.prompt_tokens):
            raise TraceError(
                f"column {name} has {len(column)} values, prompt_tokens has {len(self.prompt_tokens)}"
            )
        if not good.all():
            row = int(np.argmin(good))
            raise TraceError(f"row {row}: {name} is {column[row]}; it must be {wanted}")

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    def __getitem__(self, row: int) -> Request:
        samples = () if self.sample_tokens is None else self.sample_tokens[row]
        return Request(
            request_id=self.request_id[row],
            arrival_s=float(self.arrival_s[row]),
            prompt_tokens=int(self.prompt_tokens[row]),
            output_tokens=int(self.output_tokens[row]),
            n=int(self.n[row]),
            beam_width=int(self.beam_width[row]),
            hash_ids=tuple(self.hash_ids[row]) if self.hash_ids is not None else (),
            session_id=None if self.session_id is None else self.session_id[row],
            abort_s=None if self.abort_s is None else float(self.abort_s[row]),
            sample_tokens=samples if len(set(samples)) > 1 else (),
            prefix_tokens=0 if self.prefix_tokens is None else int(self.prefix_tokens[row]),
            think_s=None if self.think_s is None else float(self.think_s[row]),
            priority=0 if self.priority is None else int(self.priority[row]),
            row=row,
        )

    def __iter__(self) -> Iterator[Request]:
        return (self[row] for row in range(len(self)))

    def take(self, rows: npt.NDArray[np.integer[Any]] | slice) -> Trace:
        """Return the trace of these rows only, sorted by arrival again."""
        if isinstance(rows, slice):
            rows = np.arange(len(self))[rows]
        return replace(self, **self.columns_at(rows))

    def columns_at(self, rows: npt.NDArray[np.integer[Any]]) -> dict[str, Any]:
        """Return all columns that the trace has, by name, each with only these rows, which may repeat."""
        found: dict[str, Any] = {}
        for f in fields(self):
            column = getattr(self, f.name)
            if isinstance(column, np.ndarray):
                found[f.name] = column[rows]
            elif isinstance(column, list):
                found[f.name] = [column[row] for row in rows]
        return found

    def with_columns(self, columns: Mapping[str, Any], note: str = "") -> Trace:
        """Return a copy with some columns replaced, and a note of why."""
        return replace(self, **columns, notes=(*self.notes, note) if note else self.notes)

    def with_outputs_cut(self, most: IntColumn, note: str = "") -> Trace:
        """Return a copy in which no sample of a request generates more than ``most``, ``[N]``, and a note."""
        columns: dict[str, Any] = {"output_tokens": np.minimum(self.output_tokens, most)}
        if self.sample_tokens is not None:
            columns["sample_tokens"] = [
                tuple(min(length, bound) for length in own)
                for own, bound in zip(self.sample_tokens, most.tolist(), strict=True)
            ]
        return self.with_columns(columns, note)


def _whole(column: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    whole: npt.NDArray[np.bool_] = (
        column == np.floor(column) if column.dtype.kind == "f" else np.ones(column.shape, bool)
    )
    return whole


def _whole_numbers(name: str, row: int, value: object) -> tuple[int, ...]:
    """Return a row's list of whole numbers as Python's own, which save and compare alike."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        found = tuple(value)
        if set(map(type, found)) <= {int}:
            return found
        found = tuple(v.item() if isinstance(v, np.integer) else v for v in found)
        if set(map(type, found)) <= {int}:
            return found
    raise TraceError(f"row {row}: {name} is {brief(value)}; it must be a list of whole numbers")
