"""The copies through the CUDA driver, against a driver that is a few Python functions behind C pointers."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pagesim.kernels.requirements import Unavailable  # noqa: E402
from pagesim.kernels.swap import CopyBatch, CopyEach, Pools  # noqa: E402
from pagesim.kernels.swap import driver as module  # noqa: E402
from pagesim.kernels.swap.base import SwapStrategy  # noqa: E402
from pagesim.kernels.swap.driver import CopyFailed, Driver  # noqa: E402

POINTER, SIZE, INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
STREAM = 0x5EED
INVALID_VALUE = 1


class FakeLibrary:
    """libcuda.so.1 as far as the swaps call it; ``calls`` says what came in."""

    def __init__(self, *, batched: bool = True, status: int = 0) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.attributes = b""
        self._status = status
        copy = ctypes.CFUNCTYPE(INT, ctypes.c_uint64, ctypes.c_uint64, SIZE, POINTER)
        batch = ctypes.CFUNCTYPE(INT, *[POINTER] * 3, SIZE, *[POINTER] * 2, SIZE, *[POINTER] * 2)
        find = ctypes.CFUNCTYPE(INT, ctypes.c_char_p, POINTER, INT, ctypes.c_uint64, POINTER)
        self.cuInit = ctypes.CFUNCTYPE(INT, ctypes.c_uint)(lambda flags: flags)
        self.cuMemcpyAsync = copy(self._copy)
        self._batch_function = batch(self._batch)
        self._has_batched = batched
        self.cuGetProcAddress_v2 = find(self._find)
        self.cuDriverGetVersion = ctypes.CFUNCTYPE(INT, POINTER)(self._version)
        self.cuGetErrorName = ctypes.CFUNCTYPE(INT, INT, POINTER)(self._error_name)
        self._name = ctypes.create_string_buffer(b"CUDA_ERROR_INVALID_VALUE")

    def _copy(self, target: int, source: int, size: int, stream: int) -> int:
        self.calls.append(("copy", size, stream))
        ctypes.memmove(target, source, size)
        return self._status

    def _batch(self, *given: int) -> int:
        targets, sources, sizes, count, attributes, firsts, num_attributes, _, stream = given
        moved = (SIZE * count).from_address(sizes)[:]
        addresses = ctypes.c_uint64 * count
        columns = (addresses.from_address(targets), addresses.from_address(sources), moved)
        for target, source, size in zip(*columns, strict=True):
            ctypes.memmove(target, source, size)
        # struct CUmemcpyAttributes: int, two structs of two ints, unsigned int.
        self.attributes = ctypes.string_at(attributes, 24)
        first = SIZE.from_address(firsts).value
        self.calls.append(("batch", set(moved), count, first, num_attributes, stream))
        return self._status

    def _find(self, name: bytes, address: int, version: int, flags: int, found: int) -> int:
        self.calls.append(("find", name, version, flags))
        if not self._has_batched:
            return 500  # CUDA_ERROR_NOT_FOUND
        POINTER.from_address(address).value = ctypes.cast(self._batch_function, POINTER).value
        return 0

    def _version(self, number: int) -> int:
        INT.from_address(number).value = 12060
        return 0

    def _error_name(self, status: int, name: int) -> int:
        POINTER.from_address(name).value = ctypes.addressof(self._name)
        return 0


def install(monkeypatch: pytest.MonkeyPatch, library: FakeLibrary) -> FakeLibrary:
    monkeypatch.setattr(module.ctypes, "CDLL", lambda name: library)
    made = Driver()
    for user in ("pagesim.kernels.swap.copies", "pagesim.kernels.swap.driver"):
        monkeypatch.setattr(f"{user}.driver", lambda: made)
    return library


def on_a_stream(strategy: type[SwapStrategy], pools: Pools) -> SwapStrategy:
    """Return a strategy that believes it has a CUDA stream."""
    made = object.__new__(strategy)
    made.pools, made.stream = pools, SimpleNamespace(cuda_stream=STREAM)
    return made


@pytest.mark.parametrize("strategy", [CopyEach, CopyBatch])
def test_each_piece_goes_to_its_place(strategy, monkeypatch):
    library = install(monkeypatch, FakeLibrary())
    caches = [torch.randint(0, 256, (6, 40), dtype=torch.uint8) for _ in range(3)]
    pools = Pools.beside(caches, 5)
    pools.host.fill_(0xAB)
    before = torch.stack(caches, 1)
    mover = on_a_stream(strategy, pools)

    mover.move("out", mover.checked("out", [(5, 0), (2, 4)]), slice(0, 3))
    assert torch.equal(pools.host[[0, 4]], before[[5, 2]])
    assert (pools.host[1:4] == 0xAB).all()

    mover.move("in", mover.checked("in", [(4, 0), (0, 1)]), slice(0, 3))
    after = torch.stack(caches, 1)
    assert torch.equal(after[[0, 1]], before[[2, 5]])
    assert torch.equal(after[2:], before[2:])

    made = [call for call in library.calls if call[0] != "find"]
    if strategy is CopyEach:
        assert made == [("copy", 40, STREAM)] * 12
    else:
        assert made == [("batch", {40}, 6, 0, 1, STREAM)] * 2
        assert library.attributes == (1).to_bytes(4, "little") + bytes(20)


@pytest.mark.parametrize("strategy", [CopyEach, CopyBatch])
def test_some_pieces_are_copied_alone(strategy, monkeypatch):
    install(monkeypatch, FakeLibrary())
    caches = [torch.randint(0, 256, (6, 40), dtype=torch.uint8) for _ in range(4)]
    pools = Pools.beside(caches, 5)
    pools.host.fill_(0xAB)
    mover = on_a_stream(strategy, pools)
    mover.move("out", mover.checked("out", [(5, 0), (2, 4)]), slice(2, 4))
    assert torch.equal(pools.host[[0, 4], 2:], torch.stack(caches, 1)[[5, 2], 2:])
    assert (pools.host[:, :2] == 0xAB).all()
    assert (pools.host[1:4] == 0xAB).all()


def test_the_batched_call_is_asked_for_as_cuda_12_8_declares_it(monkeypatch):
    library = install(monkeypatch, FakeLibrary())
    assert library.calls == [("find", b"cuMemcpyBatchAsync", 12080, 0)]
    assert CopyBatch.lacks(torch.device("cuda")) is None


def test_an_older_driver_has_no_batched_copies(monkeypatch):
    install(monkeypatch, FakeLibrary(batched=False))
    assert CopyEach.lacks(torch.device("cuda")) is None
    missing = CopyBatch.lacks(torch.device("cuda"))
    assert missing == "batched copies need a driver of CUDA 12.8 or later, this one is of 12.6"


def test_a_refused_copy_is_an_error_with_its_name(monkeypatch):
    install(monkeypatch, FakeLibrary(status=INVALID_VALUE))
    buffer = torch.zeros(16, dtype=torch.uint8)
    with pytest.raises(
        CopyFailed, match=r"cuMemcpyAsync failed with CUDA error 1 \(CUDA_ERROR_INVALID_VALUE\)"
    ):
        Driver().copy(buffer.data_ptr(), buffer.data_ptr(), 16, STREAM)


def test_without_a_driver_it_is_said_what_is_missing(monkeypatch):
    def absent(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(module.ctypes, "CDLL", absent)
    with pytest.raises(Unavailable, match=r"need libcuda.so.1, which is not here"):
        Driver()
