"""Result: the tables and the summary of one run, on disk and in memory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from pagesim.accounting.fragmentation import fragmentation_of
from pagesim.accounting.request_log import RequestLog
from pagesim.accounting.tier_history import TierHistory
from pagesim.accounting.tree_history import TreeHistory
from pagesim.costs.engines import FrontEnd
from pagesim.results.kept_frames import KeptFrames
from pagesim.scheduling.request import Status
from pagesim.setup.files import publish, read_sealed
from pagesim.setup.reading import parse_json, read_parquet
from pagesim.setup.scenario import Scenario
from pagesim.setup.scenario_files import read_scenario, read_toml, to_toml
from pagesim.setup.system import System
from pagesim.sim.clock import to_seconds, to_tick_column
from pagesim.workloads.trace import Trace

if TYPE_CHECKING:  # see pagesim.api
    import pandas as pd

TABLES = ("requests", "steps", "batches", "preemptions", "tiers", "tree")
"""The tables of a result, each in a file of its own."""

STATUS_NAMES = {status: status.name.lower() for status in Status}


@dataclass(frozen=True)
class Stored:
    """What any replay leaves: a scenario, a summary, a row a request; as a folder, whole or not at all.

    Attributes:
        scenario: what was run; a bare `System` where the trace was given as an object.
        summary: every metric of ``docs/reference/metrics.md``, as ``summary.json`` holds it.
        request_columns: the columns of ``requests``, ``[N]`` each.
    """

    scenario: System
    summary: dict[str, Any]
    request_columns: Mapping[str, npt.NDArray[Any]]

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row a request, ``docs/reference/metrics.md`` names the columns; times in seconds."""
        import pandas as pd

        return pd.DataFrame(self.request_columns)

    _kind: ClassVar[str] = "run"
    """What a folder that holds it is, see `pagesim.setup.files`."""

    def save(self, directory: str | Path) -> Path:
        """Write the result to a folder, all of it or nothing, replacing an older result.

        Raises:
            PagesimError: the folder holds something else, or cannot be written.
        """
        return publish(Path(directory), self.write, self._kind)

    def write(self, folder: Path) -> None:
        """Write the result's files into an empty folder."""
        (folder / "scenario.toml").write_text(to_toml(self.scenario), encoding="utf-8")
        (folder / "summary.json").write_text(to_json(self.summary), encoding="utf-8")
        self.requests.to_parquet(folder / "requests.parquet", index=False)


@dataclass(frozen=True)
class Result(Stored):
    """What came of a run.

    Attributes:
        scenario: what was run; a bare `System` where the trace was given as an object.
        summary: every metric of ``docs/reference/metrics.md``, as ``summary.json`` holds it.
        request_columns: the columns of ``requests``, ``[N]`` each.
        requests: one row a request, as a DataFrame; times in seconds.
        kept_steps: what ``steps`` is made of; None if they were not kept.
        steps: one row a stretch of like iterations, or one an iteration; None if they were not kept.
        batches: one row a static batch; None for other schedulers.
        preemptions: one row a victim whose preemption was free to choose; None but under ``auto``.
        tier_columns: the columns of ``tiers``, ``[C]`` each; None where there is no tier.
        tiers: one row a change of a tier beside the device, in chunks by entry; None where there is no tier.
        tree: one row an iteration that was planned or a fast-forward, where prefixes are cached in a radix
            tree and steps were kept; else None.
        notes: what was noticed or assumed on the way.
    """

    kept_steps: KeptFrames | None = None
    batches: pd.DataFrame | None = None
    preemptions: pd.DataFrame | None = None
    tier_columns: Mapping[str, npt.NDArray[Any]] | None = None
    tree: pd.DataFrame | None = None
    notes: tuple[str, ...] = ()

    @cached_property
    def steps(self) -> pd.DataFrame | None:
        """One row a stretch of like iterations, or one an iteration; None if they were not kept."""
        return None if self.kept_steps is None else self.kept_steps.frame()

    @cached_property
    def tiers(self) -> pd.DataFrame | None:
        """One row a change of a tier beside the device, in chunks by entry; None where there is no tier."""
        if self.tier_columns is None:
            return None
        import pandas as pd

        return pd.DataFrame(self.tier_columns)

    def fragmentation(self) -> pd.DataFrame:
        """Return where the KV cache went: used, reserved, lost to fragmentation, cached or free.

        The rows are ``used``, ``reserved``, ``internal fragmentation`` and its parts ``unused reservation``
        and ``rounding``, ``external fragmentation``, ``cached`` and ``free``. A hybrid cache has ``recurrent
        states``, ``padding`` (a part) and ``out of window``, too; blocks of requests that do not run have
        rows of their own. ``docs/reference/metrics.md`` defines them all.

        Returns:
            Shares of the capacity from 0 to 1, 8 rows or more by 3 columns: ``mean over iterations`` (each
            counts the same), ``mean over time`` (each counts as long as it takes, and idle time is free) and
            ``peak`` (the most in one iteration). In either mean all rows but the parts add up to 1; peaks do
            not, as they are of different iterations. Under ``window`` they are of the window's iterations.
            NaN where none ran.
        """
        import pandas as pd

        return pd.DataFrame(fragmentation_of(self.summary["memory"]), dtype=np.float64)

    def write(self, folder: Path) -> None:
        from pagesim.results.prometheus import openmetrics

        super().write(folder)
        (folder / "metrics.prom").write_text(openmetrics(self), encoding="utf-8")
        if self.kept_steps is not None:
            self.kept_steps.write(folder / "steps.parquet")
        for name in TABLES[2:]:
            table = getattr(self, name)
            if table is not None:
                table.to_parquet(folder / f"{name}.parquet", index=False)


def load(directory: str | Path) -> Result:
    """Read a result that was saved.

    Args:
        directory: a folder that `Result.save` or ``--out`` of ``pagesim run`` wrote, or one that ``--out`` of
            ``pagesim run --policies`` made for a policy.

    Raises:
        PagesimError: the folder is no result, or not the whole of one.
    """
    folder = Path(directory)
    summary, tables = read_result(folder, TABLES, "run", "pagesim run")
    requests = tables.pop("requests")
    scenario = folder / "scenario.toml"
    kind = Scenario if "trace" in read_toml(scenario) else System
    return Result(
        read_scenario(kind, scenario),
        summary,
        {name: requests[name].to_numpy() for name in requests.columns},
        KeptFrames.of(tables["steps"]) if "steps" in tables else None,
        tables.get("batches"),
        tables.get("preemptions"),
        _columns(tables.get("tiers")),
        tables.get("tree"),
    )


def read_result(
    folder: Path, tables: tuple[str, ...], kind: str, command: str
) -> tuple[dict[str, Any], dict[str, pd.DataFrame]]:
    """Return the summary and the tables of a stored result, as they were when it was stored.

    Args:
        folder: the result's.
        tables: by name; one that the result does not have is left out.
        kind: what the folder must be, see `pagesim.setup.files`.
        command: that stores such folders.

    Raises:
        PagesimError: the folder holds no such result, or a file is missing or was changed.
    """
    names = {f"{name}.parquet": name for name in tables}
    files = read_sealed(folder, ("scenario.toml", "summary.json", *names), kind, command)
    found = {name: read_parquet(files[file]).to_pandas() for file, name in names.items() if file in files}
    return parse_json(files["summary.json"]), found


def _columns(table: pd.DataFrame | None) -> dict[str, npt.NDArray[Any]] | None:
    return None if table is None else {name: table[name].to_numpy() for name in table.columns}


def to_json(value: Any) -> str:
    """Return JSON with a line a field, as every file of ours has it."""
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


_NO_FRONT_END = FrontEnd()


def request_columns(
    trace: Trace,
    log: RequestLog,
    front_end: FrontEnd = _NO_FRONT_END,
    served_by: npt.NDArray[np.int64] | None = None,
) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of the requests table, ``[N]`` each; NaN where something never happened.

    Args:
        trace: the requests.
        log: what became of them.
        front_end: what clients wait beside the engine; nothing when left out.
        served_by: which of several front ends each request goes through, ``[N]``.
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
    """Return the victims whose preemption was free to choose, one row each, in order."""
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
    """Return the changes of tiers, one row a tier each, in order."""
    columns = history.columns()
    names = np.array(history.names, dtype=object)
    ticks, place = columns.pop("ticks"), columns.pop("tier")
    return {"clock": to_seconds(ticks), "tier": names[place], **columns}


def end_of(result: Result) -> float:
    """Return when a run was over, in seconds: the end of the last row of its steps, or what happened last."""
    columns, steps = result.request_columns, result.kept_steps
    others = columns["arrival_s"]
    if steps is not None and steps.rows:
        # A row of several iterations ends later, but tells no more than when its first one does.
        last = steps.last()
        others = np.array([last["start"] + last["step_s"]])
    return float(np.nanmax(np.concatenate([columns["finish_s"], others]), initial=0.0))


def tree_table(history: TreeHistory) -> pd.DataFrame:
    """Return where the tokens of a radix tree's pool were, a row an iteration or a fast-forward, in order."""
    import pandas as pd

    columns = history.columns()
    return pd.DataFrame({"clock": to_seconds(columns.pop("ticks")), **columns})


def batch_table(columns: Mapping[str, npt.NDArray[Any]]) -> pd.DataFrame:
    """Return the static batches, one row each, from the columns of the requests table."""
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
