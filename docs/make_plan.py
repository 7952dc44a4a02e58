"""Write into docs/reference/plan.md how far plans are off posted start-up logs, and print each log.

Run it from the root of the repository after a change of the estimate: python docs/make_plan.py
"""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from pagesim.errors import CapacityError
from pagesim.experiments.plan import Plan, plan
from pagesim.hardware.gpus import GIB
from pagesim.setup.system import System

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "plan.md"
POSTED = ROOT / "docs" / "plan" / "posted.csv"
BEGIN, END = "<!-- made by docs/make_plan.py -->\n", "<!-- end -->\n"


class Posted(NamedTuple):
    """A start-up log: a row of posted.csv, empty cells left out."""

    row: dict[str, str]

    @property
    def available_gib(self) -> float:
        """GiB of "Available KV cache memory" in the log, with two decimals."""
        return float(self.row["available_gib"])

    @property
    def counts_cuda_graphs(self) -> bool:
        """Whether the release subtracts the memory of CUDA graphs: since 0.21."""
        release = self.row.get("release", "V0")
        return release[0] != "V" and tuple(map(int, release.split(".")[:2])) >= (0, 21)

    @property
    def system(self) -> System:
        """What was started; what a log does not say is as the release's server takes it."""
        options: dict[str, Any] = {
            name: float(self.row[name]) if "." in self.row[name] else int(self.row[name])
            for name in (
                *("tensor_parallel_size", "gpu_memory_utilization", "max_model_len"),
                *("max_num_batched_tokens", "max_num_seqs"),
            )
            if name in self.row
        }
        # Of the releases that pagesim knows, the one that divides memory alike.
        version = "0.33.0" if self.counts_cuda_graphs else "0.11.2"
        gpu = self.row.get("gpu", "a100-80gb")  # with the log's GiB it does not matter
        return System(policy="vllm-v1", model=self.row["model"], gpu=gpu, vllm_version=version, **options)

    def planned(self, cache_bytes: int | None = None) -> Plan:
        """Return the plan, from the estimate or from the bytes that are left for the cache."""
        return plan(self.system, cache_bytes=cache_bytes, enforce_eager=self.row["enforce_eager"] == "1")

    @property
    def estimated_gib(self) -> float | None:
        """The estimate of what the log says; None where the log does not say enough for one."""
        if "gpu" not in self.row:
            return None
        shorter = Posted({**self.row, "max_model_len": "64"})  # a refusal of the longest request is no matter
        return shorter.planned().cache_bytes / GIB


def posted() -> list[Posted]:
    """Return the logs."""
    with POSTED.open(encoding="utf-8", newline="") as file:
        return [Posted({name: cell for name, cell in row.items() if cell}) for row in csv.DictReader(file)]


def table() -> tuple[str, str]:
    """Return the table, and the sentence about it."""
    lines = [
        "| log | vLLM | GPU | model | tp | share | longest | GiB, log | GiB, estimate | error | "
        "tokens, log | concurrency, log | at once |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    errors = []
    for log in posted():
        row, estimate = log.row, log.estimated_gib
        cells = [
            f"[{row['source']}]({row['link']})",
            *(row.get(name, "–") for name in ("release", "card", "model", "tensor_parallel_size")),
            *(row.get(name, "–") for name in ("gpu_memory_utilization", "max_model_len", "available_gib")),
        ]
        if estimate is None:
            cells += ["–", "–"]
        else:
            errors.append((estimate - log.available_gib, estimate / log.available_gib - 1))
            cells += [f"{estimate:.2f}", f"{errors[-1][0]:+.2f} ({100 * errors[-1][1]:+.1f} %)"]
        try:
            at_once = str(log.planned(int(log.available_gib * GIB)).at_once)
        except CapacityError:
            at_once = "refused"
        concurrency = f"{row['concurrency']}x" if "concurrency" in row else "–"
        tokens = f"{int(row['tokens']):,}" if "tokens" in row else f"{row['blocks']} blocks"
        lines.append("| " + " | ".join([*cells, tokens, concurrency, at_once]) + " |")
    gib, share = ([abs(error[place]) for error in errors] for place in (0, 1))
    return "\n".join(lines), (
        f"Over the {len(errors)} logs that say enough for an estimate, it is off by {median(gib):.2f} GiB or "
        f"{100 * median(share):.1f} % in the median; the worst errors are {max(gib):.2f} GiB and "
        f"{100 * max(share):.1f} %.\n"
    )


def page() -> str:
    """Return the page with the sentence as it is now."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    return before + BEGIN + table()[1] + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(table()[0])
