"""One call from a name or a path to a trace: what the command line's ``--trace`` does."""

from __future__ import annotations

import difflib
from math import inf
from pathlib import Path

import numpy as np

from pagesim.errors import PagesimError, TraceError
from pagesim.workloads.arrivals import ArrivalKind, arrival_times, arrive, check_seed
from pagesim.workloads.bundled import NAMES, workload
from pagesim.workloads.conversations import conversations, parse_conversations
from pagesim.workloads.files import NO_ARRIVALS, has_recorded_arrivals, load
from pagesim.workloads.lengths import SPECS, Lengths, parse_lengths
from pagesim.workloads.model import LengthModel
from pagesim.workloads.rows import OnBadRow
from pagesim.workloads.servegen import generate, parse_servegen
from pagesim.workloads.sharing import share_prefix
from pagesim.workloads.texts import TurnChoice
from pagesim.workloads.thinking import begin_sessions
from pagesim.workloads.thinking import think as draw_thinking
from pagesim.workloads.trace import Trace

DEFAULT_REQUESTS = 1000
"""Requests sampled from a model when neither a duration nor a number is given."""


def make_trace(
    name_or_path: str | Path,
    *,
    arrivals: ArrivalKind | None = None,
    rate: float | None = None,
    cv: float | None = None,
    duration: float | None = None,
    num_requests: int | None = None,
    seed: int = 0,
    turns: TurnChoice = "first",
    tokenizer: str | None = None,
    on_bad_row: OnBadRow = "error",
    shared_prefix: str | None = None,
    think: str | None = None,
) -> Trace:
    """Make a trace from a bundled workload, a text such as ``fixed:512,128``, or a file.

    A name of a bundled workload samples its fitted model, a text as ``parse_lengths`` takes samples that
    distribution, ``conversations:TOKENS:`` in front of either makes conversations of it, each turn after the
    one before is over; ``servegen:FOLDER[@SECONDS]`` generates what the clients of a pool of ServeGen's send
    for a duration, at ``rate`` all together if one is given. Anything else is a path and is read; the text
    ``./sharegpt`` is a path.

    Args:
        name_or_path: what to make the trace from.
        arrivals: an arrival process (see ``KINDS``). When left out: gamma when a cv is given, else poisson
            when a rate is given, else as recorded; a workload fitted to a trace with arrivals then uses
            gamma with that rate and CV, and where nothing was recorded all requests arrive at 0 s.
        rate: mean arrivals a second; infinity for all at 0 s. Under turns after completion, of sessions.
        cv: coefficient of variation of the gaps between arrivals.
        duration: only arrivals before this many seconds.
        num_requests: at most so many requests. With neither this nor a duration: all of a file's requests
            once, or ``DEFAULT_REQUESTS`` of a model.
        seed: of every random number; the same seed gives the same trace in any process.
        turns: of a file of conversations, see ``load``.
        tokenizer: of a file of texts, see ``load``.
        on_bad_row: of a file, see ``load``.
        shared_prefix: ``TOKENS`` or ``TOKENS:SHARE``, a system prompt in front of the prompts of all requests
            or of a share of them, see ``share_prefix``. It comes last: the requests and their arrivals are
            those without it.
        think: ``SECONDS``, ``constant:SECONDS`` or ``exponential:SECONDS`` from the end of a turn to the next
            one of its session, in place of a file's ``think_s``; for turns after completion.

    Returns:
        The trace; its notes say what it was made from and what was assumed.

    Raises:
        PagesimError: there is no such workload or file, or an option is missing, unusable or out of bounds.
        TraceError: the file cannot be read, or a row is bad.
    """
    check_seed(seed)
    name = str(name_or_path)
    if think is not None and turns != "after-completion":
        raise PagesimError(f"think is {think!r}; it is for turns after-completion, not {turns}")
    if rate == inf:
        if arrivals not in (None, "all-at-once") or cv is not None:
            raise PagesimError("rate is inf: all requests arrive at 0 s; leave out arrivals and cv")
        arrivals, rate = "all-at-once", None
    pool = parse_servegen(name)
    if pool is not None:
        if arrivals is not None or cv is not None or turns != "first":
            raise PagesimError(
                "a pool of ServeGen's has arrivals of its own; leave out arrivals, cv and turns"
            )
        if duration is None:
            raise PagesimError("a pool of ServeGen's sends for days; give a duration in seconds")
        trace = generate(*pool, duration, rate, seed).take(slice(0, num_requests))
        return trace if shared_prefix is None else share_prefix(trace, shared_prefix, seed)
    talks = parse_conversations(name)
    longest, of_talks = talks or (0, name)
    lengths = _lengths(of_talks)
    recorded = False
    if lengths is None:
        if talks is not None:
            raise PagesimError(
                f"conversations are made of a workload or a distribution; {of_talks} is a file: "
                f"fit a model to it with pagesim trace fit"
            )
        trace = load(name_or_path, turns=turns, tokenizer=tokenizer, on_bad_row=on_bad_row)
        recorded = has_recorded_arrivals(trace)
    else:
        _check_made(name, talks is not None, arrivals, turns)
    notes: list[str] = []
    kind = arrivals or _implied(rate, cv, recorded)
    if kind is None and talks is None and isinstance(lengths, LengthModel) and lengths.rate and lengths.cv:
        kind, rate, cv = "gamma", lengths.rate, lengths.cv
        notes.append(f"arrivals as fitted: {rate:g} requests/s, CV {cv:g}")
    if kind is None:
        if duration is not None:
            raise PagesimError(f"{name} has no arrivals to cut at {duration:g} s; give a rate as well")
        kind = "all-at-once"
        if talks is None:
            notes.append(NO_ARRIVALS)
    if lengths is not None:
        if num_requests is None and duration is None:
            num_requests = DEFAULT_REQUESTS
        if talks is not None:
            trace = conversations(lengths, longest, num_requests or DEFAULT_REQUESTS, seed)
            note = (
                f"conversations up to prompts of {longest} tokens, of lengths from "
                f"{_origin(of_talks, lengths)}, seed {seed}; each turn after the last is answered"
            )
        else:
            times = arrival_times(
                kind, rate=rate, cv=cv, duration=duration, num_requests=num_requests, seed=seed
            )
            # Another stream than the arrivals', or long gaps would go with long prompts.
            prompts, outputs = lengths.sample(len(times), np.random.default_rng([seed, 1]))
            trace = Trace(np.zeros(len(times)), prompts, outputs)
            note = f"lengths sampled from {_origin(name, lengths)}, seed {seed}"
        trace = trace.with_columns({}, note)
    give = arrive if trace.think_s is None else begin_sessions
    trace = give(trace, kind, rate=rate, cv=cv, duration=duration, num_requests=num_requests, seed=seed)
    if think is not None:
        trace = draw_thinking(trace, think, seed)
    if notes:
        trace = trace.with_columns({}, "; ".join(notes))
    return trace if shared_prefix is None else share_prefix(trace, shared_prefix, seed)


def _check_made(name: str, talks: bool, arrivals: ArrivalKind | None, turns: TurnChoice) -> None:
    """Raise PagesimError for options of recorded requests where requests are made of lengths."""
    if arrivals in ("recorded", "replay"):
        why = "conversations are made" if talks else f"{name} is a model"
        raise PagesimError(f"arrivals {arrivals} need a file that recorded them; {why}")
    if not talks and turns == "after-completion":
        raise PagesimError(f"turns after-completion need sessions; {name} is a model of single requests")
    if talks and turns == "all":
        raise PagesimError(
            "turns is all, but conversations that are made have no recorded arrivals; leave it out"
        )


def _lengths(name: str) -> Lengths | None:
    """Return the model or distribution of this name; None when it is the path of a file."""
    if name in NAMES:
        return workload(name)
    if name.partition(":")[0] in SPECS and ":" in name:
        return parse_lengths(name)
    if LengthModel.recognises(Path(name)):
        return LengthModel.load(name)
    try:
        if Path(name).exists():
            return None
    except OSError:
        return None  # too long to be a path, say: load names the reason
    close = difflib.get_close_matches(name.lower(), NAMES, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise TraceError(
        f"{name}: there is no such file or workload; the bundled workloads are {', '.join(NAMES)}{hint}"
    )


def _implied(rate: float | None, cv: float | None, recorded: bool) -> ArrivalKind | None:
    if cv is not None:
        return "gamma"
    if rate is not None:
        return "poisson"
    return "recorded" if recorded else None


def _origin(name: str, lengths: Lengths) -> str:
    if isinstance(lengths, LengthModel):
        return f"the fitted model {lengths.name} ({lengths.provenance.source})"
    return name
