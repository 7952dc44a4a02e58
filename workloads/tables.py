"""Readers of tables of lengths: our own columns, and the logs that others published."""

from __future__ import annotations

from typing import Any

import numpy as np

from pagesim.request import MAX_SAMPLES
from pagesim.workloads.rows import Rows, listed
from pagesim.workloads.source import PAIR
from pagesim.workloads.values import Column, flags, id_list, is_missing, names, numbers, stamps

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
    "session_id",
    "abort_s",
)


def first_name(rows: Rows, allowed: tuple[str, ...]) -> str:
    """Return the first of these names that is a column of the file."""
    return next(name for name in allowed if name in rows.columns)


def read_own(rows: Rows) -> dict[str, Any]:
    """Read ``prompt_tokens`` and ``output_tokens`` (or another name for each), and any of ``OPTIONAL``."""
    prompt, output = first_name(rows, PROMPT_NAMES), first_name(rows, OUTPUT_NAMES)
    _one_length_per_sample(rows, output)
    columns: dict[str, Any] = {}
    if "arrival_s" in rows.columns:
        columns["arrival_s"] = rows.seconds("arrival_s")
    columns["prompt_tokens"] = rows.tokens(prompt)
    columns["output_tokens"] = rows.tokens(output)
    columns.update(_samples(rows))
    if "hash_ids" in rows.columns:
        columns["hash_ids"] = _hash_ids(rows)
    if "session_id" in rows.columns:
        columns["session_id"] = names(rows.column("session_id"))
    if "abort_s" in rows.columns:
        columns["abort_s"] = _aborts(rows, columns.get("arrival_s", np.zeros(len(rows))))
    if "request_id" in rows.columns:
        columns["request_id"] = rows.distinct("request_id")
    ignored = [name for name in rows.columns if name not in (prompt, output, *OPTIONAL)]
    if ignored:
        rows.notes.append(f"columns not used: {listed(ignored, 300)}")
    return rows.settled(columns)


def read_pairs(rows: Rows) -> dict[str, Any]:
    """Read a list of ``[in, out]`` pairs."""
    return rows.settled({"prompt_tokens": rows.tokens(PAIR[0]), "output_tokens": rows.tokens(PAIR[1])})


def read_azure(rows: Rows) -> dict[str, Any]:
    """Read Azure's CSV: dates with seven digits of a second, which become seconds from the first row."""
    times, good = stamps(rows.column("timestamp"))
    rows.reject_values("timestamp", good, "a date and time such as 2023-11-16 18:15:46.6805900")
    columns = rows.settled(
        {
            "arrival_s": times,
            "prompt_tokens": rows.tokens("contexttokens"),
            "output_tokens": rows.tokens("generatedtokens"),
        }
    )
    # Whole nanoseconds until here: a difference of two floats of that size would be off by 100 ns.
    columns["arrival_s"] = (columns["arrival_s"] - columns["arrival_s"].min()) / 1e9
    return columns


def read_burstgpt(rows: Rows) -> dict[str, Any]:
    """Read BurstGPT's CSV; a request that failed has 0 response tokens there, and is left out."""
    rows.leave_out(
        numbers(rows.column("response tokens")) == 0, "0 response tokens mark a request that failed"
    )
    return rows.settled(
        {
            "arrival_s": rows.seconds("timestamp"),
            "prompt_tokens": rows.tokens("request tokens"),
            "output_tokens": rows.tokens("response tokens"),
        }
    )


def read_mooncake(rows: Rows) -> dict[str, Any]:
    """Read Mooncake's JSON lines: times in ms, and the ids of each prompt's blocks of 512 tokens."""
    columns: dict[str, Any] = {
        "arrival_s": rows.seconds("timestamp", per_second=1000),
        "prompt_tokens": rows.tokens("input_length"),
        "output_tokens": rows.tokens("output_length"),
    }
    if "hash_ids" in rows.columns:
        columns["hash_ids"] = _hash_ids(rows)
    return rows.settled(columns)


def read_vidur(rows: Rows) -> dict[str, Any]:
    """Read Vidur's CSV; arrivals may be absent."""
    return _log(rows, "arrived_at", "num_prefill_tokens", "num_decode_tokens")


def read_splitwise(rows: Rows) -> dict[str, Any]:
    """Read the CSV of Splitwise's simulator; arrivals may be absent."""
    return _log(rows, "arrival_timestamp", "prompt_size", "token_size")


def _log(rows: Rows, arrival: str, prompt: str, output: str) -> dict[str, Any]:
    columns: dict[str, Any] = {"arrival_s": rows.seconds(arrival)} if arrival in rows.columns else {}
    columns["prompt_tokens"] = rows.tokens(prompt)
    columns["output_tokens"] = rows.tokens(output)
    return rows.settled(columns)


def _one_length_per_sample(rows: Rows, output: str) -> None:
    """Read ``518;518``, one length a sample, as 518; samples of different lengths are no request of ours."""
    values = rows.column(output)
    if isinstance(values, np.ndarray):
        return
    listed = {row: v.split(";") for row, v in enumerate(values) if isinstance(v, str) and ";" in v}
    same = {row: parts[0] for row, parts in listed.items() if len({p.strip() for p in parts}) == 1}
    mixed = np.zeros(len(rows), bool)
    mixed[[row for row in listed if row not in same]] = True
    rows.reject_values(output, ~mixed, "one length, the same for every sample")
    if same:
        rows.columns = {**rows.columns, output: [same.get(row, v) for row, v in enumerate(values)]}


def _samples(rows: Rows) -> dict[str, Any]:
    columns: dict[str, Any] = {
        name: rows.whole_numbers(name, 1, MAX_SAMPLES) for name in ("n", "beam_width") if name in rows.columns
    }
    if "use_beam_search" not in rows.columns:
        return columns
    beam, good = flags(rows.column("use_beam_search"))
    rows.reject_values("use_beam_search", good, "true or false, 1 or 0")
    ones = np.ones(len(rows), np.int64)
    n, width = columns.get("n", ones), columns.get("beam_width", ones)
    rows.reject(
        beam & (width != 1) & (width != n) & (n != 1),
        lambda row: f"beam_width is {width[row]} and n is {n[row]}; with use_beam_search they must be equal",
    )
    columns["beam_width"] = np.where(beam, np.maximum(n, width), width)
    columns["n"] = np.where(beam, 1, n)
    return columns


def _hash_ids(rows: Rows) -> list[tuple[int, ...]]:
    ids = [id_list(v) for v in rows.column("hash_ids")]
    rows.reject_values("hash_ids", np.array([v is not None for v in ids], bool), "a list of whole numbers")
    return [v or () for v in ids]


def _aborts(rows: Rows, arrival_s: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    raw: Column = rows.column("abort_s")
    never = np.array([is_missing(v) for v in raw], bool)
    times = np.where(never, np.inf, numbers(raw))
    rows.reject_values("abort_s", times >= arrival_s, "a time at or after arrival_s, or nothing for never")
    return times
