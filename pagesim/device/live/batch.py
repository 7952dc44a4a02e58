"""DeviceBatch: tensors of what one iteration computes: tokens, slots, block tables, lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Ints = npt.NDArray[np.int64]
Table = npt.NDArray[np.int32]

NOWHERE = -1
"""The slot of a token whose key and value are not stored."""

_ALIGNED = 256
_WIDTH = 16  # tables are a multiple of this many blocks wide, since kernels are compiled for such strides


class Columns(NamedTuple):
    """What one iteration computes, on the host; sequences with one new token come first.

    Attributes:
        tokens, positions: ids and positions of all new tokens, ``[T]``.
        slots: cache slots of their keys and values, ``[T]``.
        tables: block tables of all sequences, ``[S, blocks]``.
        lengths: tokens of each sequence, including new ones, ``[S]``.
        new: new tokens of each sequence, ``[S]``.
        decodes: number of sequences with one new token.
    """

    tokens: Ints
    positions: Ints
    slots: Ints
    tables: Table
    lengths: Ints
    new: Ints
    decodes: int


def columns_alike(new: Sequence[int], context: int, tables: Table) -> Columns:
    """Return sequences of equal context, whose token ids are 0 and whose new tokens are not stored.

    Args:
        new: new tokens of each sequence, those with one first, ``[S]``.
        context: tokens of each sequence, including new ones.
        tables: block tables, ``[S, blocks]``.
    """
    return Columns(
        tokens=np.zeros(sum(new), np.int64),
        positions=np.concatenate([np.arange(context - each, context) for each in new]),
        slots=np.full(sum(new), NOWHERE, np.int64),
        tables=tables,
        lengths=np.full(len(new), context, np.int64),
        new=np.array(new, np.int64),
        decodes=sum(each == 1 for each in new),
    )


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """What one iteration computes, on the device; see `Columns`.

    Attributes:
        tokens, positions, slots: as in `Columns`, int64 ``[T]``.
        last: row of each sequence's last token, int64 ``[S]``.
        tables: block tables, int32 ``[S, blocks]``.
        decode_lengths: lengths of the sequences with one new token, which come first, int32 ``[D]``.
        prompt_lengths: lengths of the other sequences, int32 ``[P]``.
        starts: offsets of the other sequences' new tokens from the first of them, plus the end of the last,
            int32 ``[P + 1]``.
        contexts: ``decode_lengths`` on the host.
        longest_query: most new tokens of any other sequence; 0 if there are none.
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    last: Tensor
    tables: Tensor
    decode_lengths: Tensor
    prompt_lengths: Tensor
    starts: Tensor
    contexts: Sequence[int]
    longest_query: int

    @property
    def decodes(self) -> int:
        """Number of sequences with one new token."""
        return len(self.contexts)


class Staging:
    """Transfers columns to the device; on a GPU, in a single copy from pinned memory.

    There, each ``put`` overwrites the batch that the last one returned.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._host = torch.empty(0, dtype=torch.uint8)
        self._there = torch.empty(0, dtype=torch.uint8)

    def put(self, columns: Columns) -> DeviceBatch:
        """Return the batch of these columns on the device."""
        ends = np.cumsum(columns.new)
        decodes = columns.decodes
        starts = np.concatenate([[0], ends[decodes:] - decodes]).astype(np.int32)
        lengths = columns.lengths.astype(np.int32)
        # Unaligned pointers would make kernels compile anew, so lengths are sent in two parts.
        tokens, positions, slots, last, tables, of_decodes, of_prompts, begins = self._send(
            [
                columns.tokens,
                columns.positions,
                columns.slots,
                ends - 1,
                columns.tables,
                lengths[:decodes],
                lengths[decodes:],
                starts,
            ]
        )
        return DeviceBatch(
            tokens,
            positions,
            slots,
            last,
            tables,
            of_decodes,
            of_prompts,
            begins,
            contexts=lengths[:decodes].tolist(),
            longest_query=int(columns.new[decodes:].max(initial=0)),
        )

    def _send(self, arrays: Sequence[npt.NDArray[Any]]) -> list[Tensor]:
        if self.device.type == "cpu":
            return [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
        places, end = [], 0
        for array in arrays:
            places.append(end)
            end += -(-array.nbytes // _ALIGNED) * _ALIGNED
        if end > len(self._host):
            self._host = torch.empty(2 * end, dtype=torch.uint8, pin_memory=True)
            self._there = torch.empty(2 * end, dtype=torch.uint8, device=self.device)
        written = self._host.numpy()
        for place, array in zip(places, arrays, strict=True):
            flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            written[place : place + array.nbytes] = flat
        self._there[:end].copy_(self._host[:end], non_blocking=True)
        return [
            self._there[place : place + array.nbytes]
            .view(torch.int32 if array.dtype == np.int32 else torch.int64)
            .view(array.shape)
            for place, array in zip(places, arrays, strict=True)
        ]


def table_width(blocks: int) -> int:
    """Return the padded width of tables for sequences of up to ``blocks`` blocks."""
    return max(_WIDTH, -(-blocks // _WIDTH) * _WIDTH)
