"""Write into docs/reference/plan.md how many logs of mixed layers plans reproduce, and print each log.

Run it from the root of the repository after a change of the plans: python docs/make_hybrid_plan.py
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from pagesim.experiments.plan import blocks_behind
from pagesim.models import model
from pagesim.models.layers import ChunkLayer, Layer, StateLayer
from pagesim.sizing import BlockPlan, plan_blocks

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "plan.md"
POSTED = ROOT / "docs" / "plan" / "posted-hybrid.csv"
LAYOUTS = (ROOT / "docs" / "plan" / "layers", ROOT / "tests" / "golden" / "layouts")
BEGIN, END = "<!-- made by docs/make_hybrid_plan.py -->\n", "<!-- end of mixed layers -->\n"

TODAY = (0, 33)
"""The release that a log is taken to be of where it does not say."""

BY_REQUESTS = (0, 20, 1)
"""Since then "GPU KV cache size" is in tokens of longest requests; before, of the blocks of one group."""

TWO_BATCHES = (0, 26)
"""Since then the worst case counts two batches in flight under asynchronous scheduling; before, one."""

STATES_FOUND = (0, 21)
"""Since then prefix caching is on by default beside states, as far as the logs here tell."""


class Posted(NamedTuple):
    """A start-up log: a row of posted-hybrid.csv, empty cells left out."""

    row: dict[str, str]

    @property
    def release(self) -> tuple[int, ...]:
        """The release, of which a log without one is taken for today's."""
        return tuple(map(int, self.row["release"].split("."))) if "release" in self.row else TODAY

    @property
    def available_gib(self) -> float:
        """GiB of "Available KV cache memory" in the log, with two decimals."""
        return float(self.row["available_gib"])

    @property
    def in_flight_tokens(self) -> int:
        """Tokens in flight at most, as the release counts them; a log that does not say has no windows."""
        batches = 2 if self.release >= TWO_BATCHES and self.row.get("async_scheduling") != "0" else 1
        return batches * int(self.row.get("max_num_batched_tokens", 1))

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers, which under these releases or on these GPUs leave no state behind within a prompt."""
        (path,) = (path for at in LAYOUTS if (path := at / f"{self.row['layers']}.toml").exists())
        return tuple(
            replace(layer, checkpoint=None) if isinstance(layer, StateLayer) else layer
            for layer in model(str(path)).cache_layers
        )

    def planned(self, num_blocks: int = 1) -> BlockPlan:
        """Return the plan of so many blocks."""
        given = self.row.get("enable_prefix_caching")
        found = self.release >= STATES_FOUND if given is None else given == "1"
        return plan_blocks(
            self.layers,
            max_model_len=int(self.row["max_model_len"]),
            in_flight_tokens=self.in_flight_tokens,
            num_blocks=num_blocks,
            kv_dtype=self.row.get("kv_cache_dtype", "bf16"),
            tp=int(self.row["tensor_parallel_size"]),
            prefix_caching=found,
            # The logs with chunks name no release; what they print is that of one which turns the groups off.
            hybrid=not any(isinstance(layer, ChunkLayer) for layer in self.layers),
        )

    def lines(self, num_blocks: int) -> tuple[str, str]:
        """Return the tokens and the concurrency that the release prints of so many blocks."""
        plan = self.planned(num_blocks)
        tokens = plan.tokens
        if self.release < BY_REQUESTS:
            tokens = num_blocks // len(plan.groups) * self.block_size
        return str(tokens), f"{plan.concurrency:.2f}"

    @property
    def block_size(self) -> int:
        """Tokens of the smallest block of attention; states may have blocks of their own."""
        groups = self.planned().groups
        return min(group.block_size for group in groups if not isinstance(group.rule, StateLayer))

    @property
    def padding_layers(self) -> int:
        """Layers by which the last group of each kind is smaller than the largest."""
        groups = self.planned().groups
        largest = max(len(group.layers) for group in groups)
        return sum(largest - len(group.layers) for group in groups)

    @property
    def between(self) -> tuple[int, int]:
        """The fewest and the most blocks that the rounding of the GiB leaves."""
        return blocks_behind(self.available_gib, self.planned().bytes_per_block)

    def at(self) -> list[int]:
        """Return the numbers of blocks between them at which the release prints the lines of the log."""
        least, most = self.between
        tokens, concurrency = self.row["tokens"], self.row.get("concurrency")
        found = []
        for blocks in range(least, most + 1):
            lines = self.lines(blocks)
            if lines == (tokens, concurrency or lines[1]):
                found.append(blocks)
        return found


def posted() -> list[Posted]:
    """Return the logs."""
    with POSTED.open(encoding="utf-8", newline="") as file:
        return [Posted({name: cell for name, cell in row.items() if cell}) for row in csv.DictReader(file)]


def sentence() -> str:
    """Return the sentence about all logs."""
    equal = [bool(log.at()) for log in posted()]
    return f"Plans reproduce the tokens and the concurrency of {sum(equal)} of {len(equal)} logs.\n"


def page() -> str:
    """Return the page with the sentence as it is now."""
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    return before + BEGIN + sentence() + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    found = [{**log.row, "blocks_by_gib": log.between, "blocks_by_lines": log.at()} for log in posted()]
    print(pd.DataFrame(found).drop(columns="link").to_string())
