"""Readers of tables of lengths: our own columns, and the logs that others published."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pagesim.workloads.rows import Rows, shown
from pagesim.workloads.sessions import thinking_between
from pagesim.workloads.source import PAIR
from pagesim.workloads.trace import (
    HASH_BLOCK_SIZE,
    MAX_PRIORITY,
    MAX_SAMPLES,
    MAX_THINK_S,
    MAX_TOKENS,
    FloatColumn,
    IntColumn,
)
from pagesim.workloads.values import (
    Column,
    flags,
    id_list,
    is_missing,
    length_list,
    names,
    numbers,
    stamps,
)

PROMPT_NAMES = (
    "prompt_tokens",
    "prompt_len",
    "prompt_length",
    "num_prompt_tokens",
    "input_tokens",
    "input_len",
    "input_length",
)
OUTPUT_NAMES = (
    "output_tokens",
    "output_len",
    "output_length",
    "num_output_tokens",
    "completion_tokens",
    "max_tokens",
)
OPTIONAL = (
    "request_id",
    "arrival_s",
    "n",
    "beam_width",
    "use_beam_search",
    "hash_ids",
    "hash_block_size",
    "prefix_tokens",
    "session_id",
    "think_s",
    "priority",
    "abort_s",
)


def first_name(rows: Rows, allowed: tuple[str, ...]) -> str:
    """Return the first of these names that is a column of the file."""
    return next(name for name in allowed if name in rows.columns)


def read_own(rows: Rows) -> dict[str, Any]:
    """Read ``prompt_tokens`` and ``output_tokens`` (or another name for each), and any of ``OPTIONAL``.

    An output may be several lengths, one a sample: ``518;66`` or a list.
    """
    prompt, output = first_name(rows, PROMPT_NAMES), first_name(rows, OUTPUT_NAMES)
    columns: dict[str, Any] = {}
    if "arrival_s" in rows.columns:
        columns["arrival_s"] = rows.seconds("arrival_s")
    columns["prompt_tokens"] = rows.tokens(prompt)
    columns.update(_samples(rows, output))
    constants = {}
    if "hash_ids" in rows.columns:
        constants["hash_block_size"] = _hash_block_size(rows)
        columns["hash_ids"] = hash_ids(rows, columns["prompt_tokens"], constants["hash_block_size"])
    if "prefix_tokens" in rows.columns:
        columns["prefix_tokens"] = _prefix_tokens(rows, columns["prompt_tokens"])
    if "session_id" in rows.columns:
        columns["session_id"] = names(rows.column("session_id"))
    if "think_s" in rows.columns:
        columns["think_s"] = _thinking(rows)
    if "priority" in rows.columns:
        columns["priority"] = rows.whole_numbers("priority", -MAX_PRIORITY, MAX_PRIORITY)
    if "abort_s" in rows.columns:
        columns["abort_s"] = _aborts(rows, columns.get("arrival_s", np.zeros(len(rows))))
    if "request_id" in rows.columns:
        columns["request_id"] = rows.distinct("request_id")
    return {**rows.settled(columns), **constants}


class LogColumns(NamedTuple):
    """What a published log calls its columns.

    Args:
        prompt, output: of tokens.
        arrival: of times; a file may lack it.
        per_second: units of a time in one second.
        block_size: prompt tokens that an id of ``hash_ids`` stands for; 0 where a log has no such column.
    """

    prompt: str
    output: str
    arrival: str = ""
    per_second: float = 1
    block_size: int = 0

    def read(self, rows: Rows, **further: Any) -> dict[str, Any]:
        """Return the columns of the rows to use, and further ones, each ``[N]``."""
        columns: dict[str, Any] = {}
        if self.arrival in rows.columns and "arrival_s" not in further:
            columns["arrival_s"] = rows.seconds(self.arrival, self.per_second)
        columns["prompt_tokens"] = rows.tokens(self.prompt)
        columns["output_tokens"] = rows.tokens(self.output)
        if not self.block_size or "hash_ids" not in rows.columns:
            return rows.settled({**columns, **further})
        columns["hash_ids"] = hash_ids(rows, columns["prompt_tokens"], self.block_size)
        return {**rows.settled({**columns, **further}), "hash_block_size": self.block_size}


PAIRS = LogColumns(*PAIR)
AZURE = LogColumns("contexttokens", "generatedtokens", "timestamp")
BURSTGPT = LogColumns("request tokens", "response tokens", "timestamp")
MOONCAKE = LogColumns("input_length", "output_length", "timestamp", 1000, HASH_BLOCK_SIZE)
QWEN_BAILIAN = LogColumns("input_length", "output_length", "timestamp", block_size=16)
VIDUR = LogColumns("num_prefill_tokens", "num_decode_tokens", "arrived_at")
SPLITWISE = LogColumns("prompt_size", "token_size", "arrival_timestamp")


def read_azure(rows: Rows) -> dict[str, Any]:
    """Read Azure's CSV: dates with seven digits of a second, which become seconds from the first row."""
    times, good, zoned = stamps(rows.column("timestamp"))
    rows.reject_values("timestamp", good, "a date and time such as 2023-11-16 18:15:46.6805900")
    bare = int((good & ~zoned).sum())
    if 0 < bare < int(good.sum()):
        rows.notes.append(
            f"timestamp: {bare} of {len(rows)} rows name no time zone, and others do: read as UTC"
        )
    columns = AZURE.read(rows, arrival_s=times)
    # Whole nanoseconds until here: a difference of two floats of that size would be off by 100 ns.
    columns["arrival_s"] = (columns["arrival_s"] - columns["arrival_s"].min()) / 1e9
    return columns


def read_burstgpt(rows: Rows) -> dict[str, Any]:
    """Read BurstGPT's CSV; a request that failed has 0 response tokens there, and is left out.

    Times are counted from the first request that is kept. Newer files have sessions, and how long each
    request took: the rest of the time between two turns is ``think_s``.
    """
    rows.leave_out(
        numbers(rows.column("response tokens")) == 0, "0 response tokens mark a request that failed"
    )
    further: dict[str, Any] = {}
    if "session id" in rows.columns:
        further["session_id"] = names(rows.column("session id"))
    if "session id" in rows.columns and "elapsed time" in rows.columns:
        given = [0 if is_missing(v) else v for v in rows.column("elapsed time")]
        rows.columns = {**rows.columns, "elapsed time": given}
        further["elapsed"] = rows.seconds("elapsed time")
    columns = BURSTGPT.read(rows, **further)
    columns["arrival_s"] = columns["arrival_s"] - columns["arrival_s"].min()
    if "elapsed" not in columns:
        return columns
    order = np.argsort(columns["arrival_s"], kind="stable")
    columns = {name: column[order] for name, column in columns.items()}
    start = columns["arrival_s"]
    over = start + columns.pop("elapsed")
    columns["think_s"] = thinking_between(columns["session_id"].tolist(), start, over)
    return columns


def _samples(rows: Rows, output: str) -> dict[str, Any]:
    """Read how many samples or beams a request has, and how many tokens each generates."""
    lengths = _lengths(rows, output)
    columns: dict[str, Any] = {"output_tokens": rows.tokens(output)}
    ones = np.ones(len(rows), np.int64)
    width = rows.whole_numbers("beam_width", 1, MAX_SAMPLES) if "beam_width" in rows.columns else ones
    beam = np.zeros(len(rows), bool)
    if "use_beam_search" in rows.columns:
        beam, good = flags(rows.column("use_beam_search"))
        rows.reject_values("use_beam_search", good, "true or false, 1 or 0")
    if "n" in rows.columns:
        n = rows.whole_numbers("n", 1, MAX_SAMPLES)
    else:
        n = ones.copy()
        for row, own in lengths.items():
            if width[row] == 1:  # else the lengths are those of its beams
                n[row] = len(own)
    rows.reject(
        beam & (width != 1) & (width != n) & (n != 1),
        lambda row: f"beam_width is {width[row]} and n is {n[row]}; with use_beam_search they must be equal",
    )
    width = columns["beam_width"] = np.where(beam, np.maximum(n, width), width)
    _check_lengths(rows, output, lengths, n, width)
    n = columns["n"] = np.where(beam, 1, n)
    if any(len(set(own)) > 1 for own in lengths.values()):
        longest = columns["output_tokens"].tolist()
        columns["sample_tokens"] = [
            lengths[row] if len(lengths.get(row, ())) == size else (longest[row],) * size
            for row, size in enumerate(n.tolist())
        ]
    return columns


def _lengths(rows: Rows, output: str) -> dict[int, tuple[int, ...]]:
    """Return the lengths of the rows that list several, and leave the longest in their place."""
    values = rows.column(output)
    if isinstance(values, np.ndarray):
        return {}
    lists = {row: found for row, v in enumerate(values) if (found := length_list(v)) is not None}
    if not lists:
        return {}
    good = {row: own for row, own in lists.items() if own and all(1 <= v <= MAX_TOKENS for v in own)}
    wrong = np.zeros(len(rows), bool)
    wrong[[row for row in lists if row not in good]] = True
    rows.reject_values(output, ~wrong, f"a whole number from 1 to {MAX_TOKENS}, or one for each sample")
    longest = {row: max(good.get(row, (1,))) for row in lists}
    rows.columns = {**rows.columns, output: [longest.get(row, v) for row, v in enumerate(values)]}
    return good


def _check_lengths(
    rows: Rows, output: str, lengths: dict[int, tuple[int, ...]], n: IntColumn, width: IntColumn
) -> None:
    """Reject rows with another number of lengths than samples, and beams that end one before another."""
    count, alike = np.ones(len(rows), np.int64), np.ones(len(rows), bool)
    for row, own in lengths.items():
        count[row], alike[row] = len(own), len(set(own)) == 1

    def written(row: int) -> str:
        return f"{output} {shown(';'.join(map(str, lengths[row])))}"

    rows.reject(
        count > MAX_SAMPLES,
        lambda row: f"{written(row)}, {count[row]} lengths; it must be at most {MAX_SAMPLES}",
    )
    rows.reject(
        (count != 1) & (count != n) & ((width == 1) | (count != width)),
        lambda row: (
            f"{written(row)}, {count[row]} lengths, and n is {n[row]}; "
            "it must be one length, or one for each sample"
        ),
    )
    rows.reject(
        (width > 1) & ~alike,
        lambda row: f"{written(row)}, and beam_width is {width[row]}; all beams are equally long",
    )


def _hash_block_size(rows: Rows) -> int:
    """Return the one number that the column holds."""
    if "hash_block_size" not in rows.columns:
        return HASH_BLOCK_SIZE
    sizes = rows.whole_numbers("hash_block_size", 1, MAX_TOKENS)
    good = sizes[~rows.bad]
    if not len(good):
        return HASH_BLOCK_SIZE
    rows.reject_values("hash_block_size", sizes == good[0], f"the same in every row, here {good[0]}")
    return int(good[0])


def hash_ids(rows: Rows, prompt_tokens: IntColumn, block_size: int) -> list[tuple[int, ...]]:
    """Return the ids of each prompt's blocks, at most one for each block that the prompt begins."""
    ids = [id_list(v) for v in rows.column("hash_ids")]
    rows.reject_values("hash_ids", np.array([v is not None for v in ids], bool), "a list of whole numbers")
    count = np.array([len(v or ()) for v in ids], np.int64)
    most = -(-prompt_tokens // block_size)
    rows.reject(
        count > most,
        lambda row: (
            f"hash_ids has {count[row]} ids of {block_size} tokens each; "
            f"a prompt of {prompt_tokens[row]} tokens has at most {most[row]}"
        ),
    )
    return [v or () for v in ids]


def _prefix_tokens(rows: Rows, prompt_tokens: IntColumn) -> IntColumn:
    prefix = rows.whole_numbers("prefix_tokens", 0, MAX_TOKENS)
    rows.reject(
        prefix > prompt_tokens,
        lambda row: f"prefix_tokens is {prefix[row]}; it must be at most the prompt's {prompt_tokens[row]}",
    )
    return prefix


def _thinking(rows: Rows) -> FloatColumn:
    """Read how long clients think before a turn; nothing stands for 0, as before a first turn."""
    raw: Column = rows.column("think_s")
    none = np.array([is_missing(v) for v in raw], bool)
    times = np.where(none, 0.0, numbers(raw))
    good = (times >= 0) & (times <= MAX_THINK_S)
    rows.reject_values("think_s", good, f"a time from 0 to {MAX_THINK_S:g} s, or nothing for 0")
    return np.where(good, times, 0.0)


def _aborts(rows: Rows, arrival_s: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    raw: Column = rows.column("abort_s")
    never = np.array([is_missing(v) for v in raw], bool)
    times = np.where(never, np.inf, numbers(raw))
    rows.reject_values("abort_s", times >= arrival_s, "a time at or after arrival_s, or nothing for never")
    return times
