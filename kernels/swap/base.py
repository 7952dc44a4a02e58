"""The contract of every swap strategy: given blocks arrive byte for byte, on a stream of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch

from pagesim.errors import PagesimError
from pagesim.kernels.requirements import Unavailable

Copy = tuple[int, int]
"""A block to copy: (from, to), with the ids of a memory with block tables."""

BlockIds = npt.NDArray[np.int64]

Copies = Sequence[Copy] | BlockIds
"""Blocks to copy, as pairs or as an array ``[N, 2]``."""

Direction = Literal["out", "in"]
"""``out`` of the device, or ``in`` to it."""


class Blocks:
    """Checked pairs of blocks to swap, sorted by host block.

    In this order, neighbours on the host are also neighbours in staging memory.

    Args:
        device: block ids on the device, ``[N]``.
        host: block ids on the host, ``[N]``.
    """

    def __init__(self, device: BlockIds, host: BlockIds) -> None:
        order = np.argsort(host)
        self.device, self.host = device[order], host[order]
        self._there: tuple[torch.Tensor, torch.Tensor] | None = None

    def __len__(self) -> int:
        return len(self.device)

    def on(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Return both arrays on a device, sent once and asynchronously on the then current stream."""
        if self._there is None:
            self._there = (_sent(self.device, device), _sent(self.host, device))
        return self._there


@dataclass(frozen=True)
class Pools:
    """Where blocks are stored: in pieces on the device, contiguously in host memory.

    A block is one *piece* in each of the device's caches (a layer's keys, a layer's values, …). On the host
    all pieces of a block are contiguous. So a block crosses the link in one copy, however many layers there
    are, and neighbouring blocks cross it together.

    Args:
        caches: P contiguous tensors ``[device_blocks, …]`` on one device, with blocks of one size.
        host: ``[host_blocks, P, piece_bytes]``, uint8, in CPU memory; pinned if the caches are on a GPU.

    Raises:
        PagesimError: they do not match; the message says which one and why.
    """

    caches: tuple[torch.Tensor, ...]
    host: torch.Tensor

    def __post_init__(self) -> None:
        if not self.caches:
            raise PagesimError("caches is empty; it must hold at least one tensor")
        first = self.caches[0]
        for place, cache in enumerate(self.caches):
            if cache.dim() < 2 or not cache.is_contiguous():
                raise PagesimError(f"caches[{place}] must be contiguous, [blocks, …]; it is {_shown(cache)}")
            same = (cache.device, len(cache), cache[0].nbytes) == (first.device, len(first), first[0].nbytes)
            if not same:
                raise PagesimError(
                    f"caches[{place}] is {_shown(cache)}; it must have the device, the number of blocks and "
                    f"the bytes a block of caches[0], which is {_shown(first)}"
                )
        wanted = (len(self.caches), self.piece_bytes)
        if self.host.dtype != torch.uint8 or self.host.shape[1:] != wanted or not self.host.is_contiguous():
            raise PagesimError(
                f"host must be contiguous uint8 [host_blocks, {wanted[0]}, {wanted[1]}]; "
                f"it is {_shown(self.host)}"
            )
        if self.host.device.type != "cpu":
            raise PagesimError(f"host must be in CPU memory; it is on {self.host.device}")
        if self.device.type == "cuda" and not self.host.is_pinned():
            raise PagesimError("host must be pinned memory where the caches are on a GPU")

    @classmethod
    def beside(cls, caches: Sequence[torch.Tensor], host_blocks: int) -> Pools:
        """Return pools of these caches and a new, uninitialized host pool."""
        if not caches:
            raise PagesimError("caches is empty; it must hold at least one tensor")
        shape = (host_blocks, len(caches), caches[0][0].nbytes)
        pinned = caches[0].device.type == "cuda"
        return cls(tuple(caches), torch.empty(shape, dtype=torch.uint8, pin_memory=pinned))

    @property
    def device(self) -> torch.device:
        """The device of the caches."""
        return self.caches[0].device

    @property
    def device_blocks(self) -> int:
        """Number of blocks on the device."""
        return len(self.caches[0])

    @property
    def host_blocks(self) -> int:
        """Number of blocks on the host."""
        return len(self.host)

    @property
    def pieces(self) -> int:
        """Number of pieces per block, P."""
        return len(self.caches)

    @property
    def piece_bytes(self) -> int:
        """Bytes per piece."""
        return self.caches[0][0].nbytes

    @property
    def block_bytes(self) -> int:
        """Bytes per block, over all its pieces."""
        return self.pieces * self.piece_bytes

    def rows(self) -> list[torch.Tensor]:
        """Return each cache as bytes, ``[device_blocks, piece_bytes]``."""
        return [cache.view(len(cache), -1).view(torch.uint8) for cache in self.caches]


class Transfer:
    """A swap in progress."""

    def __init__(self, event: torch.cuda.Event | None = None) -> None:
        self._event = event

    @property
    def done(self) -> bool:
        """Whether every byte has arrived."""
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Wait until every byte has arrived."""
        if self._event is not None:
            self._event.synchronize()

    def join(self) -> None:
        """Make everything launched on the current stream from now on wait for this swap."""
        if self._event is not None:
            torch.cuda.current_stream().wait_event(self._event)


class SwapStrategy(ABC):
    """Copies blocks between a device pool and a host pool.

    On a GPU the copies run on the strategy's own stream, after everything queued on the current stream at the
    time of the call; ``Transfer`` tells when they finish. On the CPU they finish before the call returns.

    A subclass implements ``move``, which gets at least one block, all checked, on the strategy's stream, and
    ``lacks``, which tells what is missing.

    Args:
        pools: pools to copy between.

    Raises:
        Unavailable: this strategy cannot run on these pools' device; the message says what is missing.
    """

    name: ClassVar[str]

    def __init__(self, pools: Pools) -> None:
        missing = self.lacks(pools.device)
        if missing:
            raise Unavailable(f"strategy {self.name}: {missing}")
        self.pools = pools
        self.stream: torch.cuda.Stream | None = None
        if pools.device.type == "cuda":
            self.stream = torch.cuda.Stream(pools.device)  # type: ignore[no-untyped-call]

    @classmethod
    def lacks(cls, device: torch.device) -> str | None:
        """Return what is missing to run on a device, or None."""
        return None

    def swap_out(self, copies: Copies) -> Transfer:
        """Copy blocks from the device to the host.

        Args:
            copies: (device block, host block), as in ``swaps_out`` of `pagesim.kvcache.PagedTables`.

        Raises:
            PagesimError: a block is outside its pool or occurs twice, or something is not a pair of
                integers. Nothing is copied in this case.
        """
        return self._start("out", self.checked("out", copies))

    def swap_in(self, copies: Copies) -> Transfer:
        """Copy blocks from the host to the device.

        Args:
            copies: (host block, device block), as in ``swaps_in`` of `pagesim.kvcache.PagedTables`.

        Raises:
            PagesimError: a block is outside its pool or occurs twice, or something is not a pair of
                integers. Nothing is copied in this case.
        """
        return self._start("in", self.checked("in", copies))

    @abstractmethod
    def move(self, direction: Direction, blocks: Blocks, pieces: slice) -> None:
        """Copy some pieces of each block between device and host, in any order."""

    def checked(self, direction: Direction, copies: Copies) -> Blocks:
        """Return the checked blocks for ``swap_out`` or ``swap_in``.

        Raises:
            PagesimError: as for those methods.
        """
        sides = ("device", "host") if direction == "out" else ("host", "device")
        ids = _pairs(copies)
        bounds = {"device": self.pools.device_blocks, "host": self.pools.host_blocks}
        for side, column in zip(sides, ids.T, strict=True):
            outside = (column < 0) | (column >= bounds[side])
            if outside.any():
                at = int(outside.argmax())
                raise PagesimError(
                    f"copies[{at}]: {side} block is {column[at]}; it must be from 0 to {bounds[side] - 1}"
                )
            _, at_first, counts = np.unique(column, return_index=True, return_counts=True)
            if (counts > 1).any():
                block = column[at_first[counts > 1].min()]
                again = int(np.flatnonzero(column == block)[1])
                raise PagesimError(
                    f"copies[{again}]: {side} block {block} is named twice; a block is swapped at most once"
                )
        first, second = ids.astype(np.int64, copy=False).T
        return Blocks(first, second) if direction == "out" else Blocks(second, first)

    def _start(self, direction: Direction, blocks: Blocks) -> Transfer:
        if not len(blocks):
            return Transfer()
        self.follow_current()
        return self.run([(direction, blocks)], slice(0, self.pools.pieces))

    def follow_current(self) -> None:
        """Make all further copies wait for what is queued on the current stream."""
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.pools.device))

    def run(self, moves: Sequence[tuple[Direction, Blocks]], pieces: slice) -> Transfer:
        """Run moves of some pieces of blocks, one after another, on the strategy's own stream."""
        if self.stream is None:
            for direction, blocks in moves:
                self.move(direction, blocks, pieces)
            return Transfer()
        with torch.cuda.stream(self.stream):
            for direction, blocks in moves:
                self.move(direction, blocks, pieces)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self.stream)
        return Transfer(event)


def _sent(ids: BlockIds, device: torch.device) -> torch.Tensor:
    tensor = torch.from_numpy(ids)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def _pairs(copies: Copies) -> npt.NDArray[Any]:
    """Return pairs of integer block ids, ``[N, 2]``.

    Raises:
        PagesimError: something is not a pair of integers.
    """
    if not len(copies):
        return np.empty((0, 2), np.int64)
    try:
        ids = np.asarray(copies)
    except ValueError:  # pairs of different lengths
        ids = np.empty(0)
    if ids.ndim != 2 or ids.shape[1] != 2 or ids.dtype.kind not in "iu":
        for at, copy in enumerate(copies):
            if not _is_pair(copy):
                raise PagesimError(f"copies[{at}] is {copy}; a pair of block ids, (from, to), is needed")
    return ids


def _is_pair(copy: Any) -> bool:
    return np.shape(copy) == (2,) and all(
        isinstance(block, int | np.integer) and not isinstance(block, bool) for block in copy
    )


def _shown(tensor: torch.Tensor) -> str:
    """Return a description of a tensor for messages."""
    layout = "" if tensor.is_contiguous() else ", not contiguous"
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)} on {tensor.device}{layout}"
