"""What a trace looks like: a table of statistics, and a figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pagesim.errors import PagesimError
from pagesim.workloads.arrivals import arrival_rate, gap_cv, numbered_sessions
from pagesim.workloads.reuse import ideal_reuse, reuse_distances, session_reuse
from pagesim.workloads.trace import FloatColumn, IntColumn, Trace

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Line = tuple[str, str, float, str]

# From the palette of Okabe and Ito, which people with any kind of colour blindness can tell apart.
BLUE, ORANGE, GREEN = "#0072B2", "#E69F00", "#009E73"


def describe(trace: Trace) -> pd.DataFrame:
    """Return a trace's statistics, one a row.

    Columns: ``measure``, ``statistic``, ``value``, and ``unit``. Measures are ``prompt_tokens``,
    ``output_tokens``, ``total_tokens`` (statistics ``mean``, ``p50``, ``p90``, ``p99``, ``max``),
    ``requests`` (``count``) and ``arrivals`` (``rate``, ``gap_cv``, ``duration``; the first two NaN where all
    requests arrive together; the duration is the last arrival's time less the first's). And

    - of a trace with ``hash_ids``: ``prompt_blocks``, their ``count``, and ``ideal_reuse``, the share of them
      in percent that `ideal_reuse` finds; ``reuse_distance``, the other blocks that were used since each of
      those was (`reuse_distances`);
    - of one with sessions: ``sessions`` (``count``), ``turns`` of each, and, without ``hash_ids``,
      ``prompt_tokens`` ``from_last_turn``, the share of all in percent that `session_reuse` counts;
    - of one with ``think_s``: ``think`` before turns that are not the first of their session.

    Raises:
        PagesimError: the trace has no requests.
    """
    import pandas as pd

    _check_not_empty(trace)
    lines: list[Line] = []
    for measure, values in _token_columns(trace).items():
        lines += _distribution(measure, values, "tokens")
    rate, cv = arrival_rate(trace.arrival_s), gap_cv(trace.arrival_s)
    lines += [
        ("requests", "count", float(len(trace)), ""),
        ("arrivals", "rate", np.nan if rate is None else rate, "requests/s"),
        ("arrivals", "gap_cv", np.nan if cv is None else cv, ""),
        ("arrivals", "duration", float(trace.arrival_s[-1] - trace.arrival_s[0]), "s"),
    ]
    return pd.DataFrame(
        [*lines, *_shared(trace), *_turns(trace)], columns=["measure", "statistic", "value", "unit"]
    )


def _shared(trace: Trace) -> list[Line]:
    """Return what prompts share with earlier ones, by their ids."""
    if trace.hash_ids is None:
        return []
    hits, blocks = ideal_reuse(trace)
    unit = f"blocks of {trace.hash_block_size} tokens"
    return [
        ("prompt_blocks", "count", float(blocks), unit),
        ("prompt_blocks", "ideal_reuse", 100 * hits / blocks, "%"),
        *(_distribution("reuse_distance", reuse_distances(trace), unit) if hits else []),
    ]


def _turns(trace: Trace) -> list[Line]:
    """Return what sessions are like."""
    if trace.session_id is None:
        return []
    sessions = numbered_sessions(trace)
    turns = np.bincount(sessions)
    lines = [("sessions", "count", float(len(turns)), ""), *_distribution("turns", turns, "a session")]
    if trace.hash_ids is None:
        share = 100 * session_reuse(trace) / float(trace.prompt_tokens.sum())
        lines.append(("prompt_tokens", "from_last_turn", share, "%"))
    later = np.ones(len(trace), bool)
    later[np.unique(sessions, return_index=True)[1]] = False
    if trace.think_s is not None and later.any():
        lines += _distribution("think", trace.think_s[later], "s")
    return lines


def _distribution(measure: str, values: IntColumn | FloatColumn, unit: str) -> list[Line]:
    p50, p90, p99 = np.percentile(values, [50, 90, 99])
    found = {"mean": values.mean(), "p50": p50, "p90": p90, "p99": p99, "max": values.max()}
    return [(measure, statistic, float(value), unit) for statistic, value in found.items()]


def plot_trace(trace: Trace, title: str = "") -> Figure:
    """Return a figure: histograms of prompt and output tokens on a log axis, and arrivals a second over time.

    Args:
        trace: what is drawn.
        title: above the figure.

    Raises:
        PagesimError: the trace has no requests.
    """
    from matplotlib.figure import Figure

    _check_not_empty(trace)
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    lengths, arrivals = figure.subplots(1, 2)
    _plot_lengths(lengths, trace)
    _plot_arrivals(arrivals, trace.arrival_s)
    if title:
        figure.suptitle(title, fontsize=9)
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
