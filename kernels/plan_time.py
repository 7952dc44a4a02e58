"""The estimated time of a decode step under a number of splits, and the splits with the least of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import ceil
from typing import NamedTuple

from pagesim.kernels.plan_constants import PlanConstants

MAX_SPLITS = 65_535
"""Splits are the third axis of a grid, of which CUDA allows as many programs."""

Tiles = Mapping[int, int]
"""Tiles of a sequence → how many sequences have as many."""


class Parts(NamedTuple):
    """What a step's time is made of.

    Attributes:
        rounds: of programs that run at once.
        chain: tiles of the longest program, one after another.
        filled: splits that the reduction reads of one sequence at most; 0 without a reduction.
    """

    rounds: int
    chain: int
    filled: int

    def tiles(self, constants: PlanConstants) -> float:
        """Return the time of all parts, in tiles."""
        reduction = constants.reduction_tiles + constants.reduce_tiles * self.filled if self.filled else 0.0
        return self.rounds * (self.chain + constants.start_tiles) + reduction


@dataclass(frozen=True, slots=True)
class StepModel:
    """How long decode steps take on a GPU.

    Args:
        kv_heads: KV heads.
        tile: tokens of a tile.
        slots: programs that run at once.
        constants: what programs cost.
    """

    kv_heads: int
    tile: int
    slots: int
    constants: PlanConstants

    def parts(self, tiles: Tiles, splits: int, least: int) -> Parts:
        """Return what a step's time is made of.

        Args:
            tiles: how many sequences have so many tiles.
            splits: of a sequence at most.
            least: tiles of a split at least.
        """
        start = self.constants.start_tiles
        work, chain, filled = 0.0, 0, 0
        for count, times in tiles.items():
            each = max(least, ceil(count / splits))
            own = ceil(count / each)
            work += times * (count + start * own)
            chain, filled = max(chain, min(each, count)), max(filled, own)
        if not chain:
            return Parts(0, 0, 0)
        rounds = ceil(self.kv_heads * work / (chain + start) / self.slots)
        return Parts(rounds, chain, filled if splits > 1 else 0)

    def time(self, tiles: Tiles, splits: int, least: int) -> float:
        """Return the estimated time of a step, in tiles; arguments as of ``parts``."""
        return self.parts(tiles, splits, least).tiles(self.constants)

    def best_splits(self, tiles: Tiles) -> int:
        """Return the number of splits whose estimated time is least; the fewest of equals."""
        longest = max(tiles, default=0)
        best, least = 1, float("inf")
        splits, most = 1, min(MAX_SPLITS, max(1, longest * self.tile // self.constants.min_split_tokens))
        while splits <= most:
            time = self.time(tiles, splits, ceil(longest / splits))
            if time < least:
                best, least = splits, time
            splits += max(1, splits // 8)  # every count up to 16, then in steps of an eighth
        return best

    def list_is_worth_it(self, tiles: Tiles, splits: int, least: int, empty: int) -> bool:
        """Return whether idle programs would take enough of a step that a work list is to be made.

        Args:
            tiles: how many sequences have so many tiles.
            splits: of a sequence at most.
            least: tiles of a split at least.
            empty: splits of all sequences that hold no tokens.
        """
        idle = self.kv_heads * empty * self.constants.empty_tiles / self.slots
        return idle > 0 and idle >= self.constants.list_gain * self.time(tiles, splits, least)


@cache
def splits_for_any(model: StepModel, rows: int, longest: int) -> tuple[int, int]:
    """Return splits, and tiles of one at least, for sequences of any equal length up to ``longest`` tiles.

    Args:
        model: how long steps take.
        rows: sequences.
        longest: tiles.
    """
    shortest = max(1, model.constants.min_split_tokens // model.tile)
    lengths = [longest]
    while lengths[-1] > shortest:
        lengths.append(max(shortest, lengths[-1] // 2))
    chosen = {length: model.best_splits({length: rows}) for length in lengths}
    reachable = {
        length: model.time({length: rows}, splits, ceil(length / splits)) for length, splits in chosen.items()
    }

    def losses(cut: tuple[int, int]) -> tuple[float, float]:
        ratios = [model.time({n: rows}, *cut) / time for n, time in reachable.items()]
        return max(ratios), sum(ratios)

    # Of a single split no size is asked.
    cuts = [(splits, least) for splits in sorted({*chosen.values()}) for least in sorted(lengths)]
    splits, least = min(cuts, key=losses)
    return splits, longest if splits == 1 else least
