"""Write into docs/reference/plan.md how far plans are off published capacities, and print each served line.

Run it from the root of the repository after a change of the plans: python docs/make_recipes.py
"""

from __future__ import annotations

import csv
from functools import cached_property
from pathlib import Path

from pagesim.experiments.plan import Plan, blocks_behind, plan
from pagesim.hardware.gpus import GIB
from pagesim.setup.serve import read_serve
from pagesim.setup.system import System

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "plan.md"
RECIPES = ROOT / "docs" / "plan" / "recipes.csv"
TOLERANCE = 0.1
"""Share of the published tokens by which a plan may be off without a named cause."""

BEGIN, END = "<!-- made by docs/make_recipes.py -->\n", "<!-- end of recipes -->\n"


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
    """Return the rows."""
    with RECIPES.open(encoding="utf-8", newline="") as file:
        return [Recipe(row) for row in csv.DictReader(file)]


def table() -> str:
    """Return the table."""
    lines = [
        "| published by | line | GPU | tokens | plan | error | from the published GiB | cause |",
        "|---|---|---|--:|--:|--:|---|---|",
    ]
    for each in recipes():
        row, error, span = each.row, each.error, each.from_gib
        cells = [
            f"[{row['source']}]({row['link']})",
            f"`{row['line'].removeprefix('vllm serve ')}`",
            row["gpu"],
            f"{each.published:,}",
            *(("–", "–") if error is None else (f"{each.planned.blocks.tokens:,}", f"{100 * error:+.1f} %")),
            "–" if span is None else f"{span[0]:,}–{span[1]:,}",
            row["cause"],
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


def summary() -> str:
    """Return the sentences about all rows."""
    rows = recipes()
    errors = [abs(each.error) for each in rows if each.error is not None]
    near = sum(error <= TOLERANCE for error in errors)
    spans = [(each.published, *each.from_gib) for each in rows if each.from_gib is not None]
    inside = sum(least <= published <= most for published, least, most in spans)
    return (
        f"Plans of {near} of {len(errors)} lines are within {100 * TOLERANCE:.0f} % of the published tokens; "
        f"the others have a named cause. From the published GiB {inside} of {len(spans)} capacities are "
        "reproduced.\n"
    )


def page() -> str:
    """Return the page with the sentences as they are now."""
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    return before + BEGIN + summary() + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(table())
