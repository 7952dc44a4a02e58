"""RecordedRun: what was measured of one run of a server under one load, as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pagesim.errors import PagesimError
from pagesim.workloads.llmservingsim import BLOCK_SIZE
from pagesim.workloads.trace import Trace

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.bool_]

MOST_FAILED = 0.1
"""Share of requests that may have failed: the server worked for these, too, the log does not say how long."""


class Answered(NamedTuple):
    """A request that was answered; readers' layouts of one have the same attributes.

    Attributes:
        start: instant at which it was sent, in seconds.
        first: instant of its first token.
        last: instant of its last token.
        prompt: tokens of its prompt.
        output: tokens of its answer.
        gaps: seconds between tokens; None where they are not known.
    """

    start: float
    first: float
    last: float
    prompt: float
    output: float
    gaps: Sequence[float] | None = None


class Series(NamedTuple):
    """What a server said of itself over time, ``[T]`` each.

    Attributes:
        t: seconds from the first arrival, rising.
        running, waiting: requests.
        kv_use: share of the KV blocks that are in use, 0 to 1.
    """

    t: Floats
    running: Floats
    waiting: Floats
    kv_use: Floats


@dataclass(frozen=True)
class RecordedRun:
    """One run of a server under one load, its requests in the order in which they were sent.

    Attributes:
        name: of the run, for sentences and tables.
        arrival_s: when each request was sent, from the first, ``[N]``, never falling; when it was due where
            only a summary is known.
        prompt_tokens, output_tokens: of each, ``[N]``, at least 1.
        ttft_s, e2e_s: seconds from sending to the first and to the last token, ``[N]``; empty where only a
            summary is known.
        itl_s: seconds between tokens, of each request ``[output_tokens - 1]``; None where they are not known.
        hash_ids: names of the blocks of each prompt, as a `Trace` has them; None where prompts are not known.
        max_concurrency: of a closed loop; None where each request was sent at its own time.
        series: what the server said over time; None where it did not.
        known: of a run that is known by a summary alone, by metric (``ttft``, ``tpot``, ``itl``, ``e2e``,
            ``duration``) and statistic (``mean``, ``p50``, …), in seconds.
        preemptions: how many the server counted; None where it did not.
        server: options of a system that the recording states.
        notes: what was noticed on reading.
    """

    name: str
    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    ttft_s: Floats
    e2e_s: Floats
    itl_s: Sequence[Floats] | None = None
    hash_ids: Sequence[tuple[int, ...]] | None = None
    max_concurrency: int | None = None
    series: Series | None = None
    known: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    preemptions: int | None = None
    server: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.arrival_s)

    @classmethod
    def of(
        cls,
        name: str,
        requests: Sequence[Any],
        *,
        hash_ids: Sequence[tuple[int, ...]] | None = None,
        failed: int = 0,
        max_concurrency: float | None = None,
        notes: tuple[str, ...] = (),
        **more: Any,
    ) -> RecordedRun:
        """Return the run of these requests, in the order in which they were sent.

        Args:
            name: of the run.
            requests: that were answered, each with the attributes of `Answered`.
            hash_ids: names of the blocks of each prompt.
            failed: requests that failed and are not among these.
            max_concurrency: of a closed loop; one of as many as there are requests bounds nothing.
            notes: what was noticed on reading.
            **more: other attributes.

        Raises:
            PagesimError: no request was answered, too many failed, or clocks run backwards.
        """
        columns = np.array(
            [(each.start, each.first, each.last, each.prompt, each.output) for each in requests], np.float64
        ).reshape(-1, 5)
        order = np.argsort(columns[:, 0], kind="stable")
        start, first, last, prompt, output = columns[order].T
        size = len(columns) + failed
        if failed > MOST_FAILED * size:
            raise PagesimError(
                f"{name}: {failed} of {size} requests failed; at most {MOST_FAILED:.0%} may: how much of "
                "the server's time they took is not known. Run the load again"
            )
        if failed:
            notes = (f"{name}: {failed} of {size} requests failed and are left out", *notes)
        gaps = [requests[row].gaps for row in order]
        whole = [
            np.array(each, np.float64)
            for each, tokens in zip(gaps, output, strict=True)
            if each is not None and len(each) == tokens - 1
        ]
        closed = max_concurrency is not None and max_concurrency < size
        return cls(
            name,
            start - start.min(initial=np.inf),
            prompt.astype(np.int64),
            output.astype(np.int64),
            first - start,
            last - start,
            itl_s=whole if len(whole) == len(columns) else None,
            hash_ids=None if hash_ids is None else [hash_ids[row] for row in order],
            max_concurrency=int(max_concurrency) if closed and max_concurrency else None,
            notes=notes,
            **more,
        )._checked()

    @classmethod
    def summarized(
        cls,
        name: str,
        known: Mapping[str, Mapping[str, float]],
        prompt: Ints,
        output: Ints,
        *,
        clients: float | None,
        rate: float | None = None,
        burstiness: float = 1.0,
        server: Mapping[str, Any],
        notes: tuple[str, ...] = (),
    ) -> RecordedRun:
        """Return the run of a load that is known by its lengths, its clients and its rate.

        Args:
            name: of the run.
            known: by metric and statistic, seconds; a metric without any is left out.
            prompt: tokens of each request's prompt, ``[N]``.
            output: tokens of each answer, ``[N]``.
            clients: requests that were outstanding at most; None without a bound.
            rate: requests a second, gaps drawn from a gamma distribution; None where all were due at once.
            burstiness: shape of that distribution; 1 is Poisson's.
            server: options of a system.
            notes: what was noticed on reading.

        Raises:
            PagesimError: the summary has no latency.
        """
        known = {metric: by for metric, by in known.items() if by}
        if not known.keys() & {"ttft", "tpot", "itl", "e2e"}:
            raise PagesimError(f"{name}: says nothing of latencies; run the benchmark with streaming")
        size = len(prompt)
        due = np.zeros(size)
        if rate is not None:
            due = np.cumsum(np.random.default_rng(0).gamma(burstiness, size=size))
            due = (due - due[0]) * ((size - 1) / rate / max(due[-1] - due[0], 1e-9))
        nothing = np.empty(0)
        most = None if clients is None or clients >= size else int(clients)
        return cls(
            name, due, prompt, output, nothing, nothing,
            max_concurrency=most, known=known, server=server, notes=notes,
        )  # fmt: skip

    @property
    def means(self) -> dict[str, float]:
        """Means by metric, in seconds, of a run that is known by a summary alone."""
        return {metric: by["mean"] for metric, by in self.known.items() if "mean" in by}

    @property
    def first_s(self) -> Floats:
        """When the first token of each request came, seconds from the first arrival, ``[N]``."""
        return self.arrival_s + self.ttft_s

    @property
    def last_s(self) -> Floats:
        """When the last token of each request came, seconds from the first arrival, ``[N]``."""
        return self.arrival_s + self.e2e_s

    def trace(self) -> Trace:
        """Return the requests as the simulator takes them."""
        # In a closed loop whose requests' times are known, each was sent as soon as there was a place.
        closed = self.max_concurrency is not None and not self.known
        return Trace(
            arrival_s=np.zeros(len(self)) if closed else self.arrival_s,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            hash_ids=self.hash_ids,
            hash_block_size=BLOCK_SIZE,
        )

    def _checked(self) -> RecordedRun:
        """Return the run, if a server can have done what it says.

        Raises:
            PagesimError: no request was answered, or clocks run backwards.
        """
        if not len(self):
            raise PagesimError(f"{self.name}: no request was answered; record the run again")
        for before, after, what in (
            (np.zeros(len(self.ttft_s)), self.ttft_s, "its first token came before it was sent"),
            (self.ttft_s, self.e2e_s, "its last token came before its first one"),
        ):
            wrong = np.flatnonzero(~(after >= before))
            if len(wrong):
                row = int(wrong[0])
                start = self.arrival_s[row]
                raise PagesimError(
                    f"{self.name}: request {row}: {what} ({start + after[row]:.6f} s and "
                    f"{start + before[row]:.6f} s), and so in {len(wrong)} of {len(self)} requests; times of "
                    "one clock that never runs backwards are needed"
                )
        return self
