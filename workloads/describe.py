"""What a trace looks like: a table of statistics, and a figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pagesim.errors import PagesimError
from pagesim.workloads.arrivals import arrival_rate, gap_cv
from pagesim.workloads.trace import FloatColumn, IntColumn, Trace

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# From the palette of Okabe and Ito, which people with any kind of colour blindness can tell apart.
BLUE, ORANGE, GREEN = "#0072B2", "#E69F00", "#009E73"


def describe(trace: Trace) -> pd.DataFrame:
    """Return a trace's statistics, one a row.

    Columns: ``measure`` (``prompt_tokens``, ``output_tokens``, ``total_tokens``, ``requests``, ``arrivals``),
    ``statistic`` (``mean``, ``p50``, ``p90``, ``p99``, ``max`` of tokens; ``count``; ``rate``, ``gap_cv`` and
    ``duration`` of arrivals), ``value``, and ``unit``. Rate and CV are NaN where all requests arrive
    together; the duration is the last arrival's time less the first's. A trace with ``hash_ids`` has the
    measure ``prompt_blocks`` too: their ``count``, and ``ideal_reuse``, the share of them in percent that
    `ideal_reuse` finds.

    Raises:
        PagesimError: the trace has no requests.
    """
    import pandas as pd

    _check_not_empty(trace)
    lines: list[tuple[str, str, float, str]] = []
    for measure, values in _token_columns(trace).items():
        p50, p90, p99 = np.percentile(values, [50, 90, 99])
        for statistic, value in (
            ("mean", values.mean()),
            ("p50", p50),
            ("p90", p90),
            ("p99", p99),
            ("max", values.max()),
        ):
            lines.append((measure, statistic, float(value), "tokens"))
    rate, cv = arrival_rate(trace.arrival_s), gap_cv(trace.arrival_s)
    lines += [
        ("requests", "count", float(len(trace)), ""),
        ("arrivals", "rate", np.nan if rate is None else rate, "requests/s"),
        ("arrivals", "gap_cv", np.nan if cv is None else cv, ""),
        ("arrivals", "duration", float(trace.arrival_s[-1] - trace.arrival_s[0]), "s"),
    ]
    if trace.hash_ids is not None:
        hits, blocks = ideal_reuse(trace)
        lines += [
            ("prompt_blocks", "count", float(blocks), f"blocks of {trace.hash_block_size} tokens"),
            ("prompt_blocks", "ideal_reuse", 100 * hits / blocks, "%"),
        ]
    return pd.DataFrame(lines, columns=["measure", "statistic", "value", "unit"])


def ideal_reuse(trace: Trace) -> tuple[int, int]:
    """Return how many blocks of prompts a prefix cache without a limit would hit, and how many there are.

    A block hits if its id and all ids before it in its prompt began the prompt of an earlier row: requests
    count as served one after another, each prompt cached before the next comes. Blocks are those that the
    prompts begin, ⌈prompt tokens / ``hash_block_size``⌉ each. **A last block that is filled only in part
    counts as any other**, hit or not, as in Mooncake's own figure (real caches reuse full blocks only). A
    block without an id never hits. Outputs have no ids and are not counted.

    Raises:
        PagesimError: the trace has no ``hash_ids``.
    """
    if trace.hash_ids is None:
        raise PagesimError("the trace has no hash_ids, which say what its prompts share")
    # A prefix is a number; the table leads from a prefix and the id after it to the prefix of both.
    longer: dict[tuple[int, int], int] = {}
    hits = 0
    for ids in trace.hash_ids:
        known, prefix = len(longer), 0
        for block in ids:
            prefix = longer.setdefault((prefix, block), len(longer) + 1)
            hits += prefix <= known
    return hits, int((-(-trace.prompt_tokens // trace.hash_block_size)).sum())


def plot_trace(trace: Trace) -> Figure:
    """Return a figure: histograms of prompt and output tokens on a log axis, and arrivals a second over time.

    Raises:
        PagesimError: the trace has no requests.
    """
    from matplotlib.figure import Figure

    _check_not_empty(trace)
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    lengths, arrivals = figure.subplots(1, 2)
    _plot_lengths(lengths, trace)
    _plot_arrivals(arrivals, trace.arrival_s)
    return figure


def _plot_lengths(axes: Axes, trace: Trace) -> None:
    columns = _token_columns(trace)
    longest = max(columns["prompt_tokens"].max(), columns["output_tokens"].max())
    # Whole-number edges, or short lengths would show gaps between the integers.
    bins = np.unique(np.rint(np.geomspace(1, longest + 1, 50))).tolist()
    for measure, colour, style in (("prompt_tokens", BLUE, "-"), ("output_tokens", ORANGE, "--")):
        values = columns[measure]
        label = f"{measure.removesuffix('_tokens')}, mean {values.mean():.0f}"
        axes.hist(
            values, bins=bins, histtype="step", color=colour, linestyle=style, linewidth=1.5, label=label
        )
    axes.set(xscale="log", xlabel="tokens", ylabel="requests", title=f"Lengths of {len(trace):,} requests")
    axes.legend(frameon=False)


def _plot_arrivals(axes: Axes, arrival_s: FloatColumn) -> None:
    axes.set(xlabel="time (s)", ylabel="arrivals (requests/s)", title="Arrivals")
    rate = arrival_rate(arrival_s)
    if rate is None:
        axes.text(0.5, 0.5, f"all at {arrival_s[0]:g} s", ha="center", transform=axes.transAxes)
        return
    counts, edges = np.histogram(arrival_s, bins=60)
    axes.stairs(counts / np.diff(edges), edges, color=GREEN, linewidth=1.5)
    axes.axhline(rate, color="black", linestyle=":", linewidth=1, label=f"mean {rate:.3g}/s")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)


def _token_columns(trace: Trace) -> dict[str, IntColumn]:
    return {
        "prompt_tokens": trace.prompt_tokens,
        "output_tokens": trace.output_tokens,
        "total_tokens": trace.prompt_tokens + trace.output_tokens,
    }


def _check_not_empty(trace: Trace) -> None:
    if not len(trace):
        raise PagesimError("the trace has no requests to describe")
