"""The formats that can be read; each is recognised by the columns that a file has, never by its name."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from pagesim.errors import TraceError
from pagesim.workloads import (
    aiperf,
    bailian,
    llmservingsim,
    spans,
    tables,
    texts,
    weka,
)
from pagesim.workloads.rows import Rows, listed
from pagesim.workloads.source import PAIR
from pagesim.workloads.tokenizer import counter


@dataclass(frozen=True)
class TextOptions:
    """How formats that hold text are read: which turns of a conversation, counted with which tokenizer."""

    turns: texts.TurnChoice = "first"
    tokenizer: str | None = None


@dataclass(frozen=True)
class Format:
    """One format: a sentence on it, the columns that tell it (one of each group), and its reader.

    In a format of closed loops only the first turn of a session has a time of its own.
    """

    description: str
    told_by: tuple[Collection[str], ...]
    read: Callable[[Rows, TextOptions], dict[str, Any]]
    closed_loop: bool = False

    def fits(self, rows: Rows) -> bool:
        """Whether the file has a column of each group."""
        return all(any(name in rows.columns for name in group) for group in self.told_by)


def _each(*names: str) -> tuple[Collection[str], ...]:
    """Return that every one of these columns tells a format."""
    return tuple([name] for name in names)


READERS: dict[str, Format] = {
    "azure": Format(
        "Azure LLM inference traces 2023 and 2024 (CSV: TIMESTAMP, ContextTokens, GeneratedTokens)",
        (["timestamp"], ["contexttokens"], ["generatedtokens"]),
        lambda rows, _: tables.read_azure(rows),
    ),
    "burstgpt": Format(
        "BurstGPT (CSV: Timestamp in seconds, Request tokens, Response tokens, in newer files Session ID and "
        "Elapsed time; failed requests are left out)",
        (["timestamp"], ["request tokens"], ["response tokens"]),
        lambda rows, _: tables.read_burstgpt(rows),
    ),
    "qwen-bailian": Format(
        "Qwen-Bailian (JSON lines: timestamp in seconds, input_length, output_length, chat_id, "
        "parent_chat_id, hash_ids of 16-token blocks)",
        (["chat_id"], ["parent_chat_id"], ["timestamp"], ["input_length"], ["output_length"]),
        lambda rows, _: bailian.read_bailian(rows),
    ),
    "aiperf": Format(
        "AIPerf's sessions (JSON lines: session_id, input_length, output_length, delay in ms before later "
        "turns, hash_ids of 512-token blocks)",
        _each("session_id", "input_length", "output_length", "delay"),
        lambda rows, _: aiperf.read_aiperf(rows),
        closed_loop=True,
    ),
    "weka": Format(
        "Weka's and AgentX's coding agents (JSON lines or JSON: id, block_size, hash_id_scope, requests with "
        "t, in, out, api_time, hash_ids, and subagents with requests of their own)",
        _each("id", "block_size", "hash_id_scope", "requests"),
        lambda rows, _: weka.read_weka(rows),
        closed_loop=True,
    ),
    "otel": Format(
        "OpenTelemetry GenAI spans (OTLP JSON lines: resourceSpans, with gen_ai.usage.input_tokens and "
        "gen_ai.conversation.id)",
        (["resourcespans"],),
        lambda rows, _: spans.read_spans(rows),
        closed_loop=True,
    ),
    "mooncake": Format(
        "Mooncake (JSON lines: timestamp in ms, input_length, output_length, hash_ids of 512-token blocks)",
        (["timestamp"], ["input_length"], ["output_length"]),
        lambda rows, _: tables.MOONCAKE.read(rows),
    ),
    "llmservingsim": Format(
        "LLMServingSim (JSON lines: arrival_time_ns, input_toks, output_toks, input_tok_ids; or sessions of "
        "sub_requests with tool_duration_ns between them)",
        (["arrival_time_ns"], ["input_toks", "sub_requests"]),
        lambda rows, _: llmservingsim.read_llmservingsim(rows),
        closed_loop=True,
    ),
    "vidur": Format(
        "Vidur (CSV: arrived_at in seconds, num_prefill_tokens, num_decode_tokens)",
        (["num_prefill_tokens"], ["num_decode_tokens"]),
        lambda rows, _: tables.VIDUR.read(rows),
    ),
    "splitwise": Format(
        "Splitwise's simulator (CSV: arrival_timestamp in seconds, prompt_size, token_size)",
        (["prompt_size"], ["token_size"]),
        lambda rows, _: tables.SPLITWISE.read(rows),
    ),
    "sharegpt": Format(
        "conversations: ShareGPT's, LMSYS-Chat's, WildChat's, OpenAI's messages (JSON: text; the first turn "
        "of each, or all of them)",
        (texts.CONVERSATIONS,),
        lambda rows, options: texts.read_sharegpt(rows, counter(options.tokenizer), options.turns),
    ),
    "dolly": Format(
        "Dolly instructions (JSON lines: text of instruction, context and response)",
        _each("instruction", "response"),
        lambda rows, options: texts.read_instructions(
            rows, counter(options.tokenizer), "context", "response"
        ),
    ),
    "alpaca": Format(
        "Alpaca instructions (JSON: text of instruction, input and output)",
        (["instruction"], ["output"]),
        lambda rows, options: texts.read_instructions(rows, counter(options.tokenizer), "input", "output"),
    ),
    "lmbenchmark": Format(
        "LMBenchmark turns (JSON: text of input, output_length)",
        (["input"], ["output_length"]),
        lambda rows, options: texts.read_prompts(rows, counter(options.tokenizer), "input", "output_length"),
    ),
    "pairs": Format(
        "a JSON list of [input tokens, output tokens] pairs",
        ([PAIR[0]], [PAIR[1]]),
        lambda rows, _: tables.PAIRS.read(rows),
    ),
    "pagesim": Format(
        "our own columns (CSV, Parquet, JSON or JSON lines): prompt_tokens (or prompt_len, input_len), "
        "output_tokens (or output_len; 518;66 for samples of two lengths), "
        f"and as wanted {', '.join(tables.OPTIONAL)}",
        (tables.PROMPT_NAMES, tables.OUTPUT_NAMES),
        lambda rows, _: tables.read_own(rows),
    ),
    "prompts": Format(
        "vLLM's prompts and custom datasets (JSON lines: text of prompt, output_tokens; without, 256)",
        (["prompt"],),
        lambda rows, options: texts.read_prompts(
            rows,
            counter(options.tokenizer),
            "prompt",
            next((name for name in tables.OUTPUT_NAMES if name in rows.columns), None),
        ),
    ),
}

FORMATS: dict[str, str] = {name: format.description for name, format in READERS.items()}
"""Name of each format that can be read, and a sentence on it."""


UNKNOWN = "the format is not recognised"
"""What is said of a file that is in none of the formats."""


def not_used(rows: Rows, format: Format) -> tuple[str, ...]:
    """Return notes of the columns that a format did not read, and of another format that they tell."""
    unused = [name for name in rows.columns if name not in rows.used]
    if not unused:
        return ()
    notes = [f"columns not used: {listed(unused, 300)}"]
    for name, other in READERS.items():
        told = {column for group in other.told_by for column in group if column in rows.columns}
        if other is not format and other.fits(rows) and not told <= rows.used:
            own = next(known for known, each in READERS.items() if each is format)
            notes.append(f"the columns are those of two formats, {own} and {name}: read as {own}")
            break
    return tuple(notes)


def recognise(rows: Rows) -> Format:
    """Return the first format whose columns the file has.

    Raises:
        TraceError: none has them; the message names the columns found and the formats.
    """
    for format in READERS.values():
        if format.fits(rows):
            return format
    raise TraceError(
        f"{rows.path}: {UNKNOWN}: its columns are {listed(rows.columns)}; "
        f"a trace has prompt_tokens and output_tokens, or is in one of the formats {', '.join(READERS)}"
    )
