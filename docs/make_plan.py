"""Write into docs/reference/plan.md how far plans are off start-up logs and published capacities; print each.

Run it from the root of the repository after a change of the plans: python docs/make_plan.py
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from statistics import median

import pandas as pd

from pagesim.experiments.plan import Plan, blocks_behind, plan
from pagesim.hardware import gpu
from pagesim.hardware.gpus import GIB
from pagesim.models import model
from pagesim.setup.serve import read_serve
from pagesim.setup.system import System
from pagesim.sizing import MemoryOptions, divide

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "plan.md"
FOLDER = ROOT / "docs" / "plan"
TOLERANCE = 0.1
"""Share of the published tokens by which a plan may be off without a named cause."""


def rows_of(name: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file in docs/plan."""
    with (FOLDER / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


class Log:
    """A start-up log: a row of startup.csv. What it does not say is as the release's server takes it."""

    def __init__(self, row: dict[str, str]) -> None:
        self.row = row

    @property
    def error(self) -> float:
        """GiB by which the estimated "Available KV cache memory" is above the log's.

        The weights are the log's where it says them.
        """
        row, text = self.row, self.row["release"]
        release = (0, 0) if text == "V0" else tuple(map(int, text.split(".")[:2]))
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
        return found.cache / GIB - float(row["available_gib"])


def logs(images: bool) -> list[Log]:
    """Return the logs of models without or with a tower for images."""
    return [Log(row) for row in rows_of("startup.csv") if (row["images"] == "1") == images]


def errors(images: bool) -> tuple[int, float, float]:
    """Return the number of logs, the median and the largest absolute error of those without a named cause."""
    found = [abs(log.error) for log in logs(images)]
    unexplained = [abs(log.error) for log in logs(images) if not log.row["cause"]]
    return len(found), round(median(found), 2), round(max(unexplained), 2)


class Recipe:
    """A row of recipes.csv: a line as it is served, and the "GPU KV cache size" that is published of it."""

    def __init__(self, row: dict[str, str]) -> None:
        self.row = row
        self.published = int(row["tokens"])
        self.gib = float(row["gib"]) if row["gib"] else None

    @cached_property
    def planned(self) -> Plan:
        """The plan of the line; from the published GiB of the cache where the weights are not its model's."""
        system = System(**read_serve(self.row["line"]).merged_with({"gpu": self.row["gpu"]}))
        return plan(system, cache_bytes=int(self.gib * GIB) if self.gib and self.row["concurrency"] else None)

    @property
    def error(self) -> float | None:
        """How far the plan is above what is published, as a share of it; None without the line's weights."""
        return None if self.planned.division is None else self.planned.blocks.tokens / self.published - 1

    @property
    def from_gib(self) -> tuple[int, int] | None:
        """The fewest and the most tokens that the published GiB leave; None where they are not published."""
        if self.gib is None:
            return None
        blocks = self.planned.blocks
        least, most = blocks_behind(self.gib, blocks.bytes_per_block)
        return blocks.holding(least).tokens, blocks.holding(most).tokens


def recipes() -> list[Recipe]:
    """Return the recipes."""
    return [Recipe(row) for row in rows_of("recipes.csv")]


def of_logs() -> str:
    """Return the sentences about the start-up logs."""
    lines = []
    for images, kind in ((False, "of text"), (True, "with a vision tower")):
        number, middle, most = errors(images)
        lines.append(
            f"- {number} logs of models {kind}: the KV cache is off by {middle:.2f} GiB in the median, and "
            f"by at most {most:.2f} GiB where no cause is known.\n"
        )
    return "".join(lines)


def of_recipes() -> str:
    """Return the sentences about the recipes."""
    rows = recipes()
    off = [abs(each.error) for each in rows if each.error is not None]
    near = sum(error <= TOLERANCE for error in off)
    spans = [(each.published, *each.from_gib) for each in rows if each.from_gib is not None]
    inside = sum(least <= published <= most for published, least, most in spans)
    return (
        f"Plans of {near} of {len(off)} lines are within {100 * TOLERANCE:.0f} % of the published tokens; "
        f"the others have a named cause. From the published GiB {inside} of {len(spans)} capacities are "
        "reproduced.\n"
    )


SECTIONS: dict[str, Callable[[], str]] = {"start-up logs": of_logs, "recipes": of_recipes}
"""By the name of a part of the page, what makes its sentences."""


def page() -> str:
    """Return the page with the sentences as they are now."""
    text = PAGE.read_text(encoding="utf-8")
    for name, sentences in SECTIONS.items():
        begin, end = f"<!-- {name}, made by docs/make_plan.py -->\n", f"<!-- end of {name} -->\n"
        before, rest = text.split(begin)
        text = before + begin + sentences() + end + rest.split(end)[1]
    return text


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    found = [{"error_gib": log.error, **log.row} for images in (False, True) for log in logs(images)]
    print(pd.DataFrame(found).drop(columns="link").to_string())
    found = [{"error": each.error, "tokens_of_gib": each.from_gib, **each.row} for each in recipes()]
    print(pd.DataFrame(found).drop(columns="link").to_string())
