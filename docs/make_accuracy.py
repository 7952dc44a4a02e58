"""How far pagesim is off, by the defaults of its own commands, on runs that others recorded.

    python docs/make_accuracy.py closed_loop_runs.csv consumer_runs.csv single_points.csv
    python docs/make_accuracy.py closed_loop_runs.csv --fit auto overhead_s sequence_s --only gpt-oss

Closed loops are halved by a hash of model, GPU, degree of parallelism and lengths; numbers of pagesim are
fitted to one half alone, and errors are those of the other.
"""

from __future__ import annotations

import argparse
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

import pagesim as ps
from pagesim.errors import PagesimError
from pagesim.experiments.recorded.catalogue import known
from pagesim.experiments.recorded.find import read
from pagesim.experiments.recorded.recording import RecordedRun
from pagesim.experiments.recorded.simulate import simulate_recorded
from pagesim.models import model as model_of

BUDGET, RELEASE = 8192, "0.19.0"
"""Tokens of a batch where no script says them, as vLLM takes on GPUs of 70 GiB and more; and the release that
stands for one that is not recorded."""

DISTRUSTED = {
    "Llama-3.1-8B-Instruct-FP8": "its first tokens come faster than its weights are read",
    "Qwen3-235B-A22B-FP8": "at tp 1 its weights do not fit, so tp does not say on how many GPUs it ran",
}
"""Why runs of a model are left out."""


def fitted(run: RecordedRun) -> bool:
    """Return whether a run is of the half that numbers are fitted to."""
    server = run.server
    parts = (server["model"], server["gpu"], server["tensor_parallel_size"], run.name.split()[-2])
    return zlib.crc32(" ".join(map(str, parts)).encode()) % 2 == 0


def simulated(run: RecordedRun, cost: str) -> dict[str, float]:
    """Return the mean seconds of a closed loop's metrics, by name, simulated with a cost.

    Raises:
        PagesimError: it cannot be simulated.
    """
    if (why := DISTRUSTED.get(run.name.split()[1])) is not None:
        raise PagesimError(why)
    if run.server["expert_parallel_size"] < 1:
        raise PagesimError("ep 0 is no degree: on how many GPUs it ran is not known")
    if "model" not in run.server:
        raise PagesimError("its model is not in the catalogue")
    flags = {"max_num_batched_tokens": BUDGET, "vllm_version": RELEASE}
    flags = {name: value for name, value in flags.items() if name not in run.server}
    if not model_of(run.server["model"]).is_plain:
        flags["vllm_version"] = "0.33.0"  # the first whose blocks of such layers are modelled
    found = simulate_recorded(run, cost=cost, **flags)
    return {metric: found.residuals[metric]["mean"].simulated for metric in ("tpot", "ttft")}


def closed_loops(file: Path, cost: str) -> tuple[pd.DataFrame, pd.Series]:
    """Return a row for each closed loop of a table, and why the others are left out."""
    rows, left_out = [], []
    for run in read(file):
        try:
            seconds = simulated(run, cost)
        except PagesimError as error:
            left_out.append(re.sub(r"^\d+: ", "", str(error)))
            continue
        _, name, dtype, *_, release, _, _, _ = run.name.split()
        kind = "dense" if model_of(run.server["model"]).moe is None else "experts"
        row = {"kind": kind, "model": name, "weights": dtype, "gpu": run.server["gpu"], "release": release}
        errors = {f"{metric}_error": seconds[metric] / run.means[metric] - 1 for metric in seconds}
        rows.append({**row, "fitted": fitted(run), "run": run.name, **errors})
    return pd.DataFrame(rows), pd.Series(left_out, dtype=object).value_counts()


def fit(file: Path, cost: str, names: Sequence[str], only: str) -> pd.Series:
    """Return the numbers of a cost that miss the times per output token of the first half by the least.

    Args:
        file: a table of closed loops.
        cost: ``auto`` or ``roofline``.
        names: of numbers that it takes, such as ``overhead_s``.
        only: what names of the runs contain.
    """
    runs = [run for run in read(file) if fitted(run) and only in run.name]

    def misses(powers: np.ndarray) -> list[float]:
        text = f"{cost}:" + ",".join(f"{name}={10**power}" for name, power in zip(names, powers, strict=True))
        return [np.log(simulated(run, text)["tpot"] / run.means["tpot"]) for run in runs]

    start = [{"overhead_s": -3.0, "sequence_s": -5.0}.get(name, -0.3) for name in names]
    found = least_squares(misses, start, bounds=(-7, 0), diff_step=0.02, loss="soft_l1", f_scale=0.1)
    return pd.Series(10**found.x, names)


MODELS = {
    "DeepSeek-R1-Distill-Llama-70B": ("llama-3.1-70b", None),
    "DeepSeek-R1-Distill-Llama-8B": ("llama-3.1-8b", None),
    "DeepSeek-R1-Distill-Qwen-1.5B": ("qwen2.5-1.5b", None),
    "DeepSeek-R1-Distill-Qwen-14B": ("qwen2.5-14b", None),
    "DeepSeek-R1-Distill-Qwen-7B": ("qwen2.5-7b", None),
    "Llama-3.1-Nemotron-70B-Instruct-HF-FP8-dynamic": ("llama-3.1-70b", "fp8"),
    "Meta-Llama-3-8B-Instruct": ("llama-3-8b", None),
    "QwQ-32B-Preview": ("qwen2.5-32b", None),
}
"""The model of the catalogue that has the shape of each, and its weights where these are not released so."""

GPUS = {"H100-PCIe": "h100-pcie", "GeForce-RTX-4090": "rtx-4090"}


def consumer(file: Path, cost: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each run of vLLM 0.8.5 on few GPUs, all requests as long as the mean."""
    for row in pd.read_csv(file).itertuples():
        name, weights = MODELS[row.model]
        lengths = f"fixed:{row.mean_input_tokens:.0f},{row.mean_output_tokens:.0f}"
        trace = ps.make_trace(lengths, num_requests=row.completed, rate=row.request_rate)
        options: dict[str, Any] = {"weight_dtype": weights, "kv_cache_dtype": "bf16", "cost": cost}
        options |= {"max_model_len": 4096, "max_num_batched_tokens": 2048, "vllm_version": "0.11.2"}
        result = ps.simulate(
            trace, model=name, gpu=GPUS[row.gpu], tensor_parallel_size=row.gpus, max_num_seqs=256, **options
        )
        error = 1e3 * result.summary["tpot"]["mean"] / row.mean_tpot_ms - 1
        first = 1e3 * result.summary["ttft"]["mean"] / row.mean_ttft_ms - 1
        yield {
            "gpu": row.gpu,
            "gpus": row.gpus,
            "model": name,
            "rate": row.request_rate,
            "tpot_error": error,
        } | {"ttft_error": first}


RELEASES = {"vLLM 0.9 or so (2025-07)": "0.11.2", "vLLM 0.11": "0.11.2", "vLLM": "0.19.0", "SGLang": None}
"""The modelled release that is nearest to each of these; 0.33.0 to others."""


def single_points(file: Path, cost: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each public number: of a server with so many clients, or requests all at once."""
    for row in pd.read_csv(file).itertuples():
        told = re.search(r"(\d+) (client|requests at once).*?(\d+)/(\d+)", row.load)
        assert told is not None
        count, closed = int(told[1]), told[2] == "client"
        name = row.model.split()[0].removesuffix("-v0.3")
        release = RELEASES.get(row.engine, "0.33.0")
        options: dict[str, Any] = {"model": name, "tensor_parallel_size": row.gpus, "cost": cost}
        options |= {"gpu": known({"gpu": row.gpu})["gpu"], "max_model_len": 16384}
        options |= {"max_concurrency": count} if closed else {}
        options |= {"mem_fraction_static": 0.85} if release is None else {"vllm_version": release}
        trace = ps.make_trace(
            f"fixed:{told[3]},{told[4]}",
            num_requests=max(10, 10 * count) if closed else count,
            arrivals="all-at-once",
        )
        summary = ps.simulate(trace, "sglang" if release is None else "vllm-v1", **options).summary
        tokens = summary["throughput"]["tokens_per_s"]
        found = {f"{name} ms": 1e3 * summary[name.lower()]["mean"] for name in ("TPOT", "TTFT")}
        found |= {"output tokens/s": tokens, "total output tokens/s": tokens}
        for metric, measured in zip(row.metric.split("; "), str(row.measured).split("; "), strict=True):
            error = 100 * (found[metric] / float(measured) - 1)
            yield {
                "model": name,
                "gpu": row.gpu,
                "gpus": row.gpus,
                "metric": metric,
                "measured": measured,
            } | {
                "simulated": round(found[metric], 2),
                "error": round(error, 1),
            }


def main() -> None:
    """Simulate, and print errors in percent."""
    parser = argparse.ArgumentParser(description="How far pagesim is off on runs that others recorded.")
    parser.add_argument("files", nargs="+", type=Path, help="closed_loop_runs.csv and others beside it")
    parser.add_argument("--cost", default="auto", help="as of pagesim run")
    parser.add_argument("--fit", nargs="+", metavar="COST NAME", help="fit numbers of a cost instead")
    parser.add_argument("--only", default="", help="with --fit: what names of the runs contain")
    asked = parser.parse_args()
    if asked.fit:
        print(fit(asked.files[0], asked.fit[0], asked.fit[1:], asked.only).to_string())
        return
    for file in asked.files:
        if file.name.startswith("closed"):
            rows, left_out = closed_loops(file, asked.cost)
            ahead = rows[~rows["fitted"]]
            for by in (["kind"], ["kind", "release"], ["kind", "model", "weights", "gpu"]):
                print(summed(ahead, by).to_string(), end="\n\n")
            print("left out:\n" + left_out.to_string(), end="\n\n")
        elif file.name.startswith("consumer"):
            rows = pd.DataFrame(consumer(file, asked.cost))
            for by in (["gpu", "gpus"], ["gpu", "gpus", "model"]):
                print(summed(rows, by).to_string(), end="\n\n")
        else:
            print(pd.DataFrame(single_points(file, asked.cost)).to_string(index=False), end="\n\n")


def summed(rows: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return errors in percent by some columns of rows: means and medians without sign, and with it."""
    return (
        rows.groupby(list(by))
        .agg(
            runs=("tpot_error", "size"),
            tpot_mean_abs=("tpot_error", lambda each: 100 * np.abs(each).mean()),
            tpot_bias=("tpot_error", lambda each: 100 * each.mean()),
            ttft_median_abs=("ttft_error", lambda each: 100 * np.abs(each).median()),
            ttft_bias=("ttft_error", lambda each: 100 * each.median()),
        )
        .round(1)
    )


if __name__ == "__main__":
    main()
