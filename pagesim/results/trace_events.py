"""Trace events: a run as a timeline, in the JSON format of Perfetto and Chrome.

``docs/reference/metrics.md`` describes the tracks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pagesim.accounting.ledger import ENTRIES, HYBRID_ENTRIES
from pagesim.accounting.timeline import Timeline
from pagesim.costs import Itemised, IterationShape, step_shape
from pagesim.scheduling.request import Status
from pagesim.sim.clock import TICKS_PER_SECOND, to_tick_column

FILE = "trace-events.json"

ENGINE, REQUESTS = 1, 2
"""Process ids; viewers group tracks by process."""

ITERATIONS, SWAPS = 1, 2
"""Thread ids within the engine's process."""

MEMORY = "KV cache, token slots"
"""Name of the counter whose series sum to the capacity."""

MEMORY_BYTES = "KV cache, bytes"
"""Name of the same counter for a hybrid cache."""

PLACES = ("running", "waiting", "swapped")

_TICKS_PER_US = TICKS_PER_SECOND // 10**6
_SLAB = 1 << 14
"""Rows of the table converted to Python objects at a time."""

Event = dict[str, Any]


def write(file: Path, timeline: Timeline, steps: Mapping[str, Any], *, title: str, capacity: int) -> None:
    """Write a run's events, one per line, with at most a few thousand in memory.

    Args:
        file: output file.
        timeline: timeline that observed the run.
        steps: steps table of the run, columns ``[R]``.
        title: name of the engine.
        capacity: token slots of the cache, or bytes on each GPU for a hybrid cache.
    """
    with file.open("w", encoding="utf-8") as out:
        out.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        separator = ""
        for event in events(timeline, steps, title=title, capacity=capacity):
            out.write(separator + json.dumps(event, allow_nan=False, separators=(",", ":")))
            separator = ",\n"
        out.write("\n]}\n")


def events(timeline: Timeline, steps: Mapping[str, Any], *, title: str, capacity: int) -> Iterator[Event]:
    """Yield a run's events; see `write`."""
    yield from _names(ENGINE, 0, f"engine: {title}", {ITERATIONS: "iterations", SWAPS: "swap link"})
    yield from _iterations(timeline, steps, capacity)
    yield from _names(REQUESTS, 1, "requests", {})
    for row, status, arrival, slices in timeline.requests():
        thread = row + 1
        name = f"request {timeline.trace.request_id[row]}"
        yield from _track(REQUESTS, thread, name)
        if not slices:
            yield {
                **_at(REQUESTS, thread, arrival),
                "ph": "i",
                "s": "t",
                "name": status,
                "cat": "request",
            }
        for what, start, end in slices:
            yield _slice(REQUESTS, thread, what, "request", start, end, {"request": row, "status": status})


def _iterations(timeline: Timeline, steps: Mapping[str, Any], capacity: int) -> Iterator[Event]:
    shapes, ends = timeline.shapes(), timeline.ends()
    entries = [name for name in HYBRID_ENTRIES if name in steps]
    memory = MEMORY if len(entries) == len(ENTRIES) else MEMORY_BYTES
    idle = {**dict.fromkeys(entries, 0), "free": capacity}
    before = 0
    tracks = [ITERATIONS]
    free_at = [0]  # when each track is free; iterations overlap in pipeline stages
    for slab in range(0, len(ends), _SLAB):
        rows = slice(slab, slab + _SLAB)
        columns = {name: np.asarray(steps[name])[rows].tolist() for name in (*_SHOWN, *entries, "step")}
        counts = _column(steps, "iterations", len(ends))[rows].tolist()
        starts = to_tick_column(np.asarray(steps["start"])[rows]).tolist()
        for at, (start, end) in enumerate(zip(starts, ends[rows].tolist(), strict=True)):
            own = {name: column[at] for name, column in columns.items()}
            if start > before:
                yield from _idle(before, memory, idle)
            before = max(before, end)
            track = next(
                (at for at, over in enumerate(free_at) if over <= start or start == end), len(tracks)
            )
            if track == len(tracks):
                tracks.append(SWAPS + track)
                free_at.append(0)
                yield from _track(ENGINE, tracks[track], f"iterations, {track + 1}")
            free_at[track] = max(free_at[track], end)
            shape = shapes.get(own["step"])
            yield from _iteration(timeline, own, counts[at], shape, start, end, tracks[track])
            yield _counter(memory, start, {name: own[name] for name in entries})
            yield _counter("requests", start, {name: own[f"num_{name}"] for name in PLACES})
    if not np.count_nonzero(np.frombuffer(timeline.log.status, np.uint8) == Status.UNFINISHED):
        yield from _idle(before, memory, idle)


def _idle(ticks: int, memory: str, entries: dict[str, int]) -> Iterator[Event]:
    yield _counter(memory, ticks, entries)
    yield _counter("requests", ticks, dict.fromkeys(PLACES, 0))


_SHOWN = (
    "num_running",
    "num_running_seqs",
    "num_waiting",
    "num_swapped",
    "num_tokens",
    "sum_context_tokens",
    "blocks_swapped_in",
    "blocks_swapped_out",
    "blocks_copied",
    "num_preempted",
)


def _iteration(
    timeline: Timeline,
    row: dict[str, Any],
    count: int,
    shape: IterationShape | None,
    start: int,
    end: int,
    track: int,
) -> Iterator[Event]:
    sequences, context = row["num_running_seqs"], row["sum_context_tokens"]
    step, more = row["step"], count - 1
    first = shape or step_shape(sequences, context)._replace(reached=timeline.span_tokens(step))
    last = first
    if more:
        last = step_shape(sequences, context + more * sequences)
        last = last._replace(reached=timeline.span_tokens(step + more))
    arguments = {
        "batch": row["num_running"],
        "sequences": sequences,
        "tokens": row["num_tokens"] * count,
        "context": context,
        "iterations": count,
        "first iteration": step,
        "preempted": row["num_preempted"],
        "blocks copied": row["blocks_copied"],
    }
    if isinstance(timeline.cost, Itemised):
        # The costs change linearly from the first iteration to the last.
        both = zip(timeline.cost.parts(first).items(), timeline.cost.parts(last).values(), strict=True)
        arguments["cost, µs"] = {name: (a + b) * count / 2 / _TICKS_PER_US for (name, a), b in both if a or b}
    yield _slice(ENGINE, track, _kind(first), "iteration", start, end, arguments)
    moved = {"swap out": first.blocks_out, "swap in": first.blocks_in}
    done = start
    for out, (name, blocks) in zip((True, False), moved.items(), strict=True):
        if blocks:
            # The link is busy for as long as an iteration that only swaps would take.
            until = start + timeline.cost.iteration(
                step_shape(0, 0, blocks_out=first.blocks_out, blocks_in=0 if out else first.blocks_in)
            )
            yield _slice(ENGINE, SWAPS, name, "swap", done, min(until, end), {"blocks": blocks})
            done = min(until, end)


def _kind(shape: IterationShape) -> str:
    if shape.query_key_pairs:
        return "mixed" if shape.decoding else "prefill"
    return "decode" if shape.tokens or shape.launches else "swap"


def _names(process: int, place: int, name: str, threads: dict[int, str]) -> Iterator[Event]:
    yield _metadata(process, 0, "process_name", name=name)
    yield _metadata(process, 0, "process_sort_index", sort_index=place)
    for thread, called in threads.items():
        yield from _track(process, thread, called)


def _track(process: int, thread: int, name: str) -> Iterator[Event]:
    yield _metadata(process, thread, "thread_name", name=name)
    yield _metadata(process, thread, "thread_sort_index", sort_index=thread)


def _metadata(process: int, thread: int, what: str, **arguments: Any) -> Event:
    return {"ph": "M", "ts": 0, "pid": process, "tid": thread, "name": what, "args": arguments}


def _at(process: int, thread: int, ticks: int) -> Event:
    return {"ts": _us(ticks), "pid": process, "tid": thread}


def _slice(
    process: int, thread: int, name: str, category: str, start: int, end: int, arguments: Event
) -> Event:
    place = _at(process, thread, start)
    duration = _us(end) - _us(start)
    return {**place, "ph": "X", "dur": duration, "name": name, "cat": category, "args": arguments}


def _counter(name: str, ticks: int, values: dict[str, int]) -> Event:
    return {**_at(ENGINE, 0, ticks), "ph": "C", "name": name, "args": values}


def _us(ticks: int) -> int:
    """Return whole microseconds, because viewers round fractions so that adjacent slices would overlap."""
    return (ticks + _TICKS_PER_US // 2) // _TICKS_PER_US


def _column(steps: Mapping[str, Any], name: str, rows: int) -> npt.NDArray[np.int64]:
    """Return a column of the steps table, or ones if it is absent because each row is one iteration."""
    return np.asarray(steps[name]) if name in steps else np.ones(rows, np.int64)
