"""Golden logs of data parallelism: tables of all ranks and of what they exchange."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from pagesim.experiments.clusters.coordinator import Publication
from pagesim.experiments.clusters.data_parallel import DataParallel
from pagesim.experiments.clusters.lock_step import LockStepRank
from pagesim.experiments.clusters.ranks import Rank
from pagesim.experiments.golden.details import Details
from pagesim.results.step_table import StepTable
from pagesim.scheduling.batch import Batch
from pagesim.setup.prepare import prepare
from pagesim.setup.system import System
from pagesim.sim.clock import TICKS_PER_SECOND
from pagesim.workloads.trace import Trace

if TYPE_CHECKING:  # pandas is slow to import
    import pandas as pd


def tables_of_ranks(
    system: System, trace: Trace, names: list[str], steps: pd.DataFrame, *, tables: bool
) -> dict[str, pd.DataFrame]:
    """Return pagesim's versions of a log's tables, by name.

    Args:
        system: a system with ``data_parallel_size``.
        trace: requests of the log.
        names: the log's request names, ``[N]``.
        steps: the log's steps of all ranks.
        tables: whether block managers number their blocks.
    """
    import pandas as pd

    setting = prepare(system, trace)
    log = setting.new_log()
    step_tables: list[StepTable] = []
    details: list[PassDetails] = []

    def watch(number: int, routed: Any) -> Any:
        shape = setting.ledger_shape()
        step_tables.append(StepTable(routed, every=True, shape=shape, reserves=setting.reserves))
        details.append(PassDetails(names))
        return [details[-1]], [step_tables[-1].add]

    ranks = DataParallel(setting, log, watch=watch, tables=tables)
    for noted, rank in zip(details, ranks.ranks, strict=True):
        noted.rank = rank
    ranks.replay()
    of_ranks = []
    for number, (table, noted) in enumerate(zip(step_tables, details, strict=True)):
        like = steps[steps["rank"] == number].reset_index(drop=True)
        of_ranks.append(noted.add_to(table.frame(), like).assign(rank=number))
    _, columns = setting.summary(log)
    return {
        "steps": pd.concat(of_ranks, ignore_index=True),
        "requests": pd.DataFrame({**columns, "rank": ranks.went_to}),
        "routes": plain(_routes(ranks, names)),
        "coordinator": plain(_publications(ranks)),
        "passes": plain(_passes(ranks)),
    }


class PassDetails(Details):
    """Also records each iteration's forward pass, and its step and wave.

    Attributes:
        rank: the observed rank.
    """

    rank: Rank

    def planned(self, batch: Batch, now: int, start: int, ticks: int) -> None:
        super().planned(batch, now, start, ticks)
        rank = self.rank
        if isinstance(rank, LockStepRank):
            at = rank.lock_step.launches[rank.number] if batch.tokens else None
            self._steps[-1] |= {"wave": rank.wave, "dp_step": rank.step, "pass": at, "alone_s": ticks}

    def add_to(self, steps: pd.DataFrame, like: pd.DataFrame) -> pd.DataFrame:
        whole = super().add_to(steps, like)
        if "alone_s" in whole:
            whole["step_s"] = whole["alone_s"] / TICKS_PER_SECOND
            whole["pass"] = whole["pass"].astype("Int64")
        return whole


def _routes(ranks: DataParallel, names: list[str]) -> pd.DataFrame:
    import pandas as pd

    choices = [] if ranks.balancer is None else ranks.balancer.choices
    return pd.DataFrame(
        {
            "time": [each.now / TICKS_PER_SECOND for each in choices],
            "request_id": [names[each.row] for each in choices],
            "client": [each.server for each in choices],
            "rank": [each.rank for each in choices],
            "wave": [each.wave for each in choices],
            "counts": [_text(each.counts) for each in choices],
            "inflight": [_text(each.inflight) for each in choices],
            "start": [each.start for each in choices],
        }
    )


def _publications(ranks: DataParallel) -> pd.DataFrame:
    """Return what the coordinator published until the last action of any rank, without later timeouts."""
    import pandas as pd

    published = ranks.coordinator.published
    last, before = max(rank.last for rank in ranks.ranks)
    # The last action of a rank may end a wave at the same instant.
    ends = [each for each in published[before:] if each.now == last and each.counts is None]
    sent = published[:before] + ends
    table = pd.DataFrame(sent, columns=list(Publication._fields))
    table["time"] = np.array([each.now for each in sent]) / TICKS_PER_SECOND
    table["counts"] = ["" if each.counts is None else _text(each.counts) for each in sent]
    return table


def _passes(ranks: DataParallel) -> pd.DataFrame:
    import pandas as pd

    passes = [] if ranks.lock_step is None else ranks.lock_step.passes
    return pd.DataFrame(
        {
            "j": range(len(passes)),
            "wave": [each.wave for each in passes],
            "step": [each.step for each in passes],
            **{
                name: [getattr(each, name) / TICKS_PER_SECOND for each in passes]
                for name in ("meet", "start", "end")
            },
            "launch": [[at / TICKS_PER_SECOND for at in each.launched] for each in passes],
            "tokens": [each.tokens for each in passes],
            "dummy": [[int(is_one) for is_one in each.dummies] for each in passes],
        }
    )


def _text(listed: Any) -> str:
    return json.dumps(listed, separators=(",", ":"))


def plain(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with lists and missing cells converted to text."""
    columns: dict[Any, Any] = {}
    for name in table:
        cells = table[name]
        if cells.isna().any() or cells.dtype.kind not in "if":
            columns[name] = [_cell(cell) for cell in cells.astype(object)]
        else:
            columns[name] = cells.to_numpy()
    return type(table)(columns)


def _cell(cell: Any) -> str:
    import pandas

    if isinstance(cell, list | np.ndarray):
        return str([round(float(each), 9) if isinstance(each, float) else int(each) for each in cell])
    return "" if cell is None or cell is pandas.NA or cell != cell else str(cell)
