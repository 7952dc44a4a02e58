"""Requests: which requests of a trace an engine accepts, in which form, and when clients abort them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pagesim.errors import PagesimError
from pagesim.scheduling.core import Scheduler
from pagesim.setup.engine_config import EngineConfig
from pagesim.sim.clock import LONGEST_S, to_tick_column
from pagesim.workloads.trace import IntColumn, Trace

SHORT_OF_LONGEST = 2
"""Tokens short of max_model_len at which SGLang ends a sequence."""


class Intake(NamedTuple):
    """Requests as an engine sees them.

    Attributes:
        trace: one row per request; notes say what was changed.
        request_of: row of the original trace that each row is, or is a sample of, ``[N]``.
    """

    trace: Trace
    request_of: IntColumn


def take_in(trace: Trace, config: EngineConfig) -> Intake:
    """Return the requests of a trace as an engine sees them.

    The trait `Scheduler.samples` decides how samples are treated. Outputs that the engine ends early are cut
    short.

    Raises:
        PagesimError: there are no requests, one arrives too late, or the engine cannot serve one's kind.
    """
    name, scheduler, max_model_len = config.policy.scheduler, config.scheduler, config.max_model_len
    num_blocks, block_size = config.capacity.num_blocks, config.capacity.block_size
    if not len(trace):
        raise PagesimError("the trace holds no requests")
    if trace.arrival_s[-1] > LONGEST_S:
        raise PagesimError(
            f"request {trace.request_id[-1]}: arrival_s is {trace.arrival_s[-1]:g}; "
            f"it must be at most {LONGEST_S:g} s, the longest time that is simulated"
        )
    _check_beams(trace, name, scheduler)
    intake = Intake(trace, np.arange(len(trace)))
    if scheduler.samples == "one" and int(trace.n.max()) > 1:
        row = int(np.argmax(trace.n > 1))
        raise PagesimError(
            f"request {trace.request_id[row]}: n is {trace.n[row]}; under scheduler {name} it must be 1: the "
            "engine's front end sends the prompt first and its samples then, which is not simulated"
        )
    if scheduler.samples == "requests":
        intake = _split_samples(trace, name)
    elif scheduler.samples == "together" and trace.sample_tokens is not None:
        note = "samples of a request run as long as the longest: this engine ends them together"
        intake = intake._replace(trace=trace.with_columns({"sample_tokens": None}, note))
    trace = intake.trace
    most = scheduler.most_output(trace.prompt_tokens, max_model_len, num_blocks, block_size)
    if most is None:
        return intake
    longest = scheduler.longest_sequence(max_model_len) or max_model_len
    cache = f"the KV cache, {num_blocks} blocks of {block_size} tokens"
    return intake._replace(trace=_cut(trace, most, longest, f"max_model_len, {max_model_len}", cache))


def accepted_rows(trace: Trace, scheduler: Scheduler) -> IntColumn:
    """Return the rows of the requests that the scheduler does not reject at submission, in order."""
    samples = np.maximum(trace.n, trace.beam_width)
    columns = [map(int, column) for column in (trace.prompt_tokens, trace.output_tokens, samples)]
    accepted = (not scheduler.refusal(*request) for request in zip(*columns, strict=True))
    return np.flatnonzero(np.fromiter(accepted, bool, len(trace)))


def blocking(trace: Trace, scheduler: Scheduler) -> str:
    """Return a note on prompts that the engine accepts but that never fit; empty if there are none."""
    prompts, where = np.unique(trace.prompt_tokens, return_inverse=True)
    never = np.array([scheduler.never_fits(tokens) for tokens in prompts.tolist()], bool)[where]
    if not never.any():
        return ""
    row, page = int(np.argmax(never)), scheduler.memory.block_size
    return (
        f"{int(never.sum())} prompts are accepted and never fit, the first that of request "
        f"{trace.request_id[row]}, {trace.prompt_tokens[row]} tokens: the engine leaves a page of {page} "
        f"tokens free beside a prompt, and the KV cache has {scheduler.memory.num_blocks * page}; such a "
        "request and all behind it wait until its client goes away, in the real engine, too"
    )


def aborts(trace: Trace, client_timeout: float | None) -> list[tuple[int, int]]:
    """Return (ticks, row) of client aborts, ordered by time and then by row."""
    when = np.full(len(trace), np.inf) if trace.abort_s is None else trace.abort_s
    if client_timeout is not None:
        when = np.minimum(when, trace.arrival_s + client_timeout)
    rows = np.flatnonzero(when <= LONGEST_S)
    rows = rows[np.argsort(when[rows], kind="stable")]
    return list(zip(to_tick_column(when[rows]).tolist(), rows.tolist(), strict=True))


def _check_beams(trace: Trace, name: str, scheduler: type[Scheduler]) -> None:
    wide = trace.beam_width > 1
    if not wide.any():
        return
    if not scheduler.has_beams:
        row = int(np.argmax(wide))
        raise PagesimError(
            f"request {trace.request_id[row]}: beam_width is {trace.beam_width[row]}; scheduler {name} knows "
            "no beam search, so it must be 1 (vllm-v0 and vllm-sosp have it)"
        )
    more = wide & (trace.n > trace.beam_width)
    if more.any():
        row = int(np.argmax(more))
        raise PagesimError(
            f"request {trace.request_id[row]}: n is {trace.n[row]}; of {trace.beam_width[row]} beams no more "
            "than that many can be returned"
        )


def _split_samples(trace: Trace, name: str) -> Intake:
    """Return a trace in which every sample is a request, whose id is the request's plus a sample number."""
    if int(trace.n.max()) == 1:
        return Intake(trace, np.arange(len(trace)))
    rows = np.repeat(np.arange(len(trace)), trace.n)
    number = np.arange(len(rows)) - np.repeat(np.cumsum(trace.n) - trace.n, trace.n)
    single = trace.n[rows] == 1
    ids = [
        str(name) if alone else f"{name}.{k}"
        for name, k, alone in zip(trace.request_id[rows], number.tolist(), single, strict=True)
    ]
    outputs = trace.output_tokens[rows]
    if trace.sample_tokens is not None:
        outputs = np.concatenate([np.asarray(tokens) for tokens in trace.sample_tokens])
    columns = {
        **trace.columns_at(rows),
        "request_id": np.array(ids, dtype=object),
        "n": np.ones(len(rows), np.int64),
        "output_tokens": outputs,
        "sample_tokens": None,
    }
    note = f"{len(trace)} requests became {len(rows)}: {name} serves every sample as a request of its own"
    return Intake(trace.with_columns(columns, note), rows)


def _cut(trace: Trace, most: IntColumn, longest: int, model: str, cache: str) -> Trace:
    """Return the trace with outputs that the engine ends early cut to the tokens it generates.

    Args:
        trace: the requests.
        most: most tokens that the engine generates for each prompt, ``[N]``.
        longest: most tokens of a sequence, regardless of the cache.
        model: description of that limit, for the note.
        cache: description of the limit if the cache holds less, for the note.
    """
    ends = trace.prompt_tokens + most
    cut = most < trace.output_tokens
    if not cut.any():
        return trace
    told = cut & (ends <= longest)  # longer prompts are rejected and generate no output
    note = ""
    if told.any():
        end = int(ends[told].max())
        limit = model if end >= longest - SHORT_OF_LONGEST else cache
        note = f"{int(told.sum())} outputs cut: the engine ends a sequence at {end} tokens, by {limit}"
    return trace.with_outputs_cut(most, note)
