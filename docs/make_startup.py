"""Write into docs/reference/plan.md how far the estimated KV cache is off start-up logs; print each log.

Run it from the root of the repository after a change of the estimate: python docs/make_startup.py
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

from pagesim.hardware import gpu
from pagesim.hardware.gpus import GIB
from pagesim.models import model
from pagesim.sizing import MemoryOptions, divide

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "plan.md"
LOGS = ROOT / "docs" / "plan" / "startup.csv"
BEGIN, END = "<!-- made by docs/make_startup.py -->\n", "<!-- end of start-up logs -->\n"


class Log(NamedTuple):
    """A start-up log: a row of startup.csv. What it does not say is as the release's server takes it."""

    row: dict[str, str]

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor number; (0, 0) of an engine before v1."""
        text = self.row["release"]
        return (0, 0) if text == "V0" else tuple(map(int, text.split(".")[:2]))  # type: ignore[return-value]

    @property
    def estimate_gib(self) -> float:
        """The estimate of "Available KV cache memory", with the weights of the log where it says them."""
        row, release = self.row, self.release
        found = divide(
            model(row["model"]),
            gpu(row["gpu"]),
            MemoryOptions(
                gpu_memory_utilization=float(row["gpu_memory_utilization"]),
                max_num_batched_tokens=int(row["max_num_batched_tokens"]),
                max_num_seqs=int(row["max_num_seqs"]),
                cuda_graphs=release >= (0, 21) and row["enforce_eager"] == "0",
                # FlashInfer's sampler and the V2 model runner became the defaults in these releases.
                flashinfer_sampler=not (0, 8) <= release < (0, 10),
                sampler_buffers=release >= (0, 26),
            ),
            tp=int(row["tensor_parallel_size"]),
        )
        if row["weights_gib"]:
            found = replace(found, weights=int(float(row["weights_gib"]) * GIB))
        return found.cache / GIB

    @property
    def error(self) -> float:
        """GiB by which the estimate is above the log."""
        return self.estimate_gib - float(self.row["available_gib"])


def logs(images: bool) -> list[Log]:
    """Return the logs of models without or with a tower for images."""
    with LOGS.open(encoding="utf-8", newline="") as file:
        return [Log(row) for row in csv.DictReader(file) if (row["images"] == "1") == images]


def errors(images: bool) -> tuple[int, float, float]:
    """Return the number of logs, the median and the largest absolute error of those without a named cause."""
    found = [abs(log.error) for log in logs(images)]
    unexplained = [abs(log.error) for log in logs(images) if not log.row["cause"]]
    return len(found), round(median(found), 2), round(max(unexplained), 2)


def table(images: bool) -> str:
    """Return the table of one kind of model."""
    lines = [
        "| log | vLLM | GPU | model | tp | share | GiB, log | error | cause |",
        "|---|---|---|---|--:|--:|--:|--:|---|",
    ]
    for log in logs(images):
        row = log.row
        source = f"[{row['source']}]({row['link']})" if row["link"] else row["source"]
        cells = [
            *(source, row["release"], row["gpu"], row["model"], row["tensor_parallel_size"]),
            *(row["gpu_memory_utilization"], row["available_gib"]),
            *(f"{log.error:+.2f}", row["cause"]),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def summary(images: bool) -> str:
    """Return the sentence about one kind of model."""
    number, middle, most = errors(images)
    kind = "with a vision tower" if images else "of text"
    return (
        f"- {number} logs of models {kind}: the KV cache is off by {middle:.2f} GiB in the median, and by at "
        f"most {most:.2f} GiB where no cause is known.\n"
    )


def page() -> str:
    """Return the page with the sentences as they are now."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    return before + BEGIN + summary(images=False) + summary(images=True) + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    for images in (False, True):
        print(table(images))
