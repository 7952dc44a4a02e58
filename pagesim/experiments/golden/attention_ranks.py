"""Golden logs of SGLang's attention DP, with one row per rank and turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pagesim.experiments.clusters.attention_ranks import AttentionDataParallel
from pagesim.experiments.golden.sglang_details import SglangDetails
from pagesim.results.step_table import StepTable
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.sglang.attention_group import SglangRank
from pagesim.setup.prepare import prepare
from pagesim.setup.system import System
from pagesim.sim.clock import TICKS_PER_SECOND
from pagesim.workloads.trace import Trace

if TYPE_CHECKING:  # pandas is slow to import
    import pandas as pd


def tables_of_attention_ranks(system: System, trace: Trace, steps: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return pagesim's versions of a log's tables, by name.

    Args:
        system: a system with ``attn_dp_size``.
        trace: requests of the log.
        steps: the log's steps of all ranks.
    """
    import pandas as pd

    setting = prepare(system, trace)
    log = setting.new_log()
    step_tables: list[StepTable] = []
    details: list[RankDetails] = []

    def watch(number: int, routed: Any) -> Any:
        shape = setting.ledger_shape()
        step_tables.append(StepTable(routed, every=True, shape=shape, reserves=setting.reserves))
        details.append(RankDetails())
        return [details[-1]], [step_tables[-1].add]

    ranks = AttentionDataParallel(setting, log, watch=watch)
    ranks.replay()
    of_ranks = [
        noted.add_to(table.frame(), steps).assign(dp_rank=number)
        for number, (table, noted) in enumerate(zip(step_tables, details, strict=True))
    ]
    if waited := ranks.turns.waited:  # the logs' steps leave it out
        waited_s = np.array(waited) / TICKS_PER_SECOND
        of_ranks = [table.assign(step_s=table["step_s"] - waited_s) for table in of_ranks]
    together = pd.concat(of_ranks).sort_values(["step", "dp_rank"], ignore_index=True)
    requests = pd.DataFrame(setting.summary(log)[1])
    for noted in details:
        requests = noted.add_to_requests(requests)
    return {"steps": together.assign(step=range(len(together))), "requests": requests}


class RankDetails(SglangDetails):
    """Also records how each turn's batch relates to those of the other ranks."""

    def planned(self, batch: Batch, now: int, start: int, ticks: int) -> None:
        super().planned(batch, now, start, ticks)
        scheduler = self.scheduler
        assert isinstance(scheduler, SglangRank)
        turned = scheduler.mode == "turned"
        self._steps[-1].pop("step_s", None)  # that of its own batch
        noted = {"mode": scheduler.mode, "all_tokens": str(scheduler.all_tokens)}
        self._steps[-1] |= {**noted, **({"is_prefill": True} if turned else {})}
