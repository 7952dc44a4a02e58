"""RecordedRun: the measurements of one server under one load, as arrays."""

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
"""Share of requests that may have failed; they took the server's time as well, which no log shows."""


class Answered(NamedTuple):
    """An answered request; readers' layouts of requests have the same attributes.

    Attributes:
        start: instant at which it was sent, in seconds.
        first: instant of its first token, in seconds.
        last: instant of its last token, in seconds.
        prompt: number of prompt tokens.
        output: number of output tokens.
        gaps: seconds between tokens; None if unknown.
    """

    start: float
    first: float
    last: float
    prompt: float
    output: float
    gaps: Sequence[float] | None = None


class Series(NamedTuple):
    """A server's own metrics over time, ``[T]`` each.

    Attributes:
        t: seconds from the first arrival, ascending.
        running, waiting: numbers of requests.
        kv_use: share of KV blocks in use, from 0 to 1.
    """

    t: Floats
    running: Floats
    waiting: Floats
    kv_use: Floats


@dataclass(frozen=True)
class RecordedRun:
    """One run of a server under one load, with requests in the order in which they were sent.

    Attributes:
        name: name of the run, for messages and tables.
        arrival_s: when each request was sent, in seconds from the first one, ``[N]``, non-decreasing; when it
            was due if only a summary is known.
        prompt_tokens, output_tokens: tokens of each request, ``[N]``, at least 1.
        ttft_s, e2e_s: seconds from sending to the first and to the last token, ``[N]``; empty if only a
            summary is known.
        itl_s: seconds between the tokens of each request, ``[output_tokens - 1]`` each; None if unknown.
        hash_ids: block hashes of each prompt, as in a `Trace`; None if the prompts are unknown.
        max_concurrency: number of clients of a closed loop; None if each request has its own send time.
        series: the server's metrics over time; None if not recorded.
        known: for a run of which only a summary is known: seconds by metric (``ttft``, ``tpot``, ``itl``,
            ``e2e``, ``duration``) and statistic (``mean``, ``p50``, …).
        preemptions: number of preemptions counted by the server; None if not recorded.
        server: options of a system that the recording states.
        notes: observations made when reading the files.
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
            name: name of the run.
            requests: answered requests, each with the attributes of `Answered`.
            hash_ids: block hashes of each prompt.
            failed: number of failed requests, which are not in ``requests``.
            max_concurrency: clients of a closed loop; ignored if there are no more requests than that.
            notes: observations made when reading the files.
            **more: other attributes of the run.

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
        """Return the run of a load of which only lengths, clients and rate are known.

        Args:
            name: name of the run.
            known: seconds by metric and statistic; empty metrics are ignored.
            prompt: prompt tokens of each request, ``[N]``.
            output: output tokens of each request, ``[N]``.
            clients: maximum number of outstanding requests; None for no limit.
            rate: requests per second, with gaps from a gamma distribution; None if all were due at once.
            burstiness: shape of that distribution; 1 gives a Poisson process.
            server: options of a system.
            notes: observations made when reading the files.

        Raises:
            PagesimError: the summary has no latencies.
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
        """Means in seconds by metric, for a run of which only a summary is known."""
        return {metric: by["mean"] for metric, by in self.known.items() if "mean" in by}

    @property
    def first_s(self) -> Floats:
        """When each request's first token arrived, in seconds from the first arrival, ``[N]``."""
        return self.arrival_s + self.ttft_s

    @property
    def last_s(self) -> Floats:
        """When each request's last token arrived, in seconds from the first arrival, ``[N]``."""
        return self.arrival_s + self.e2e_s

    def trace(self) -> Trace:
        """Return the requests as a trace for the simulator."""
        # In a closed loop with known request times, each was sent as soon as a client was free.
        closed = self.max_concurrency is not None and not self.known
        return Trace(
            arrival_s=np.zeros(len(self)) if closed else self.arrival_s,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            hash_ids=self.hash_ids,
            hash_block_size=BLOCK_SIZE,
        )

    def _checked(self) -> RecordedRun:
        """Return the run itself if its times are possible.

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
