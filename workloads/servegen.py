"""ServeGen's client pools: a workload generated from what single clients of a production service do.

A pool is a folder with two files a client, as https://github.com/alibaba/ServeGen has them:
``chunk-N-trace.csv``, a row a window of time without a header (its start in seconds, requests/s, the
coefficient of variation, the gaps' distribution with its shape and scale; a client that sends nothing has no
distribution), and ``chunk-N-dataset.json``, by the second from which they hold the shares of requests by
prompt and by output tokens.
"""

from __future__ import annotations

import csv
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pagesim.errors import PagesimError, TraceError, brief
from pagesim.workloads.trace import MAX_TOKENS, Trace
from pagesim.workloads.values import number

PREFIX = "servegen"

SPEC = "servegen:FOLDER[@SECONDS]"
"""How a pool is spelt in text; the seconds are where in its time the workload begins, 0 when left out."""

FIELDS = ("input_tokens", "output_tokens")

_MOST = 10_000_000
"""More requests than this are taken for a mistake."""

_BIN = re.compile(r"(\d+)\s*:")


class Window(NamedTuple):
    """What a client does for some time.

    Args:
        start_s, end_s: in the pool's time.
        rate: requests a second; 0 where it sends nothing.
        pattern: what its gaps are distributed by, ``Gamma`` or ``Weibull``.
        shape: of that distribution.
    """

    start_s: float
    end_s: float
    rate: float
    pattern: str
    shape: float


Shares = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]
"""Tokens, rising, and the share of requests that have so many or fewer, ``[B]`` each."""


@dataclass(frozen=True)
class Client:
    """A client of the pool.

    Args:
        windows: in order.
        lengths: prompt and output tokens, by the second from which they hold, in order.
    """

    windows: tuple[Window, ...]
    lengths: tuple[tuple[float, tuple[Shares, Shares]], ...]

    def lengths_at(self, second: float) -> tuple[Shares, Shares] | None:
        """Return what holds then; None before the first."""
        return next((shares for since, shares in reversed(self.lengths) if since <= second), None)


def parse_servegen(text: str) -> tuple[str, float] | None:
    """Return the folder, and the second from which on, of ``servegen:FOLDER@64800``; None for other texts.

    Raises:
        PagesimError: no folder is named, or the start is no number from 0.
    """
    kind, colon, rest = text.partition(":")
    if kind != PREFIX or not colon:
        return None
    folder, at, second = rest.partition("@")
    start_s = number(second) if at else 0.0
    if not folder or not (0 <= start_s < math.inf):
        raise PagesimError(f"trace {text!r} cannot be read; write {SPEC}, the seconds a number from 0")
    return folder, start_s


def read_pool(folder: Path) -> list[Client]:
    """Return the clients of a pool, by their numbers.

    Raises:
        TraceError: there are none, a file is missing or damaged, or a number is out of bounds.
    """
    files = sorted(folder.glob("chunk-*-trace.csv"), key=lambda file: (len(file.name), file.name))
    if not files:
        raise TraceError(f"{folder}: holds no chunk-N-trace.csv; name a folder of one model, such as m-small")
    return [
        Client(_windows(file), _lengths(file.with_name(file.name.replace("-trace.csv", "-dataset.json"))))
        for file in files
    ]


def generate(folder: str, start: float, duration: float, rate: float | None = None, seed: int = 0) -> Trace:
    """Return the requests of all clients over some time, in order of arrival.

    In each window a client sends as many requests as its rate says, to the nearest whole number above or
    below, by chance, so that the mean is its rate. Their gaps are drawn from the client's distribution and
    fill the window. As ServeGen draws them, both lengths of a request have the same rank.

    Args:
        folder: of the pool's files.
        start: second of the pool's time in which the workload begins.
        duration: seconds.
        rate: of all clients together in each window; None for their own.
        seed: of every random number.

    Raises:
        PagesimError: the duration is no time.
        TraceError: see `read_pool`; or nothing is sent in that time, or more than ten million requests are.
    """
    if not 0 < duration < math.inf:
        raise PagesimError(f"duration is {duration:g}; it must be a number of seconds above 0")
    stop, clients = start + duration, read_pool(Path(folder))
    totals: dict[float, float] = {}
    for client in clients:
        for window in client.windows:
            totals[window.start_s] = totals.get(window.start_s, 0.0) + window.rate
    rng = np.random.default_rng([seed, 2])
    found: list[tuple[npt.NDArray[np.float64], npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []
    requests = unknown = 0
    for client in clients:
        for window in client.windows:
            low, high = max(window.start_s, start), min(window.end_s, stop)
            if not window.rate or low >= high:
                continue
            each = window.rate if rate is None else rate * window.rate / totals[window.start_s]
            sent = int(each * (high - low) + rng.random())
            lengths = client.lengths_at(window.start_s)
            if lengths is None:
                unknown += sent
                continue
            requests += sent
            if requests > _MOST:
                raise TraceError(f"{folder}: over {_MOST} requests in {duration:g} s; take a shorter time")
            gaps = (rng.gamma if window.pattern == "Gamma" else rng.weibull)(window.shape, size=sent + 1)
            whole = gaps.sum()
            times = low - start + np.cumsum(gaps[:-1]) * ((high - low) / whole if whole else 0.0)
            ranks = rng.random(sent)
            prompts, outputs = (_drawn(shares, ranks) for shares in lengths)
            found.append((times, prompts, outputs))
    if not requests:
        raise TraceError(f"{folder}: no client sends anything from {start:g} s for {duration:g} s")
    arrival, prompt, output = (np.concatenate(column) for column in zip(*found, strict=True))
    order = np.argsort(arrival, kind="stable")
    share = "" if rate is None else f", all together {rate:g} requests/s"
    notes = [
        f"generated from {len(clients)} clients of {folder}, {start:g} to {stop:g} s{share}, seed {seed}"
    ]
    if unknown:
        notes.append(f"{unknown} requests are left out, of clients whose lengths are not known then")
    return Trace(arrival[order], prompt[order], output[order], notes=tuple(notes))


def _drawn(shares: Shares, ranks: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    tokens, upto = shares
    return np.maximum(tokens[np.minimum(np.searchsorted(upto, ranks), len(tokens) - 1)], 1)


def _windows(file: Path) -> tuple[Window, ...]:
    try:
        with file.open(newline="", encoding="utf-8") as opened:
            rows = [row for row in csv.reader(opened) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{file}: cannot be read ({error})") from None
    found: list[Window] = []
    for line, row in enumerate(rows, 1):
        where = f"{file}: line {line}"
        if len(row) != 6:
            raise TraceError(
                f"{where}: has {len(row)} fields; ServeGen's have 6: time, rate, CV, pattern, two numbers"
            )
        start, rate = _number(where, "time", row[0]), _number(where, "rate", row[1])
        pattern = row[3].strip()
        if pattern and pattern not in ("Gamma", "Weibull"):
            raise TraceError(f"{where}: pattern is {brief(pattern)}; it must be Gamma, Weibull or empty")
        shape = _number(where, "shape", row[4]) if pattern else 1.0
        if not shape:
            raise TraceError(f"{where}: shape is 0; it must be above 0")
        if found and start <= found[-1].start_s:
            raise TraceError(f"{where}: time is {start:g}, after {found[-1].start_s:g}; times must rise")
        found.append(Window(start, math.inf, rate if pattern else 0.0, pattern, shape))
    if len(found) < 2:
        raise TraceError(f"{file}: has {len(found)} windows; two or more say how long each is")
    starts = [each.start_s for each in found]
    ends = [*starts[1:], 2 * starts[-1] - starts[-2]]  # the last is as long as the one before
    return tuple([each._replace(end_s=end) for each, end in zip(found, ends, strict=True)])


def _lengths(file: Path) -> tuple[tuple[float, tuple[Shares, Shares]], ...]:
    try:
        table = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise TraceError(f"{file}: cannot be read ({error})") from None
    if not isinstance(table, dict):
        raise TraceError(f"{file}: is no table of lengths by second")
    found: list[tuple[float, tuple[Shares, Shares]]] = []
    for second, fields in table.items():
        where = f"{file}: {brief(second)}"
        since = _number(where, "time", second)
        if not isinstance(fields, dict) or any(name not in fields for name in FIELDS):
            raise TraceError(f"{where}: lacks {' or '.join(FIELDS)}; a pool of text requests is needed")
        prompts, outputs = (_shares(f"{where}: {name}", fields[name]) for name in FIELDS)
        if prompts is not None and outputs is not None:
            found.append((since, (prompts, outputs)))
    return tuple(sorted(found, key=lambda each: each[0]))


def _shares(where: str, text: object) -> Shares | None:
    """Return what a text such as ``{12: 0.5, 40: 0.5}`` says; None where it is empty."""
    try:
        table = json.loads(_BIN.sub(r'"\1":', text)) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        table = None
    if not isinstance(table, dict):
        raise TraceError(f"{where} is {brief(text)}; it must be shares by tokens, as {{12: 0.5, 40: 0.5}}")
    if not table:
        return None
    pairs = sorted(
        (_number(where, "tokens", key), _number(where, "share", value)) for key, value in table.items()
    )
    tokens, share = (
        np.array([int(key) for key, _ in pairs], np.int64),
        np.array([value for _, value in pairs]),
    )
    if tokens[-1] > MAX_TOKENS or not share.sum() > 0:
        raise TraceError(f"{where}: tokens must be at most {MAX_TOKENS}, and some share above 0")
    return tokens, np.cumsum(share / share.sum())


def _number(where: str, name: str, value: object) -> float:
    found = number(value)
    if not 0 <= found < 1e15:
        raise TraceError(f"{where}: {name} is {brief(value)}; it must be a number from 0")
    return found
