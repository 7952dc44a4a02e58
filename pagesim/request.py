"""Request: one row of a trace; Trace: all of them, as columns in order of arrival."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pagesim.errors import TraceError

MAX_TOKENS = 10_000_000
"""More tokens than this in one prompt or output is taken for a mistake."""

MAX_SAMPLES = 1024
"""More samples or beams than this for one request is taken for a mistake."""

IntColumn = npt.NDArray[np.int64]
FloatColumn = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Request:
    """One request as a client sends it, with the output length that the model will turn out to produce."""

    request_id: int | str
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    n: int = 1
    beam_width: int = 1
    hash_ids: tuple[int, ...] = ()
    session_id: int | str | None = None
    abort_s: float | None = None


@dataclass(frozen=True)
class Trace:
    """Requests as columns of equal length, sorted by arrival (stable: equal arrivals keep their order).

    Args:
        arrival_s: seconds from the start of the trace, ``[N]``, finite and not negative.
        prompt_tokens: tokens of the prompt, ``[N]``, 1 to ``MAX_TOKENS``.
        output_tokens: tokens to generate per sample, ``[N]``, 1 to ``MAX_TOKENS``.
        n: parallel samples per request, ``[N]``; ones when left out.
        beam_width: beams per request, ``[N]``; ones when left out (no beam search).
        request_id: distinct names, ``[N]``; the row numbers when left out.
        hash_ids: for each request the ids of its prompt's blocks (Mooncake), or None when unknown.
        session_id: for each request the conversation it belongs to, or None when unknown.
        abort_s: when the client goes away, ``[N]``, infinity for never; or None when no client does.
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
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        size = len(self.prompt_tokens)
        put = object.__setattr__
        put(self, "arrival_s", np.asarray(self.arrival_s, np.float64))
        for name, bound in (
            ("prompt_tokens", MAX_TOKENS),
            ("output_tokens", MAX_TOKENS),
            ("n", MAX_SAMPLES),
            ("beam_width", MAX_SAMPLES),
        ):
            column = np.asarray(getattr(self, name))
            if name in ("n", "beam_width") and not len(column):
                column = np.ones(size, np.int64)
            self._check(name, column, (column >= 1) & (column <= bound), f"a whole number from 1 to {bound}")
            put(self, name, column.astype(np.int64))
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
        for name in ("n", "beam_width", "request_id", "hash_ids", "session_id"):
            column = getattr(self, name)
            if column is not None and len(column) != size:
                raise TraceError(f"column {name} has {len(column)} values, prompt_tokens has {size}")
        if (np.diff(times) < 0).any():
            order = np.argsort(times, kind="stable")
            for f in fields(self):
                column = getattr(self, f.name)
                if isinstance(column, np.ndarray):
                    put(self, f.name, column[order])
            if self.hash_ids is not None:
                put(self, "hash_ids", [self.hash_ids[i] for i in order])

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
        )

    def __iter__(self) -> Iterator[Request]:
        return (self[row] for row in range(len(self)))

    def take(
        self, rows: npt.NDArray[np.integer[Any]] | slice, request_id: npt.NDArray[Any] | None = None
    ) -> Trace:
        """Return the trace of these rows only, sorted by arrival again.

        Args:
            rows: indices, ``[M]``, or a slice.
            request_id: new names, ``[M]``, without which no row can be taken twice.
        """
        if isinstance(rows, slice):
            rows = np.arange(len(self))[rows]
        changes: dict[str, Any] = {
            f.name: column[rows]
            for f in fields(self)
            if isinstance(column := getattr(self, f.name), np.ndarray)
        }
        if self.sample_tokens is not None:
            changes["sample_tokens"] = [self.sample_tokens[i] for i in rows]
        if self.hash_ids is not None:
            changes["hash_ids"] = [self.hash_ids[i] for i in rows]
        if request_id is not None:
            changes["request_id"] = request_id
        return replace(self, **changes)

    def with_columns(self, columns: Mapping[str, Any], note: str = "") -> Trace:
        """Return a copy with some columns replaced, and a note of why."""
        return replace(self, **columns, notes=(*self.notes, note) if note else self.notes)
