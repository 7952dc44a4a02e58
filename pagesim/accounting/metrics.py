"""Metrics: compute a run's summary from its records. Definitions: ``docs/reference/metrics.md``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pagesim.accounting.chunks import Chunk
from pagesim.accounting.fragmentation import INTERNAL
from pagesim.accounting.ledger import (
    GROUP_ENTRIES,
    HELD_WITHOUT_RUNNING,
    HYBRID_ENTRIES,
    Column,
    LedgerShape,
    paper_view,
)
from pagesim.sim.clock import TICKS_PER_SECOND

PERCENTILES = (50, 90, 95, 99)
PAPER_ENTRIES = ("token_states", "reservation", "internal", "external")
STRICT_ENTRIES = (*GROUP_ENTRIES, *HELD_WITHOUT_RUNNING, *HYBRID_ENTRIES[len(GROUP_ENTRIES) :])
VIEWS = {"strict": STRICT_ENTRIES, "paper": PAPER_ENTRIES}
"""All possible entries of each view, in order; a plain cache has fewer than a hybrid one."""

_IDLE_ENTRY = {"strict": "free", "paper": "external"}

_COMMON = 1 << 18
"""Token gaps below this many microseconds are counted in an array; the rare longer ones in a `Counter`."""

_RATIO_SCALE = 1 << 32
_TICKS_PER_MICROSECOND = TICKS_PER_SECOND // 10**6

Distribution = dict[str, float | None]


class MemoryMeans:
    """Averages of the ledger and the batch size over a window's iterations and over its time.

    All sums are integers, so the result does not depend on how a run is split into chunks. Where iterations
    overlap, as in pipeline stages, each counts only from the end of the previous one.

    Args:
        shape: shape of the ledger.
        reserves: whether memory is reserved at admission; the paper's view shows reservations only then.
        window: first and last instant, in ticks, both inclusive; None for the whole run.
    """

    def __init__(self, shape: LedgerShape, *, reserves: bool, window: tuple[int, int] | None) -> None:
        self.shape = shape
        self._views = {
            "strict": shape.entries,
            "paper": PAPER_ENTRIES,
            **dict.fromkeys(shape.groups, GROUP_ENTRIES),
        }
        self.reserves = reserves
        self.window = window
        self._iterations = 0
        self._running = 0
        self._start: int | None = None
        self._end = 0
        self._over = 0  # end of the latest iteration added so far
        self._busy = 0
        self._by_iteration: Counter[tuple[str, str]] = Counter()
        self._by_time: Counter[tuple[str, str]] = Counter()
        self._peaks: Counter[str] = Counter()
        self._sharing = 0
        self._sharing_iterations = 0
        self._parks = tuple(name for name in shape.entries if name in HELD_WITHOUT_RUNNING)
        self._gaps: list[tuple[int, ...]] = []

    def add(self, chunk: Chunk) -> None:
        """Add the iterations of a chunk."""
        clock, ticks = chunk.clock, chunk.ticks
        if self._start is None:
            self._start = int(clock[0])
        self._end = int(clock[-1] + ticks[-1])
        ends = chunk.start + ticks
        over = np.maximum.accumulate(np.concatenate([[self._over], ends]))
        self._over = int(over[-1])
        ticks = ends - np.maximum(chunk.start, np.minimum(over[:-1], ends))
        counted: Column | slice = slice(None)
        lasting = ticks
        if self.window is not None:
            first, last = self.window
            counted = np.flatnonzero((clock >= first) & (clock <= last))
            lasting = np.clip(np.minimum(clock + ticks, last) - np.maximum(clock, first), 0, None)
        busy, iterations = int(lasting.sum()), len(clock[counted])
        self._busy += busy
        self._iterations += iterations
        self._running += int(chunk.rows.spread("running_groups")[counted].sum())
        ledger = chunk.ledger
        of_groups = [part.entries for part in ledger.groups]
        for view, columns in (("strict", ledger.entries), *zip(self.shape.groups, of_groups, strict=True)):
            by_iteration = {name: int(column[counted].sum()) for name, column in columns.items()}
            by_time = _exact_dots(columns, lasting)
            for sums, total in ((by_iteration, self._by_iteration), (by_time, self._by_time)):
                # The paper's view is linear in the entries, so it may be computed from their sums.
                paper = paper_view(sums, reserves=self.reserves) if view == "strict" else {}
                for of, entries in ((view, sums), ("paper", paper)):
                    for name, amount in entries.items():
                        total[of, name] += amount
        self._add_peaks({name: column[counted] for name, column in ledger.entries.items()})
        self._gaps += map(tuple, chunk.gaps.tolist())
        logical, physical = chunk.ledger.logical_blocks[counted], chunk.ledger.physical_blocks[counted]
        holding = physical > 0
        self._sharing_iterations += int(holding.sum())
        # Without sharing the ratio is 1.
        shared = np.flatnonzero(holding & (logical != physical))
        ratio = logical[shared] / physical[shared]
        self._sharing += int(np.rint(ratio * _RATIO_SCALE).astype(np.int64).sum())
        self._sharing += _RATIO_SCALE * int(holding.sum() - len(shared))

    def _add_peaks(self, entries: Mapping[str, Column]) -> None:
        """Update the peaks of each entry and of internal fragmentation."""
        there = {name: column for name, column in entries.items() if column.any()}
        internal = [there[name] for name in INTERNAL if name in there]
        if internal:
            there["internal_fragmentation"] = sum(internal[1:], internal[0])
        for name, column in there.items():
            self._peaks[name] = max(self._peaks[name], int(column.max()))

    @property
    def mean_batch(self) -> float | None:
        """Mean number of running requests over the window's iterations; None if it has none."""
        return self._running / self._iterations if self._iterations else None

    @property
    def end(self) -> int:
        """End of the last iteration, in ticks."""
        return self._end

    @property
    def busy_share(self) -> float | None:
        """Share of time spent in iterations, from the start of the first to the end of the last."""
        if self._start is None:
            return None
        start, end = self._start, self._end
        if self.window is not None:
            start, end = self.window[0], min(self.window[1], end)
        return self._busy / (end - start) if end > start else None

    @property
    def saving(self) -> float | None:
        """Share of memory saved by sharing, 1 − 1/mean(logical/physical blocks); None if none was held."""
        if not self._sharing:
            return None
        if self.reserves:
            return 0.0
        return 1 - self._sharing_iterations * _RATIO_SCALE / self._sharing

    def summary(self) -> dict[str, dict[str, Distribution]]:
        """Return means in percent of the capacity, by view or KV cache group, kind of mean and entry.

        A mean over no iterations or no time is None. The strict view also has peaks: the maximum over
        iterations of each entry and of internal fragmentation.
        """
        start, end = self._start or 0, self._end
        if self.window is not None:
            start, end = self.window[0], min(self.window[1], end)
        span = end - start
        by_time = Counter(self._by_time)
        for view, entry in _IDLE_ENTRY.items():
            by_time[view, entry] += self.shape.capacity * (span - self._busy)
        for name, amount in self._held_without_running_when_idle(start, end).items():
            by_time["strict", name] += amount
            by_time["strict", "free"] -= amount

        def percent(sums: Mapping[tuple[str, str], int], view: str, weight: int) -> Distribution:
            whole = weight * self.shape.capacity
            return {
                name: 100 * sums[view, name] / whole if weight > 0 else None for name in self._views[view]
            }

        means = {
            view: {
                "per_iteration": percent(self._by_iteration, view, self._iterations),
                "per_second": percent(by_time, view, span),
            }
            for view in self._views
        }
        means["strict"]["peak"] = {
            name: 100 * self._peaks[name] / self.shape.capacity if self._iterations else None
            for name in (*self.shape.entries, "internal_fragmentation")
        }
        return means

    def _held_without_running_when_idle(self, start: int, end: int) -> Counter[str]:
        """Return slots × ticks held between iterations by requests that are not running, by entry."""
        slots = self.shape.capacity // self.shape.num_blocks
        found: Counter[str] = Counter()
        for first, last, *blocks in self._gaps:
            lasting = max(0, min(last, end) - max(first, start))
            for name, held in zip(self._parks, blocks, strict=True):
                found[name] += held * slots * lasting
        return found


def entries_in(summaries: Iterable[Mapping[str, Any]], view: str = "strict") -> list[str]:
    """Return a view's entries that occur in any of the summaries, in order; hybrid caches have more."""
    there = {name for summary in summaries for name in summary["memory"][view]["per_iteration"]}
    return [name for name in VIEWS[view] if name in there]


def capacity_in(memory: Mapping[str, Any]) -> int:
    """Return the capacity in a summary's ``memory``: token slots, or bytes on each GPU for a hybrid cache."""
    if "capacity_bytes" in memory:
        return int(memory["capacity_bytes"])
    return int(memory["num_blocks"]) * int(memory["block_size"])


class TokenGaps:
    """Histogram of the times between two tokens of a sequence (ITL), to the microsecond."""

    def __init__(self) -> None:
        self._common = np.zeros(_COMMON, np.int64)  # gaps by length in microseconds
        self._rare: Counter[int] = Counter()  # longer gaps, likewise
        self._sum = 0

    def add(self, chunk: Chunk) -> None:
        """Add the gaps of a chunk's iterations."""
        self._add(chunk.ticks, chunk.rows.spread("continuing"))
        self._add(chunk.late, chunk.late_counts)

    def include(self, others: TokenGaps) -> None:
        """Add the gaps of another engine."""
        self._common += others._common
        self._rare.update(others._rare)
        self._sum += others._sum

    def summary(self) -> Distribution:
        """Return the mean and percentiles in seconds; None if no sequence has two tokens."""
        common = np.flatnonzero(self._common)
        rare, counts = np.array(sorted(self._rare.items()), np.int64).reshape(-1, 2).T
        values = np.concatenate([common, rare])
        ranks = np.cumsum(np.concatenate([self._common[common], counts]))
        if not len(values) or not ranks[-1]:
            return describe(np.empty(0))
        total = int(ranks[-1])
        gaps: Distribution = {"mean": self._sum / total / TICKS_PER_SECOND}
        for p in PERCENTILES:
            # The smallest value that is an upper bound of at least p % of the gaps.
            at = int(np.searchsorted(ranks, -(-p * total // 100)))
            gaps[f"p{p}"] = float(values[at]) / 1e6
        return gaps

    def _add(self, ticks: Column, weights: Column) -> None:
        self._sum += _exact_dots({"gaps": weights}, ticks)["gaps"]
        gaps = np.rint(ticks / _TICKS_PER_MICROSECOND).astype(np.int64)
        rare = gaps >= _COMMON
        for gap, count in zip(gaps[rare].tolist(), weights[rare].tolist(), strict=True):
            self._rare[gap] += count
        np.add.at(self._common, gaps[~rare], weights[~rare])


def describe(values: npt.NDArray[np.float64]) -> Distribution:
    """Return the mean and the linearly interpolated percentiles of finite values; None if there are none."""
    if not len(values):
        return dict.fromkeys(("mean", *(f"p{p}" for p in PERCENTILES)))
    points = np.percentile(values, PERCENTILES).tolist()
    return {"mean": float(values.mean()), **{f"p{p}": x for p, x in zip(PERCENTILES, points, strict=True)}}


def latencies(columns: Mapping[str, npt.NDArray[Any]]) -> dict[str, Distribution]:
    """Return the latency distributions over the samples of finished requests.

    Args:
        columns: columns of the requests table; times in seconds.
    """
    return {name: describe(values) for name, values in latency_values(columns)}


def latency_values(
    columns: Mapping[str, npt.NDArray[Any]],
) -> Iterator[tuple[str, npt.NDArray[np.float64]]]:
    """Yield each latency's name and its values over the samples of finished requests, in seconds.

    Args:
        columns: columns of the requests table; times in seconds.
    """
    done = columns["status"] == "finished"
    samples = columns["n"][done]

    def each(name: str) -> npt.NDArray[np.float64]:
        return np.repeat(columns[name][done].astype(np.float64), samples)

    output = each("output_tokens")
    finish = each("finish_s")
    if "sample_finish_s" in columns and done.any():
        # The samples of a request differ in length, and each has its own finish time.
        finish = np.concatenate(columns["sample_finish_s"][done].tolist())
        output = np.concatenate(columns["sample_tokens"][done].tolist()).astype(np.float64)
    several = output > 1
    sent = each("arrival_s")
    if "frontend_s" in columns:
        # The front end delays the client's first token, but not the engine.
        sent -= each("frontend_s")
    yield "normalized_latency", (finish - sent) / output
    yield "latency", finish - sent
    yield "ttft", each("first_token_s") - sent
    yield "tpot", (finish - each("first_token_s"))[several] / (output[several] - 1)
    yield "queueing", each("first_scheduled_s") - each("arrival_s")


def throughput(columns: Mapping[str, npt.NDArray[Any]]) -> Distribution:
    """Return finished requests and their output tokens per second, from first arrival to last finish."""
    done = columns["status"] == "finished"
    if not done.any():
        return {"requests_per_s": None, "tokens_per_s": None}
    span = float(columns["finish_s"][done].max() - np.nanmin(columns["arrival_s"]))
    if "sample_tokens" in columns:
        tokens = sum(map(sum, columns["sample_tokens"][done]))
    else:
        tokens = int((columns["output_tokens"] * columns["n"])[done].sum())
    return {"requests_per_s": int(done.sum()) / span, "tokens_per_s": tokens / span}


def prefix_hits(columns: Mapping[str, npt.NDArray[Any]]) -> dict[str, float | None]:
    """Return the prompt tokens hit in the cache at first admission, and their share of all prompt tokens."""
    admitted = ~np.isnan(columns["first_scheduled_s"])
    cached = int(columns["cached_tokens"].sum())
    prompts = int(columns["prompt_tokens"][admitted].sum())
    return {"cached_tokens": cached, "share": cached / prompts if prompts else None}


def _exact_dots(columns: Mapping[str, Column], weights: Column) -> dict[str, int]:
    """Return Σ column·weights exactly, for bytes below 2⁵⁰, ticks below 2⁶⁰ and up to 2¹⁸ iterations.

    Both factors are split into parts so that no sum of products exceeds 64 bits.
    """
    parts = [(weights >> shift & (1 << 20) - 1, shift) for shift in (0, 20, 40)]
    parts = [(part, shift) for part, shift in parts if part.any()]

    def dot(column: Column) -> int:
        low, high = column & (1 << 25) - 1, column >> 25
        found = sum(int(np.dot(low, part)) << shift for part, shift in parts)
        if high.any():
            found += sum(int(np.dot(high, part)) << shift + 25 for part, shift in parts)
        return found

    # Most entries of a ledger are always 0.
    return {name: dot(column) if column.any() else 0 for name, column in columns.items()}
