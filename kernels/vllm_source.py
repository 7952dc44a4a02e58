"""vLLM's Triton decode attention, taken from an installed or an unpacked vLLM, as launches that compile here.

vLLM's own wrapper chooses the tile, the rows and the form: it is called with tensors that have no memory, and
what it would start is noted. Of what its file imports only the kernel's own helpers are loaded; the rest
(logger, platform, environment) is stood in for, so that neither a GPU nor vLLM's dependencies are needed.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import triton
import triton.language as tl

from pagesim.errors import PagesimError
from pagesim.kernels.launch import Launch

OPS = "vllm.v1.attention.ops"
ATTENTION, HELPERS = "triton_unified_attention", "triton_attention_helpers"
SEGMENTS = 16
"""Segments of its split form, a fixed number (its Triton backend, ``NUM_PAR_SOFTMAX_SEGMENTS``)."""

BLOCKS = 8192
"""Blocks of the caches that it is called with."""

DEFAULTS = {"num_warps": 4, "num_stages": 3}
"""Triton's own, where vLLM names none."""


class _QuantMode(IntEnum):
    """Those of vLLM's modes of a quantised cache that its attention looks at, with its numbers."""

    NONE = 0
    FP8_PER_TENSOR = 1
    INT8_PER_TOKEN_HEAD = 2
    FP8_PER_TOKEN_HEAD = 3
    INT4_PER_TOKEN_HEAD = 4


class _Platform:
    @staticmethod
    def fp8_dtype() -> torch.dtype:
        return torch.float8_e4m3fn

    @staticmethod
    def is_device_capability_family(family: int) -> bool:
        return False


class _Noted(Exception):
    """The launch that the wrapper was about to make."""

    def __init__(self, grid: tuple[int, ...], arguments: dict[str, Any]) -> None:
        self.grid, self.arguments = grid, arguments


class _Notes:
    """Stands in for a kernel: what would be started is raised."""

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def start(**arguments: Any) -> None:
            raise _Noted(grid, arguments)

        return start


def unified_attention(folder: Path) -> ModuleType:
    """Return vLLM's module of unified attention.

    Args:
        folder: that holds the folder ``vllm``: ``site-packages``, or where a wheel was unpacked.

    Raises:
        PagesimError: there is no such module, or it needs more than is stood in for.
    """
    files = [folder / OPS.replace(".", "/") / f"{name}.py" for name in (HELPERS, ATTENTION)]
    for file in files:
        if not file.is_file():
            raise PagesimError(
                f"--vllm is {folder}; the folder that holds vllm/ of vLLM 0.33 is needed; {file} is no file"
            )
    with _stand_ins():
        try:
            return [_load(f"{OPS}.{file.stem}", file) for file in files][-1]
        except (ImportError, AttributeError) as error:
            raise PagesimError(
                f"--vllm is {folder}; vLLM 0.33's kernel is needed, and this: {error}"
            ) from error


def decode_launch(
    module: ModuleType,
    *,
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    block_size: int,
    dtype: torch.dtype = torch.float16,
    kv_dtype: torch.dtype | None = None,
    split: bool = False,
    token_scales: bool = False,
    batch: int = 16,
    context: int = 4096,
) -> Launch:
    """Return what vLLM starts for a decode step.

    Args:
        module: from ``unified_attention``.
        q_heads: query heads.
        kv_heads: KV heads.
        head_dim: elements of a vector.
        block_size: tokens a block.
        dtype: of the queries.
        kv_dtype: of the cache; None for that of the queries.
        split: whether contexts are cut into segments (its 3D form).
        token_scales: whether there is a scale for each token and head.
        batch: sequences.
        context: tokens of each at most.
    """

    def empty(*shape: int, of: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.empty(shape, dtype=of, device="meta")

    kv_dtype = kv_dtype or dtype
    quantised = kv_dtype.itemsize == 1
    mode = _QuantMode.FP8_PER_TENSOR if quantised else _QuantMode.NONE
    scales: dict[str, Any] = {}
    # A block is [kv_heads, block_size, K | V]; of a scale a token each half ends in one, as four bytes.
    half = head_dim + (4 if token_scales else 0)
    blocks = empty(BLOCKS, kv_heads, block_size, 2 * half, of=kv_dtype)
    k, v = (blocks.transpose(1, 2)[..., first : first + head_dim] for first in (0, half))
    if token_scales:
        whole = kv_dtype == torch.int8
        mode = _QuantMode.INT8_PER_TOKEN_HEAD if whole else _QuantMode.FP8_PER_TOKEN_HEAD
        words = blocks.view(torch.float32).transpose(1, 2)
        scales = {"k_scale_cache": words[..., half // 4 - 1], "v_scale_cache": words[..., half // 2 - 1]}
    q = empty(batch, q_heads, head_dim, of=dtype)
    factor = empty(1, of=torch.float32) if quantised and not token_scales else None
    room: dict[str, Any] = {}
    if split:
        parts = (batch, q_heads, SEGMENTS)
        room = {
            "seq_threshold_3D": batch,
            "num_par_softmax_segments": SEGMENTS,
            "softmax_segm_output": empty(*parts, head_dim, of=torch.float32),
            "softmax_segm_max": empty(*parts, of=torch.float32),
            "softmax_segm_expsum": empty(*parts, of=torch.float32),
        }
    kernel: Any = module.kernel_unified_attention
    module.kernel_unified_attention = _Notes()  # type: ignore[attr-defined]
    try:
        module.unified_attention(
            q=q, k=k, v=v, out=torch.empty_like(q), cu_seqlens_q=empty(batch + 1), max_seqlen_q=1,
            seqused_k=empty(batch), max_seqlen_k=context, softmax_scale=0.1, causal=True,
            window_size=(-1, -1), block_table=empty(batch, context // block_size), softcap=0.0,
            q_descale=None, k_descale=factor, v_descale=factor, kv_quant_mode=mode, **scales, **room,
        )  # fmt: skip
    except _Noted as noted:
        arguments = {name: int(x) if isinstance(x, IntEnum) else x for name, x in noted.arguments.items()}
        options = {name: arguments.pop(name, value) for name, value in DEFAULTS.items()}
        for parameter in kernel.params:
            if parameter.has_default:
                arguments.setdefault(parameter.name, parameter.default)
        return Launch(kernel, noted.grid, arguments, **options)
    finally:
        module.kernel_unified_attention = kernel  # type: ignore[attr-defined]
    raise PagesimError("vLLM's wrapper started no kernel of unified attention")


def _load(name: str, file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@contextmanager
def _stand_ins() -> Iterator[None]:
    """Put stand-ins in the place of vLLM's modules, and what was there back at the end."""

    class Logger:
        def __getattr__(self, name: str) -> Any:
            return lambda *arguments, **named: None

    contents: dict[str, dict[str, Any]] = {
        "vllm": {},
        "vllm.envs": {"VLLM_BATCH_INVARIANT": False},
        "vllm.logger": {"init_logger": lambda name: Logger()},
        "vllm.platforms": {"current_platform": _Platform()},
        "vllm.triton_utils": {"tl": tl, "triton": triton},
        "vllm.v1": {},
        "vllm.v1.attention": {},
        OPS: {},
        "vllm.v1.kv_cache_interface": {"KVQuantMode": _QuantMode},
    }
    before = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "vllm"}
    for name in before:
        del sys.modules[name]
    for name, members in contents.items():
        module = ModuleType(name)
        module.__path__ = []
        vars(module).update(members)
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "vllm"]:
            del sys.modules[name]
        sys.modules.update(before)
