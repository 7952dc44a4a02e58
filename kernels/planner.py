"""How a decode step is cut into programs: the tile, the splits, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any, NamedTuple

from pagesim.errors import PagesimError
from pagesim.kernels.bounds import check_power_of_two, check_within
from pagesim.kernels.layouts import NHD, Layout
from pagesim.kernels.plan_constants import MAX_WARPS, PlanConstants, constants_in_force
from pagesim.kernels.plan_time import MAX_SPLITS, StepModel, splits_for_any


@dataclass(frozen=True, slots=True)
class Gpu:
    """What the planner must know of a GPU; an H200 unless said otherwise.

    Args:
        sms: streaming multiprocessors.
        shared_bytes: shared memory of one.

    Raises:
        PagesimError: one of them is less than 1.
    """

    sms: int = 132
    shared_bytes: int = 228 * 1024

    def __post_init__(self) -> None:
        check_within("sms", self.sms, 1)
        check_within("shared_bytes", self.shared_bytes, 1)


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """How a batch of decode queries is cut up; any plan gives the right answer.

    A program takes one KV head of one sequence and a split of its tokens, tile after tile. How long a split
    is follows from the sequence's own length (``split_tokens``): skewed batches are cut where they are long,
    and a plan for contexts of any length cuts short ones as finely as it cuts long ones.

    Args:
        tile: tokens that are loaded and multiplied at once, a power of two from 16.
        tokens_per_split: of a split at least, a multiple of ``tile``.
        num_splits: the most that any sequence takes. With 1 the kernel writes the output itself
            (PagedAttention's v1); with more, a reduction over partial results follows (v2).
        num_warps: warps a program, a power of two.
        num_stages: tiles in flight, the one being multiplied included.
        row_splits: the most splits that each sequence takes, from 1: programs then find what they do in a
            list of these (``work_list``), and none is idle. None for a grid, sequences × ``num_splits``.

    Attributes:
        placed: the list on each device that it was used on.

    Raises:
        PagesimError: a number is off.
    """

    tile: int
    tokens_per_split: int
    num_splits: int
    num_warps: int
    num_stages: int
    row_splits: tuple[int, ...] | None = field(default=None, repr=False)
    placed: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_power_of_two("tile", self.tile, 16)
        check_power_of_two("num_warps", self.num_warps, 1, MAX_WARPS)
        if self.tokens_per_split < 1 or self.tokens_per_split % self.tile:
            raise PagesimError(
                f"tokens_per_split is {self.tokens_per_split}; a multiple of tile, which is {self.tile}, is"
                " needed"
            )
        check_within("num_splits", self.num_splits, 1, MAX_SPLITS)
        check_within("num_stages", self.num_stages, 1)
        for splits in {*(self.row_splits or ())}:
            check_within("row_splits", splits, 1, self.num_splits, says="holds")

    def split_tokens(self, length: int, row: int | None = None) -> int:
        """Return the tokens of a split of a sequence of this length, by the rule of the kernels.

        Args:
            length: of the sequence.
            row: which sequence it is, where there are ``row_splits``.
        """
        most = self.num_splits if row is None or self.row_splits is None else self.row_splits[row]
        return max(self.tokens_per_split, ceil(length / (most * self.tile)) * self.tile)

    def splits(self, length: int, row: int | None = None) -> int:
        """Return how many splits of a sequence of this length hold tokens; arguments as above."""
        return ceil(length / self.split_tokens(length, row))

    def count(self, context_lens: Sequence[int]) -> Programs:
        """Count the programs of a KV head for sequences of these lengths, by the rule of the kernels."""
        filled = [self.splits(length, row) for row, length in enumerate(context_lens)]
        chains = [
            ceil(min(self.split_tokens(length, row), length) / self.tile)
            for row, length in enumerate(context_lens)
        ]
        started = len(context_lens) * self.num_splits if self.row_splits is None else sum(self.row_splits)
        return Programs(started, sum(filled), max(chains, default=0))


class Programs(NamedTuple):
    """What a plan comes to, for a KV head.

    Attributes:
        started: programs.
        with_work: those that find tokens.
        longest_chain: tiles that a program takes at most, one after another.
    """

    started: int
    with_work: int
    longest_chain: int


MAX_PROGRAMS = 65_535
"""A work list is the second axis of a grid."""

_REGISTERS = 65536  # of one multiprocessor, on every GPU since Kepler


def plan_decode(
    context_lens: Sequence[int],
    *,
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    block_size: int,
    kv_bytes: int = 2,
    layout: Layout = NHD,
    gpu: Gpu | None = None,
    queries: int = 1,
    window: int | None = None,
    capacity: bool = False,
    num_splits: int | None = None,
    work_list: bool | None = None,
    tile: int | None = None,
    num_warps: int | None = None,
    num_stages: int | None = None,
    constants: PlanConstants | None = None,
) -> DecodePlan:
    """Choose how a decode step is cut up.

    With W the work of all programs, in tiles and starts, and P that of one whole split, the step takes about
    ``ceil(W / P / slots)`` rounds of P, and a reduction in proportion to the splits; the number of splits
    with the least of this is taken. For equal lengths W / P is the number of programs.

    A plan for a capacity is one for contexts whose lengths are not known, in a CUDA graph say. For equal
    lengths from ``min_split_tokens``, doubled up to the capacity, its time is divided by that of the plan for
    this length; the plan whose largest such ratio is least is taken.

    A plan by lengths has a work list where programs that would find no tokens are estimated to take at least
    ``list_gain`` of the step.

    Args:
        context_lens: tokens of each sequence, as far as they are known; too small a guess costs only time.
        q_heads: query heads.
        kv_heads: KV heads.
        head_dim: elements of a head's vector.
        block_size: tokens a block; 0 for a contiguous cache.
        kv_bytes: bytes of a stored element.
        layout: of the cache.
        gpu: what the step runs on; None for an H200.
        queries: of each sequence.
        window: tokens that a query sees; None for all so far.
        capacity: whether ``context_lens`` are the most tokens that sequences may have, not what they have.
        num_splits: into how many splits the longest sequence is cut.
        work_list: whether programs take their work from a list; None for the rule above.
        tile: tokens a tile, a power of two from 16.
        num_warps: warps a program.
        num_stages: tiles in flight.
        constants: what programs cost; None for those in force (``plan_constants``).

    Raises:
        PagesimError: an argument is out of range.
    """
    for length in {*context_lens}:
        check_within("context_lens", length, 0, says="holds")
    check_within("window", window, 1)
    check_within("num_splits", num_splits, 1, MAX_SPLITS)
    if capacity and work_list:
        raise PagesimError(
            "work_list is true and so is capacity; a list is made from sequences' own lengths, leave one out"
        )
    form = program_form(
        q_heads=q_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        kv_bytes=kv_bytes,
        layout=layout,
        gpu=gpu,
        queries=queries,
        tile=tile,
        num_warps=num_warps,
        num_stages=num_stages,
        constants=constants,
    )
    model, tile = form.model, form.model.tile
    context_lens = [read_tokens(length, tile, queries, window) for length in context_lens]
    longest = max(context_lens, default=0)
    if capacity and num_splits is None and longest:
        sequences = sum(length > 0 for length in context_lens)
        num_splits, least = splits_for_any(model, sequences, ceil(longest / tile))
        return DecodePlan(tile, least * tile, num_splits, form.num_warps, form.num_stages)
    tiles = Counter(ceil(length / tile) for length in context_lens if length)
    if num_splits is None:
        num_splits = model.best_splits(tiles)
    tokens_per_split = max(1, ceil(longest / num_splits / tile)) * tile
    num_splits = max(1, ceil(longest / tokens_per_split))
    plan = DecodePlan(tile, tokens_per_split, num_splits, form.num_warps, form.num_stages)
    if capacity or work_list is False:
        return plan
    row_splits = tuple(max(1, plan.splits(length)) for length in context_lens)
    if num_splits == 1 or sum(row_splits) > MAX_PROGRAMS:
        return plan
    empty = len(row_splits) * num_splits - sum(row_splits)
    if work_list or model.list_is_worth_it(tiles, num_splits, tokens_per_split // tile, empty):
        return replace(plan, row_splits=row_splits)
    return plan


class ProgramForm(NamedTuple):
    """What the programs of a step are like, however many there are.

    Attributes:
        model: how long steps of such programs take.
        num_warps: warps a program.
        num_stages: tiles in flight.
    """

    model: StepModel
    num_warps: int
    num_stages: int


def program_form(
    *,
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    block_size: int,
    kv_bytes: int = 2,
    layout: Layout = NHD,
    gpu: Gpu | None = None,
    queries: int = 1,
    tile: int | None = None,
    num_warps: int | None = None,
    num_stages: int | None = None,
    constants: PlanConstants | None = None,
) -> ProgramForm:
    """Choose tile, warps and stages of a decode step's programs; arguments as of ``plan_decode``.

    Raises:
        PagesimError: an argument is out of range.
    """
    check_within("head_dim", head_dim, 1)
    check_within("block_size", block_size, 0)
    check_within("kv_bytes", kv_bytes, 1)
    check_within("queries", queries, 0)
    check_within("num_stages", num_stages, 1)
    check_power_of_two("tile", tile, 16)
    check_power_of_two("num_warps", num_warps, 1, MAX_WARPS)
    if q_heads < 1 or kv_heads < 1 or q_heads % kv_heads:
        raise PagesimError(f"q_heads is {q_heads}; a multiple of kv_heads, which is {kv_heads}, is needed")
    gpu = gpu or Gpu()
    constants = constants or constants_in_force()
    padded_dim = 1 << (head_dim - 1).bit_length()
    if tile is None:
        # What is stored in a byte takes two in registers: twice the tokens would leave room for two programs.
        tile = min(128, max(16, constants.key_bytes // (padded_dim * max(2, kv_bytes))))
        if layout.value.chunk_bytes is not None and block_size:
            # A value vector lies across its block: only within a block are tokens neighbours.
            tile = min(tile, max(16, block_size & -block_size))
    rows = query_rows(queries * (q_heads // kv_heads), head_dim)
    warps = num_warps or (max(8, constants.warps) if rows > 32 else constants.warps)
    stages = num_stages or min(5, max(3, 1 + constants.flying_bytes // (2 * tile * padded_dim * kv_bytes)))
    slots = gpu.sms * _programs_a_sm(gpu, tile, padded_dim, kv_bytes, warps, stages)
    return ProgramForm(StepModel(kv_heads, tile, slots, constants), warps, stages)


def first_seen(length: int, queries: int = 1, window: int | None = None) -> int:
    """Return the first token that any of a sequence's last ``queries`` sees, by the rule of the kernels."""
    return 0 if window is None else max(length - (queries - 1) - window, 0)


def read_tokens(length: int, tile: int, queries: int = 1, window: int | None = None) -> int:
    """Return how many tokens of a sequence are cut into splits: those from the first tile that is seen."""
    return length - first_seen(length, queries, window) // tile * tile


def query_rows(vectors: int, head_dim: int) -> int:
    """Return how many of the ``vectors`` that read a KV head a program takes, as rows of a matrix.

    There are as many vectors as query heads of a KV head times queries of a sequence. Tensor cores want 16 at
    least. The most are what fits into registers: more would spill.
    """
    most = 64 if head_dim <= 128 else 16
    return min(most, max(16, 1 << (vectors - 1).bit_length()))


def _programs_a_sm(gpu: Gpu, tile: int, padded_dim: int, kv_bytes: int, warps: int, stages: int) -> int:
    """Return how many programs run on one multiprocessor at once, from what compiled kernels take."""
    shared = 2 * tile * padded_dim * kv_bytes * max(1, stages - 1) + 8 * 1024
    registers = 240 if padded_dim > 128 else 168
    return max(1, min(gpu.shared_bytes // shared, _REGISTERS // (registers * 32 * warps)))
