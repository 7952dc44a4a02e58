"""The columns and tables of a result, built from what was recorded during a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pagesim.accounting.request_log import RequestLog
from pagesim.accounting.tier_history import TierHistory
from pagesim.accounting.tree_history import TreeHistory
from pagesim.costs.engines import FrontEnd
from pagesim.scheduling.request import Status
from pagesim.sim.clock import to_seconds, to_tick_column
from pagesim.workloads.trace import Trace

if TYPE_CHECKING:  # see pagesim.api
    import pandas as pd

STATUS_NAMES = {status: status.name.lower() for status in Status}

_NO_FRONT_END = FrontEnd()


def request_columns(
    trace: Trace,
    log: RequestLog,
    front_end: FrontEnd = _NO_FRONT_END,
    served_by: npt.NDArray[np.int64] | None = None,
) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of the requests table, ``[N]`` each; NaN where an event never happened.

    Args:
        trace: the requests.
        log: outcome of the requests.
        front_end: delays that clients see in addition to the engine's; none by default.
        served_by: index of the front end that serves each request, if there are several, ``[N]``.
    """

    def seconds(ticks: Iterable[int]) -> npt.NDArray[np.float64]:
        column = np.asarray(ticks, np.int64)
        return np.where(column < 0, np.nan, to_seconds(column))

    def each_sample() -> dict[str, npt.NDArray[Any]]:
        if trace.sample_tokens is None:
            return {}
        finish = np.empty(len(trace), dtype=object)
        tokens = np.empty(len(trace), dtype=object)
        for row, lengths in enumerate(trace.sample_tokens):
            times = log.sample_finish.get(row)
            alike = log.finish[row]
            tokens[row] = list(lengths)
            finish[row] = seconds(
                [alike if times is None else times.get(k, -1) for k in range(len(lengths))]
            ).tolist()
        return {"sample_tokens": tokens, "sample_finish_s": finish}

    cached = np.zeros(len(trace), np.int64)
    cached[list(log.cached_tokens)] = list(log.cached_tokens.values())
    loaded = np.zeros(len(trace), np.int64)
    if log.loaded_tokens:
        loaded[list(log.loaded_tokens)] = list(log.loaded_tokens.values())
    names = np.array([STATUS_NAMES[status] for status in Status], dtype=object)
    sent = trace.arrival_s if log.sent is None else seconds(log.sent)
    waits = {}
    if front_end.request_s or front_end.token_s:
        waits = {"frontend_s": front_end.waits_s(sent, trace.prompt_tokens, served_by)}
    return {
        "request_id": trace.request_id,
        "arrival_s": sent,
        "prompt_tokens": trace.prompt_tokens,
        "output_tokens": trace.output_tokens,
        "n": trace.n,
        "first_scheduled_s": seconds(log.first_scheduled),
        "first_token_s": seconds(log.first_token),
        "finish_s": seconds(log.finish),
        "cached_tokens": cached,
        **({} if log.loaded_tokens is None else {"loaded_tokens": loaded}),
        "recomputes": np.asarray(log.recomputes, np.int64),
        "swaps": np.asarray(log.swaps, np.int64),
        "status": names[np.frombuffer(log.status, np.uint8)],
        **each_sample(),
        **({} if log.due is None else {"due_s": seconds(log.due)}),
        **waits,
    }


def preemption_table(trace: Trace, log: RequestLog) -> pd.DataFrame:
    """Return the victims whose preemption mode was free to choose, one row each, in order."""
    import pandas as pd

    table = np.array(log.choices, np.int64).reshape(-1, 7)
    row, when, swapped, tokens, blocks, swap, recompute = table.T
    return pd.DataFrame(
        {
            "clock": to_seconds(when),
            "request_id": trace.request_id[row],
            "choice": np.where(swapped, "swap", "recompute"),
            "tokens": tokens,
            "blocks": blocks,
            "swap_s": to_seconds(swap),
            "recompute_s": to_seconds(recompute),
        }
    )


def tier_columns(history: TierHistory) -> dict[str, npt.NDArray[Any]]:
    """Return the changes of tiers in order, with one row per change and tier."""
    columns = history.columns()
    names = np.array(history.names, dtype=object)
    ticks, place = columns.pop("ticks"), columns.pop("tier")
    return {"clock": to_seconds(ticks), "tier": names[place], **columns}


def tree_table(history: TreeHistory) -> pd.DataFrame:
    """Return the use of a radix tree's token pool, one row per planned iteration or fast-forward."""
    import pandas as pd

    columns = history.columns()
    return pd.DataFrame({"clock": to_seconds(columns.pop("ticks")), **columns})


def batch_table(columns: Mapping[str, npt.NDArray[Any]]) -> pd.DataFrame:
    """Return the static batches, one row each, derived from the columns of the requests table."""
    import pandas as pd

    requests = pd.DataFrame(columns)
    served = requests[requests["first_scheduled_s"].notna()]
    queued = requests[(requests["status"] != STATUS_NAMES[Status.REJECTED]) & requests["arrival_s"].notna()]
    batches = served.groupby("first_scheduled_s", sort=True).agg(
        batch=("n", "size"),
        max_input=("prompt_tokens", "max"),
        max_output=("output_tokens", "max"),
        sum_input=("prompt_tokens", "sum"),
        sum_output=("output_tokens", "sum"),
        end=("finish_s", "max"),
    )
    clock = batches.index.to_numpy(np.float64)
    arrived = np.searchsorted(
        to_tick_column(np.sort(queued["arrival_s"].to_numpy(np.float64))), to_tick_column(clock), "right"
    )
    left_before = np.cumsum(batches["batch"].to_numpy()) - batches["batch"].to_numpy()
    batches.insert(0, "clock", clock)
    batches.insert(1, "queue_len", arrived - left_before)
    batches["batch_s"] = batches["end"] - clock
    return batches.drop(columns="end").reset_index(drop=True)
