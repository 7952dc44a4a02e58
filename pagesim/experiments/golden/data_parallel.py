"""Golden logs of data parallelism: the tables of all ranks, and of what is between them, as a log has them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from pagesim.experiments.clusters.coordinator import Publication
from pagesim.experiments.clusters.data_parallel import DataParallel
from pagesim.experiments.clusters.routers import RoundRobin
from pagesim.experiments.golden.details import Details
from pagesim.results.step_table import StepTable
from pagesim.setup.prepare import prepare
from pagesim.setup.system import System
from pagesim.sim.clock import TICKS_PER_SECOND
from pagesim.workloads.trace import Trace

if TYPE_CHECKING:  # pandas takes long to import
    import pandas as pd


def tables_of_ranks(
    system: System, trace: Trace, names: list[str], steps: pd.DataFrame, *, tables: bool
) -> dict[str, pd.DataFrame]:
    """Return pagesim's tables of a log's trace, those that the log has, by name.

    Args:
        system: with ``data_parallel_size``.
        trace: its requests.
        names: of the requests, as the log's, ``[N]``.
        steps: the log's, of all ranks.
        tables: whether to give blocks numbers.
    """
    import pandas as pd

    setting = prepare(system, trace)
    log = setting.new_log()
    step_tables: list[StepTable] = []
    details: list[Details] = []

    def watch(number: int, routed: Any) -> Any:
        shape = setting.ledger_shape()
        step_tables.append(StepTable(routed, every=True, shape=shape, reserves=setting.reserves))
        details.append(Details(names))
        return [details[-1]], [step_tables[-1].add]

    ranks = DataParallel(setting, log, RoundRobin(), watch, tables)
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
    }


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
    """Return what the coordinator sent up to the last that any rank did; what times out behind that is left."""
    import pandas as pd

    last = max(rank.last for rank in ranks.ranks)
    published = ranks.coordinator.published
    sent = [each for each in published if each.now < last + (each.counts is None)]
    table = pd.DataFrame(sent, columns=list(Publication._fields))
    table["time"] = np.array([each.now for each in sent]) / TICKS_PER_SECOND
    table["counts"] = ["" if each.counts is None else _text(each.counts) for each in sent]
    return table


def _text(listed: Any) -> str:
    return json.dumps(listed, separators=(",", ":"))


def plain(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with lists and missing cells as text, and all else as it is."""
    columns = {}
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
        return str([round(each, 9) if isinstance(each, float) else int(each) for each in cell])
    return "" if cell is None or cell is pandas.NA or cell != cell else str(cell)
