"""The two halves of a gathered swap on two streams: no half is written before what it held has been read."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pagesim.kernels.swap import GatherCopy, Pools, gather  # noqa: E402
from pagesim.kernels.swap.base import Blocks  # noqa: E402


class Stream:
    """Stands for a CUDA stream: an operation on it comes after all that it has waited for."""

    def __init__(self) -> None:
        self.before: set[int] = set()  # the operations that whatever comes next on it is behind

    def wait_stream(self, other: Stream) -> None:
        self.before |= other.before

    def record_event(self) -> frozenset[int]:
        return frozenset(self.before)

    def wait_event(self, event: frozenset[int]) -> None:
        self.before |= event


class Device:
    """Notes which operation used which half, on the stream that was current, and what it came after."""

    def __init__(self) -> None:
        self.kernels, self.link = Stream(), Stream()
        self.current = self.kernels
        self.uses: list[tuple[int, set[int]]] = []  # (address of the half, what came before)
        self.touched: list[str] = []

    def use(self, what: str, half: torch.Tensor) -> None:
        self.uses.append(
            (half.untyped_storage().data_ptr() + half.storage_offset(), set(self.current.before))
        )
        self.touched.append(what)
        self.current.before.add(len(self.uses) - 1)

    @contextmanager
    def on(self, stream: Stream):
        left, self.current = self.current, stream
        yield
        self.current = left


@pytest.fixture
def device(monkeypatch) -> Device:
    made = Device()
    monkeypatch.setattr(torch.cuda, "stream", made.on)
    return made


def swap(device: Device, blocks: int, room: int, monkeypatch) -> GatherCopy:
    """Return a strategy whose kernels and copies are only noted."""
    caches = [torch.zeros(blocks, 16, dtype=torch.uint8) for _ in range(2)]
    pools = Pools.beside(caches, blocks)
    strategy = GatherCopy(pools, staging_bytes=room * pools.block_bytes)
    strategy.stream, strategy._link = device.kernels, device.link

    def gather_blocks(*_: object, out: torch.Tensor, **__: object) -> None:
        device.use("gather", out.view(torch.uint8))

    def scatter_blocks(staging: torch.Tensor, *_: object, **__: object) -> None:
        device.use("scatter", staging.view(torch.uint8))

    monkeypatch.setattr(gather, "gather_blocks", gather_blocks)
    monkeypatch.setattr(gather, "scatter_blocks", scatter_blocks)
    assert len(strategy._halves) == min(2, room)

    def copy_(target: torch.Tensor, source: torch.Tensor, **_: bool) -> None:
        here = next(each for each in (target, source) if not _is_host(each, pools))
        device.use("copy", here)

    monkeypatch.setattr(torch.Tensor, "copy_", copy_)
    return strategy


def _is_host(tensor: torch.Tensor, pools: Pools) -> bool:
    return tensor.untyped_storage().data_ptr() == pools.host.untyped_storage().data_ptr()


def conflicts(device: Device, halves: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return pairs of operations on one half of which the second is not behind the first."""
    wrong = []
    for second, (address, before) in enumerate(device.uses):
        mine = next(half for half in halves if half[0] <= address < half[1])
        for first in range(second):
            if mine[0] <= device.uses[first][0] < mine[1] and first not in before:
                wrong.append((first, second))
    return wrong


@pytest.mark.parametrize("room", [1, 2, 5, 8])
@pytest.mark.parametrize("direction", ["out", "in"])
def test_a_half_is_used_by_one_part_at_a_time(direction, room, device, monkeypatch):
    strategy = swap(device, 12, room, monkeypatch)
    spans = [
        (half.memory.data_ptr(), half.memory.data_ptr() + half.memory.nbytes) for half in strategy._halves
    ]
    ids = torch.arange(12).numpy()
    for _ in range(2):  # the second swap finds halves that the first has used
        strategy.move(direction, Blocks(ids, ids), slice(0, 2))
    assert set(device.touched) == {"copy", "gather" if direction == "out" else "scatter"}
    assert conflicts(device, spans) == []
    assert device.kernels.before == set(range(len(device.uses))), "the swap's event comes after all of it"


@pytest.mark.parametrize("room", [1, 4, 8])
def test_a_half_is_used_by_one_layer_at_a_time(room, device, monkeypatch):
    strategy = swap(device, 12, room, monkeypatch)
    spans = [
        (half.memory.data_ptr(), half.memory.data_ptr() + half.memory.nbytes) for half in strategy._halves
    ]
    leave, come = (Blocks(ids, ids) for ids in (torch.arange(7).numpy(), torch.arange(7, 12).numpy()))
    for layer in range(2):
        strategy.move("out", leave, slice(layer, layer + 1))
        strategy.move("in", come, slice(layer, layer + 1))
    assert device.touched.count("copy") == 2 * 12, "a block of a layer crosses by itself"
    assert conflicts(device, spans) == []
    assert device.kernels.before == set(range(len(device.uses)))


@pytest.mark.parametrize("direction", ["out", "in"])
def test_the_other_half_waits_for_no_copy(direction, device, monkeypatch):
    """With two halves the second kernel or copy need not wait for the first part to have crossed."""
    strategy = swap(device, 12, 4, monkeypatch)
    ids = torch.arange(12).numpy()
    strategy.move(direction, Blocks(ids, ids), slice(0, 2))
    copies = [place for place, what in enumerate(device.touched) if what == "copy"]
    kernels = [place for place, what in enumerate(device.touched) if what != "copy"]
    if direction == "out":
        assert copies[0] not in device.uses[kernels[1]][1]
    else:
        assert kernels[0] not in device.uses[copies[1]][1]
