"""Terminal output of runs: latencies, memory, and several systems side by side."""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import wrap
from typing import Any

from pagesim.accounting.fragmentation import LABELS, categories, fragmentation_of
from pagesim.accounting.ledger import GROUP_ENTRIES
from pagesim.accounting.metrics import capacity_in, entries_in
from pagesim.cli.printing import put_side_by_side, put_table
from pagesim.cli.show import say
from pagesim.experiments.clusters import ClusterResult
from pagesim.hardware.gpu_spec import GIB
from pagesim.results.result import Result
from pagesim.results.style import PARTS

Summary = dict[str, Any]


def one(result: Result) -> None:
    """Print a run's summary."""
    summary = result.summary
    say(_outcome(summary))
    _latencies(summary)
    shares = fragmentation_of(summary["memory"])
    put_table(
        f"KV cache, % of {_capacity(summary['memory'])}",
        ("", *shares),
        [
            (row.indented, *(_percent(column[row.label]) for column in shares.values()))
            for row in categories(entries_in([summary]))
        ],
    )
    groups = summary["memory"].get("groups")
    if groups:
        _groups(groups)
    if "tiers" in summary:
        _tiers(summary["tiers"])


def _capacity(memory: Summary) -> str:
    """Return the size of a KV cache as text: in tokens, or in GiB per GPU for a hybrid cache."""
    size = capacity_in(memory)
    blocks = f"{memory['num_blocks']:,} blocks of {memory['block_size']}"
    if "capacity_bytes" in memory:
        return f"{size / GIB:,.2f} GiB in {blocks} tokens"
    return f"{size:,} tokens in {blocks}"


def _tiers(tiers: dict[str, Summary]) -> None:
    """Print the transfers to and from each tier, one column per tier."""
    names = list(next(iter(tiers.values()))["bytes"])
    put_side_by_side(
        "Tiers, GiB",
        list(tiers),
        [(what, [f"{tier['bytes'][what] / GIB:,.2f}" for tier in tiers.values()]) for what in names],
    )


def _groups(groups: dict[str, Summary]) -> None:
    """Print how the memory of each KV cache group is used, one column per group."""
    means = [group["per_iteration"] for group in groups.values()]
    put_side_by_side(
        "By KV group, % of capacity, mean over iterations",
        [name.replace(":", "\n", 1) for name in groups],
        [
            (row.indented, [_number(row.share(each), 2) for each in means])
            for row in categories(GROUP_ENTRIES)
            if any(row.share(each) for each in means)
        ],
    )


def cluster(result: ClusterResult) -> None:
    """Print a cluster's results: all replicas together, and how they differ."""
    summary = result.summary
    say(_outcome(summary))
    _latencies(summary)
    pools = [name for name in ("prefill", "decode") if name in summary["cluster"]]
    if pools:
        _pools(result)
        return
    rows = _over_replicas(result.replicas, _OF_REPLICAS)
    title = f"{summary['cluster']['replicas']} replicas behind {summary['cluster']['router']}"
    put_table(title, ("", "least", "mean", "most"), rows)
    together = summary["cluster"].get("lock_step")
    if together and together["passes"]:
        share = together["dummy_batches"] / (together["passes"] * summary["cluster"]["replicas"])
        waves = "a wave" if together["waves"] == 1 else f"{together['waves']:,} waves"
        say(
            f"{together['passes']:,} forward passes of all replicas in {waves}; {100 * share:.1f} % of their "
            "batches were dummies, of replicas that had nothing to compute"
        )


_OF_REPLICAS = (
    ("requests", "requests", 0),
    ("mean_batch", "mean batch", 2),
    ("busy_share", "share of the time busy", 3),
    ("used_percent", "KV cache used, % of time", 2),
    ("recomputes", "recomputed", 0),
    ("ttft_p99_s", "TTFT, p99, s", 3),
)
"""What is shown of replicas: a column, its label, its digits."""

_OF_POOLS = {
    "prefill": ("held_for_transfer_percent", "held for transfer, % of time", 2),
    "decode": ("landing_percent", "landing, % of time", 2),
}
"""What is shown of a pool beside that."""


def _pools(result: ClusterResult) -> None:
    """Print the outcome of KV transfers, and how the replicas of each pool differ."""
    summary = result.summary
    pulls = summary["pulls"]
    rows = [
        (label, *(_number(pulls[name][each], 4) for each in ("mean", "p50", "p99")))
        for name, label in (("waited_s", "prompt computed to pull, s"), ("took_s", "pull, s"))
    ]
    put_table(f"{pulls['pulled']:,} pulls of {pulls['blocks']:,} blocks", ("", "mean", "p50", "p99"), rows)
    for pool, own in _OF_POOLS.items():
        of_pool = result.replicas[result.replicas["pool"] == pool]
        rows = _over_replicas(of_pool, (*_OF_REPLICAS[:4], own, *_OF_REPLICAS[4:]))
        cluster = summary["cluster"][pool]
        title = f"{pool}: {cluster['replicas']} replicas behind {cluster['router']}"
        put_table(title, ("", "least", "mean", "most"), rows)


def _over_replicas(table: Any, shown: tuple[tuple[str, str, int], ...]) -> list[tuple[str, ...]]:
    """Return rows of the minimum, mean and maximum over replicas."""
    rows = []
    for name, label, digits in shown:
        column = table[name]
        values = (column.min(), column.mean(), column.max())
        rows.append((label, *(_number(each, digits) for each in values)))
    return rows


def side_by_side(summaries: dict[str, Summary]) -> None:
    """Print a comparison, one column per policy."""
    names = _broken(summaries)
    put_side_by_side(
        "KV cache, % of capacity, mean over iterations",
        names,
        [
            (
                row.indented,
                [_number(row.share(s["memory"]["strict"]["per_iteration"]), 1) for s in summaries.values()],
            )
            for row in categories(entries_in(summaries.values()))
        ],
    )
    _bars(summaries)
    rows = []
    for label, digits, keys in (
        ("requests finished", 0, ("requests", "finished")),
        ("mean batch", 2, ("batch", "mean")),
        ("requests/s", 2, ("throughput", "requests_per_s")),
        ("tokens/s", 1, ("throughput", "tokens_per_s")),
        ("s/token, mean", 4, ("normalized_latency", "mean")),
        ("s/token, p95", 4, ("normalized_latency", "p95")),
        ("TTFT, p50, s", 3, ("ttft", "p50")),
        ("TPOT, p50, s", 4, ("tpot", "p50")),
        ("recomputed", 0, ("preemptions", "recompute")),
        ("swapped out", 0, ("preemptions", "swap")),
    ):
        section, key = keys
        rows.append((label, [_number(s[section][key], digits) for s in summaries.values()]))
    if any(map(_caches, summaries.values())):
        hits = [s["prefix"]["share"] if _caches(s) else None for s in summaries.values()]
        rows.append(("prefix hit rate, %", [_percent(each) for each in hits]))
    put_side_by_side("Service", names, rows)
    for policy, summary in summaries.items():
        if any(summary["requests"][outcome] for outcome in ("rejected", "unschedulable", "aborted")):
            say(f"{policy}: {_outcome(summary)}")


def _bars(summaries: dict[str, Summary]) -> None:
    """Print one stacked bar per policy, one character per two percent, distinguishable without colours."""
    longest = max(map(len, summaries))
    for policy, summary in summaries.items():
        means = summary["memory"]["strict"]["per_iteration"]
        bar, done, drawn = "", 0.0, 0
        for entry in entries_in([summary]):
            done += means[entry] or 0.0
            upto = round(done / 100 * _BAR)
            bar += PARTS[entry].glyph * (upto - drawn)
            drawn = upto
        say(f"  {policy:>{longest}} {bar}")
    shown = [
        e
        for e in entries_in(summaries.values())
        if any(s["memory"]["strict"]["per_iteration"].get(e) for s in summaries.values())
    ]
    legend = " ".join(f"{PARTS[entry].glyph} {LABELS[entry]}".replace(" ", "\xa0") for entry in shown)
    for line in wrap(legend, max(_BAR, 80 - 3 - longest), break_on_hyphens=False):
        say(f"  {'':>{longest}} {line}".replace("\xa0", " "))
    say("")


def _broken(policies: Iterable[str]) -> list[str]:
    """Break names into two lines, so that five policies fit on a narrow terminal."""
    return [name.replace("-", "-\n", 1) for name in policies]


_BAR = 50
_LATENCIES = {
    "normalized_latency": "per output token",
    "latency": "end to end",
    "ttft": "to first token (TTFT)",
    "tpot": "per further token (TPOT)",
    "itl": "between tokens (ITL)",
    "queueing": "queueing",
}


def _latencies(summary: Summary) -> None:
    columns = ("mean", "p50", "p90", "p95", "p99")
    rows = [
        (label, *(_seconds(summary[name][column]) for column in columns))
        for name, label in _LATENCIES.items()
    ]
    put_table("Latency, seconds", ("", *columns), rows)


def _outcome(summary: Summary) -> str:
    requests = summary["requests"]
    parts = [f"{requests['finished']} of {requests['total']} requests finished"]
    if requests["rejected"]:
        parts.append(f"{requests['rejected']} rejected ({'; '.join(summary['rejections'])})")
    if requests["unschedulable"]:
        why = ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in summary["failure_modes"].items() if v)
        parts.append(f"{requests['unschedulable']} given up ({why})")
    if requests["aborted"]:
        parts.append(f"{requests['aborted']} aborted by their clients")
    if requests["unfinished"]:
        parts.append(f"{requests['unfinished']} unfinished")
    parts.append(f"{summary['iterations']} iterations")
    parts.append(f"mean batch {_number(summary['batch']['mean'], 2)}")
    parts.append(f"{sum(summary['preemptions'].values())} preemptions")
    if _caches(summary):
        parts.append(f"prefix hit rate {_percent(summary['prefix']['share'])} %")
    if "speculation" in summary:
        drafts = summary["speculation"]
        parts.append(f"{drafts['accepted']} of {drafts['drafted']} drafts accepted")
    if "stages" in summary:
        layers = ", ".join(str(stage["layers"]) for stage in summary["stages"])
        busy = ", ".join(_percent(stage["busy"]) for stage in summary["stages"])
        parts.append(f"stages of {layers} layers busy {busy} % of the time")
    parts.append(f"{_number(summary['throughput']['tokens_per_s'], 1)} tokens/s")
    return ", ".join(parts)


def _caches(summary: Summary) -> bool:
    """Return whether prefix caching was on, by the options or by its hits."""
    options = {**summary["options"]["defaults"], **summary["options"]["given"]}
    radix = options.get("disable_radix_cache", True)
    return bool(options.get("enable_prefix_caching") or not radix or summary["prefix"]["cached_tokens"])


def _seconds(value: float | None) -> str:
    return _number(value, 4 if value is not None and value < 100 else 1)


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _percent(share: float | None) -> str:
    return _number(None if share is None else 100 * share, 2)
