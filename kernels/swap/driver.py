"""Asynchronous copies through the CUDA driver: single ones, and many in one call."""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np
import numpy.typing as npt

from pagesim.errors import PagesimError
from pagesim.kernels.requirements import Unavailable

BATCHED_SINCE = 12080
"""``cuMemcpyBatchAsync`` was added in CUDA 12.8. CUDA 13 changed its arguments; with this version number, a
driver returns the original function (CUDA driver API, cuGetProcAddress)."""

Addresses = npt.NDArray[np.uint64]


class CopyFailed(PagesimError):
    """The driver rejected a copy."""


class _Location(ctypes.Structure):
    """CUmemLocation: an optional hint, which is not given here."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Attributes(ctypes.Structure):
    """CUmemcpyAttributes of CUDA 12.8."""

    _fields_ = (
        ("source_access_order", ctypes.c_int),
        ("source_hint", _Location),
        ("target_hint", _Location),
        ("flags", ctypes.c_uint),
    )


_IN_STREAM_ORDER = 1  # CU_MEMCPY_SRC_ACCESS_ORDER_STREAM: earlier work on the stream may write the source


class Driver:
    """The driver's two copy functions.

    Raises:
        Unavailable: there is no CUDA driver on this machine.
    """

    def __init__(self) -> None:
        try:
            library = ctypes.CDLL("libcuda.so.1")
        except OSError:
            raise Unavailable("copies through the CUDA driver need libcuda.so.1, which is not here") from None
        library.cuInit(0)  # required before any other call; a missing GPU only shows when one is used
        self._copy = library.cuMemcpyAsync
        self._copy.argtypes = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p)
        self._library = library
        self._batched = _batched(library)

    @property
    def has_batched(self) -> bool:
        """Whether many copies can be made in one call."""
        return self._batched is not None

    def version(self) -> str:
        """Return the newest CUDA version that the driver supports, such as ``12.8``."""
        number = ctypes.c_int()
        self._check(self._library.cuDriverGetVersion(ctypes.byref(number)), "cuDriverGetVersion")
        return f"{number.value // 1000}.{number.value % 1000 // 10}"

    def copy(self, target: int, source: int, size: int, stream: int) -> None:
        """Copy ``size`` bytes between addresses, in stream order.

        Raises:
            CopyFailed: the driver rejected the copy.
        """
        self._check(self._copy(target, source, size, stream), "cuMemcpyAsync")

    def copy_batch(self, targets: Addresses, sources: Addresses, size: int, stream: int) -> None:
        """Copy ``size`` bytes from each source ``[N]`` to its target ``[N]``, in one call, in any order.

        Args:
            targets: addresses to copy to.
            sources: addresses to copy from.
            size: bytes of each copy.
            stream: a CUDA stream other than the default one, which the driver does not accept here.

        Raises:
            CopyFailed: the driver rejected the copies.
        """
        assert self._batched is not None, "ask has_batched first"
        sizes = np.full(len(targets), size, np.uint64)
        attributes = _Attributes(source_access_order=_IN_STREAM_ORDER)
        first, failed = ctypes.c_size_t(0), ctypes.c_size_t(0)
        status = self._batched(
            targets.ctypes.data,
            sources.ctypes.data,
            sizes.ctypes.data,
            len(targets),
            ctypes.byref(attributes),
            ctypes.byref(first),
            1,
            ctypes.byref(failed),
            stream,
        )
        self._check(status, "cuMemcpyBatchAsync")

    def _check(self, status: int, call: str) -> None:
        if status:
            name = ctypes.c_char_p()
            self._library.cuGetErrorName(status, ctypes.byref(name))
            said = name.value.decode() if name.value else "unknown"
            raise CopyFailed(f"{call} failed with CUDA error {status} ({said})")


@cache
def driver() -> Driver:
    """Return the driver, loaded once.

    Raises:
        Unavailable: there is no CUDA driver.
    """
    return Driver()


def _batched(library: ctypes.CDLL) -> ctypes._FuncPointer | None:
    """Return ``cuMemcpyBatchAsync`` as declared in CUDA 12.8, or None if the driver is older."""
    find = getattr(library, "cuGetProcAddress_v2", None)
    if find is None:
        return None
    address, found = ctypes.c_void_p(), ctypes.c_int()
    find.argtypes = (
        ctypes.c_char_p,
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.c_int,
        ctypes.c_uint64,
        ctypes.POINTER(ctypes.c_int),
    )
    status = find(b"cuMemcpyBatchAsync", ctypes.byref(address), BATCHED_SINCE, 0, ctypes.byref(found))
    if status or not address.value:
        return None
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    declared = ctypes.CFUNCTYPE(
        ctypes.c_int, pointer, pointer, pointer, size, pointer, pointer, size, pointer, pointer
    )
    return declared(address.value)
