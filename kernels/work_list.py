"""The work of a skewed batch as a list: what each program does, where most of a grid would do nothing.

A grid has as many programs for a short sequence as for the longest, and those without tokens end at once, but
not for nothing. A list has one program for each split, (sequence, split, splits of the sequence), the longest
sequences first, so that the last programs to start are short ones. How many splits a sequence takes stands in
the plan: one that has grown since is cut as often and loses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pagesim.errors import PagesimError
from pagesim.kernels.planner import DecodePlan


class WorkList(NamedTuple):
    """A plan's list on a device.

    Attributes:
        items: int32 ``[programs, 3]``: a sequence, which of its splits, how many it has.
        row_splits: int32 ``[batch]``: splits of each sequence.
    """

    items: Tensor
    row_splits: Tensor


def items_of(row_splits: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return (sequence, split, splits of the sequence) of each program, sequences of most splits first."""
    order = sorted(range(len(row_splits)), key=lambda row: -row_splits[row])
    return [(row, split, row_splits[row]) for row in order for split in range(row_splits[row])]


def work_list(plan: DecodePlan, batch: int, device: torch.device) -> WorkList | None:
    """Return a plan's list, which the first call for a device brings there; None where the plan has a grid.

    Raises:
        PagesimError: the plan's list is for another number of sequences.
    """
    if plan.row_splits is None:
        return None
    if len(plan.row_splits) != batch:
        raise PagesimError(
            f"plan has a work list for {len(plan.row_splits)} sequences; q has {batch}, plan for these"
        )
    found = plan.placed.get(device)
    if found is None:
        items = _placed(items_of(plan.row_splits), device).view(-1, 3)
        found = plan.placed[device] = WorkList(items, _placed(plan.row_splits, device))
    return found


def _placed(values: Sequence[object], device: torch.device) -> Tensor:
    tensor = torch.tensor(values, dtype=torch.int32)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)  # the host does not wait
