"""How far simulated closed loops are off: engines' own times fitted to half of the runs, the rest predicted.

    python docs/make_accuracy.py closed_loop_runs.csv --tables DIR --out accuracy.csv

Two numbers of the engine and one of its front end are fitted for each release, whatever the model; runs are
halved by a hash of model, GPU, degree of parallelism and lengths. Beside it stands what comes of the engine's
numbers of *other* models alone.
"""

from __future__ import annotations

import argparse
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from pagesim.costs import EngineTime
from pagesim.costs.operators import Store, Tables
from pagesim.costs.operators.assemble import GPUS, import_operators
from pagesim.errors import PagesimError
from pagesim.experiments.recorded.catalogue import known
from pagesim.experiments.recorded.closed_loop_table import read
from pagesim.experiments.recorded.recording import RecordedRun
from pagesim.experiments.recorded.simulate import simulate_recorded, system_of
from pagesim.models import model as model_of
from pagesim.setup.engine_config import EngineConfig
from pagesim.setup.system import System

BUDGET = 8192
"""Tokens of a batch where a run does not record them: what vLLM takes on GPUs of 70 GiB and more."""

TOKENIZER_S = 5e-6
"""Seconds of a prompt's token before the engine has it: what Hugging Face's tokenizers 0.23 takes of text of
random tokens, as those who measured sent it, with GPT-2's vocabulary on a server's core (5.0 to 6.9 µs)."""

ASYNCHRONOUS = (0, 14)
"""The release from which vLLM schedules ahead unless it is told not to."""

DISTRUSTED = {
    "Llama-3.1-8B-Instruct-FP8": "its first tokens come faster than the operators",
    "Qwen3-235B-A22B-FP8": "at tp 1 its weights do not fit, so tp does not say on how many GPUs it ran",
}
"""Why runs of a model are left out."""

SYSTEMS = {gpu: system for system, gpu in GPUS.items()}


@dataclass(frozen=True)
class Case:
    """A run that is simulated.

    Attributes:
        run: what was recorded.
        release: of the server as recorded, empty where it is unknown.
        experts: whether the model has any.
        measured: what it took, and its simulation.
    """

    run: RecordedRun
    release: str
    experts: bool
    measured: MeasuredRun

    @property
    def model(self) -> str:
        """The model's name."""
        return str(self.run.server["model"])

    @property
    def fitted(self) -> bool:
        """Whether it is of the half that the engine's numbers are fitted to."""
        server = self.run.server
        parts = (self.model, server["gpu"], server["tensor_parallel_size"], *self.run.name.split()[-2:-1])
        return zlib.crc32(" ".join(map(str, parts)).encode()) % 2 == 0


class Operators:
    """Profiles of the systems that were recorded, made of operator tables and kept in a folder.

    Args:
        folder: for their files.
        tables: a folder of operator tables; the installed package when left out.
    """

    def __init__(self, folder: Path, tables: Path | None) -> None:
        self._folder = folder
        self._tables = tables

    @cache  # noqa: B019 - as long as the process
    def _opened(self, system: str) -> Tables:
        return Tables(Store(system, tables=self._tables))

    @cache  # noqa: B019
    def file(
        self, model: str, gpu: str, tp: int, weights: str | None, kv: str, ep: int, moe_backend: str | None
    ) -> Path:
        """Return the file of a profile.

        Raises:
            PagesimError: the tables lack a term.
        """
        spec = model_of(model)
        profile = import_operators(
            self._opened(SYSTEMS[gpu]),
            spec,
            tp=tp,
            moe_ep=ep,
            moe_backend=moe_backend,
            weight_dtype=weights,
            kv_dtype=kv,
            scores=(),
        )
        lacking = [
            term
            for term, origin in profile.origins.items()
            if origin != "imported" and term not in ("copy", "swap_out", "swap_in")
        ]
        if lacking:
            notes = [note for note in profile.notes if note.partition(":")[0] in lacking]
            raise PagesimError(f"no table of {', '.join(lacking)}: {'; '.join(notes)}")
        file = self._folder / f"{profile.name}.json"
        profile.save(file)
        return file


def cases(runs: Sequence[RecordedRun], operators: Operators) -> tuple[list[Case], dict[str, str]]:
    """Return the runs that can be simulated, and why each of the others cannot."""
    found: list[Case] = []
    left_out: dict[str, str] = {}
    for run in runs:
        name = run.name.split()[1]
        try:
            if name in DISTRUSTED:
                raise PagesimError(DISTRUSTED[name])
            found.append(_case(run, operators))
        except PagesimError as error:
            left_out[run.name] = str(error)
    return found, left_out


def _case(run: RecordedRun, operators: Operators) -> Case:
    server = known(run.server)
    release = str(run.server.get("vllm_version", ""))
    parts = tuple(int(part) for part in release.split(".")[:2] if part.isdecimal())
    ahead = bool(run.server.get("async_scheduling", not parts or parts >= ASYNCHRONOUS))
    server = {
        "max_num_batched_tokens": BUDGET,
        **{name: value for name, value in server.items() if name in System.model_fields},
        "vllm_version": "0.19.0" if ahead else "0.11.2",
    }
    degree = int(run.server.get("expert_parallel_size", 1))
    if degree < 1:
        raise PagesimError(f"ep {degree} is no degree: on how many GPUs it ran is not known")
    if "model" not in server:
        raise PagesimError(f"model {run.server['model']} is not in the catalogue")
    spec = model_of(server["model"])
    if not spec.is_plain:
        server["vllm_version"] = "0.33.0"  # the first whose blocks of such layers are modelled
    if server.get("weight_dtype") == "fp8" and spec.weights_in_words != "bf16":
        del server["weight_dtype"]  # it is released so, and may have its scales by block
    recorded = replace(run, server=server)
    chosen = system_of(recorded, {})
    if chosen.gpu not in SYSTEMS:
        raise PagesimError(f"no tables of {chosen.gpu}")
    kv_dtype = EngineConfig(chosen).kv_dtype
    file = operators.file(
        chosen.model,
        chosen.gpu,
        chosen.tensor_parallel_size,
        chosen.weight_dtype,
        "bf16" if kv_dtype == "fp16" else kv_dtype,
        degree,
        run.server.get("moe_backend"),
    )

    def simulate(engine: EngineTime) -> Means:
        cost = f"profile:{file},overhead_s={engine.iteration_s:.9f},sequence_s={engine.sequence_s:.9f}"
        residuals = simulate_recorded(recorded, cost=cost, frontend=f"0,{TOKENIZER_S}").residuals
        return Means(residuals["tpot"]["mean"].simulated, residuals["ttft"]["mean"].simulated)

    simulate(EngineTime())
    measured = MeasuredRun(run.name, Means(run.means["tpot"], run.means["ttft"]), cache(simulate))
    return Case(recorded, release, spec.moe is not None, measured)


def predicted(all_cases: Sequence[Case], *, others: bool = False) -> Iterator[dict[str, object]]:
    """Yield a row for each run of the halves that were not fitted: what it took and what was predicted.

    Args:
        all_cases: of any releases.
        others: whether the engine's numbers are fitted to other models of the release alone.
    """
    for release in sorted({case.release for case in all_cases}):
        of_release = [case for case in all_cases if case.release == release]
        for model in sorted({case.model for case in of_release}):
            fitted = [c for c in of_release if c.fitted and (not others or c.model != model)]
            ahead = [c for c in of_release if not c.fitted and c.model == model]
            try:
                engine = fit_engine_time([case.measured for case in fitted])
            except PagesimError:
                continue
            front = fit_frontend([case.measured for case in fitted], engine)
            for case in ahead:
                took, took_here = case.measured.measured, case.measured.simulate(engine)
                server = case.run.server
                yield {
                    "run": case.run.name,
                    "model": model,
                    "gpu": server["gpu"],
                    "release": release or "unknown",
                    "kind": "experts" if case.experts else "dense",
                    "iteration_ms": 1e3 * engine.iteration_s,
                    "sequence_us": 1e6 * engine.sequence_s,
                    "frontend_ms": 1e3 * front,
                    "tpot_ms": 1e3 * took.tpot_s,
                    "tpot_error": took_here.tpot_s / took.tpot_s - 1,
                    "ttft_ms": 1e3 * took.ttft_s,
                    "ttft_error": (took_here.ttft_s + front) / took.ttft_s - 1,
                }


def summed(rows: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return the errors of rows of `predicted`, in percent, by some of their columns."""
    return rows.groupby(list(by)).agg(
        runs=("run", "size"),
        tpot_mean_abs=("tpot_error", lambda each: 100 * np.abs(each).mean()),
        tpot_bias=("tpot_error", lambda each: 100 * each.mean()),
        ttft_median_abs=("ttft_error", lambda each: 100 * np.abs(each).median()),
        ttft_bias=("ttft_error", lambda each: 100 * each.median()),
    )


STEP = EngineTime(1e-3, 2e-5)
"""How far the numbers are moved to see what they change."""

ROUNDS = 3
"""Times that the numbers are corrected: a time per output token is nearly linear in them."""


MOST_CONDITION = 200.0
"""Of the two numbers' effects on the runs: beyond it a percent of noise is more than all of one of them."""


class Means(NamedTuple):
    """What a run took in the mean.

    Attributes:
        tpot_s: seconds per output token.
        ttft_s: seconds to the first token.
    """

    tpot_s: float
    ttft_s: float


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A run of a server, and the same run simulated.

    Attributes:
        name: for tables.
        measured: what the server took.
        simulate: what it takes in the simulator, with an engine's own time; no front end.
    """

    name: str
    measured: Means
    simulate: Callable[[EngineTime], Means]


def fit_engine_time(runs: Sequence[MeasuredRun]) -> EngineTime:
    """Return the own time with which simulated times per output token come nearest to the measured ones.

    Least squares of relative errors, neither number below 0.

    Args:
        runs: of one engine, at several concurrencies: one alone does not tell the two numbers apart.

    Raises:
        PagesimError: there are too few runs, or the two numbers cannot be told apart.
    """
    if len(runs) < 2:
        raise PagesimError(
            f"{len(runs)} runs do not tell seconds an iteration from seconds a sequence; give two"
        )
    at = EngineTime()
    measured = np.array([run.measured.tpot_s for run in runs])
    for _ in range(ROUNDS):
        here, more, longer = (
            np.array([run.simulate(engine).tpot_s for run in runs])
            for engine in (
                at,
                EngineTime(at.iteration_s + STEP.iteration_s, at.sequence_s),
                EngineTime(at.iteration_s, at.sequence_s + STEP.sequence_s),
            )
        )
        slopes = np.stack(
            [(more - here) / STEP.iteration_s, (longer - here) / STEP.sequence_s], axis=1
        )  # [N, 2]
        rest = measured - here + slopes @ [at.iteration_s, at.sequence_s]
        # In units of the steps both columns are of one size.
        weighed = slopes * [STEP.iteration_s, STEP.sequence_s] / measured[:, None]
        if np.linalg.cond(weighed) > MOST_CONDITION:
            raise PagesimError(
                "the runs do not tell seconds an iteration from seconds a sequence: their batches are alike; "
                "give runs of other concurrencies"
            )
        (iteration, sequence), _ = nnls(weighed, rest / measured)
        at = EngineTime(
            iteration * STEP.iteration_s, sequence * STEP.sequence_s, f"fitted to {len(runs)} runs"
        )
    return at


def fit_frontend(runs: Sequence[MeasuredRun], engine: EngineTime) -> float:
    """Return the seconds beside the engine with which times to first token miss by the least in the mean.

    Args:
        runs: of one engine.
        engine: its own time.
    """
    measured = np.array([run.measured.ttft_s for run in runs])
    missing = measured - [run.simulate(engine).ttft_s for run in runs]
    # The sum of |missing - f| / measured is least at the weighted median.
    order = np.argsort(missing)
    weights = np.cumsum(1 / measured[order])
    return max(0.0, float(missing[order][np.searchsorted(weights, weights[-1] / 2)]))


def main() -> None:
    """Fit, predict and print."""
    parser = argparse.ArgumentParser(description="Predict closed loops by engine times fitted to others.")
    parser.add_argument("runs", type=Path, help="a table of closed-loop runs")
    parser.add_argument("--tables", type=Path, help="a folder of operator tables")
    parser.add_argument("--out", type=Path, help="a CSV file for the rows")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found, left_out = cases(read(asked.runs), Operators(Path(folder), asked.tables))
        rows = pd.DataFrame(predicted(found))
        foreign = pd.DataFrame(predicted(found, others=True))
    reasons = pd.Series(left_out, dtype=object).value_counts()
    print(f"{len(found)} of {len(found) + len(left_out)} runs simulated, {len(rows)} of them predicted\n")
    print("left out:\n" + reasons.to_string(), end="\n\n")
    for by in (["kind"], ["model", "gpu"], ["release", "iteration_ms", "sequence_us", "frontend_ms"]):
        print(summed(rows, by).round(1).to_string(), end="\n\n")
    if len(foreign):
        print("by the engine's numbers of other models:\n" + summed(foreign, ["model"]).round(1).to_string())
    if asked.out:
        rows.round(4).to_csv(asked.out, index=False)


if __name__ == "__main__":
    main()
