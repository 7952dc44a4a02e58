"""Preflight checks: whether a live run is possible on this machine, before anything is allocated."""

from __future__ import annotations

import gc

import torch

from pagesim.errors import CapacityError, PagesimError
from pagesim.hardware.gpus import GIB
from pagesim.kernels.cache import HEAD_DIMS
from pagesim.kernels.machine import available_bytes
from pagesim.kernels.swap import STRATEGIES
from pagesim.models import ModelSpec
from pagesim.setup.engine_config import EngineConfig
from pagesim.setup.presets import Policy
from pagesim.setup.system import System
from pagesim.sizing import Capacity

MAX_BLOCK_SIZE = 4096

_WORKSPACE = 1 * GIB
"""Bytes on a GPU for CUDA, cuBLAS, the staging of swaps and compiled kernels."""


def check_options(
    system: System,
    spec: ModelSpec,
    policy: Policy,
    *,
    device: str,
    cuda_graphs: bool,
    swap: str,
) -> None:
    """Reject options that live runs do not support.

    Raises:
        PagesimError: an option is not supported; the message names it.
    """
    if swap not in STRATEGIES:
        raise PagesimError(f"swap is {swap!r}; it must be one of {', '.join(STRATEGIES)}")
    if cuda_graphs and device != "cuda":
        raise PagesimError("cuda_graphs needs device cuda: on a CPU there is nothing to capture")
    for name in ("tensor_parallel_size", "pipeline_parallel_size"):
        if (system.option(name) or 1) != 1:
            raise PagesimError(
                f"{name} is {system.option(name)}; a live run runs on one device, so it must be 1"
            )
    if system.weight_dtype not in (None, "bf16", "fp16"):
        raise PagesimError(
            f"weight_dtype is {system.weight_dtype}; a live run has fp16 or bf16 (and fp32 on a CPU)"
        )
    kv_dtype = EngineConfig(system).kv_dtype
    if kv_dtype not in ("fp16", "bf16"):
        raise PagesimError(f"kv_cache_dtype is {kv_dtype}; a live run keeps fp16 or bf16 (and fp32 on a CPU)")
    if system.option("speculative_tokens") is not None or system.option("speculative_config") is not None:
        raise PagesimError("a live run has no drafts to verify: leave speculative_tokens out")
    if policy.allocator == "virtual":
        raise PagesimError(
            f"policy {system.policy} maps pages into virtual addresses; a live run reads the cache through "
            "block tables: choose a policy with another allocator"
        )
    if spec.head_dim not in HEAD_DIMS:
        raise PagesimError(
            f"model {spec.name} has heads of {spec.head_dim}; the kernels take "
            f"{', '.join(map(str, HEAD_DIMS))}"
        )


def dtype_on(device: str, kv_dtype: str) -> torch.dtype:
    """Return the data type of weights and cache: fp32 on a CPU, else ``kv_dtype`` (``fp16`` or ``bf16``)."""
    if device == "cpu":
        return torch.float32
    return torch.bfloat16 if kv_dtype == "bf16" else torch.float16


def check_block_size(block_size: int) -> None:
    """Reject block sizes that the kernels do not support.

    Raises:
        PagesimError: the size is not a power of two, or is above `MAX_BLOCK_SIZE`.
    """
    if block_size > MAX_BLOCK_SIZE or block_size & (block_size - 1):
        raise PagesimError(
            f"block_size is {block_size}; live runs take powers of two from 1 to {MAX_BLOCK_SIZE}"
        )


def check_memory(
    spec: ModelSpec,
    sized: Capacity,
    *,
    activation_bytes: int,
    host_blocks: int,
    null_blocks: int,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Reject weights and a cache that do not fit into memory; null blocks take none.

    Raises:
        CapacityError: they do not fit; the message gives needed and free memory, and an option to change.
    """
    item = dtype.itemsize
    block = 2 * spec.layers * spec.kv_heads * spec.head_dim * sized.block_size * item
    weights = spec.parameters * item
    activations = activation_bytes * item // 2
    cache, host = sized.num_blocks * block, host_blocks * block
    on_gpu = device.type == "cuda"
    if on_gpu:  # free what an earlier run in this process left behind
        gc.collect()
        torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info(device)[0] if on_gpu else available_bytes()
    needed = weights + activations + cache + (_WORKSPACE if on_gpu else host)
    if weights + activations >= free:
        raise CapacityError(
            f"model {spec.name} takes {_gib(weights + activations)} of weights and activations in "
            f"{_name(dtype)}; {_gib(free)} are free on device {device.type}: choose a smaller model"
        )
    if needed > free:
        room = max(0, free - (needed - cache)) // block
        most = room + null_blocks
        advice = f"set num_blocks to at most {most}" if room else "choose a smaller model or cpu_blocks"
        raise CapacityError(
            f"num_blocks is {sized.num_blocks + null_blocks}: with the model's "
            f"{_gib(weights + activations)}, a cache of {_gib(cache)}"
            f"{'' if on_gpu else f' and a swap space of {_gib(host)}'} does not fit into the {_gib(free)} "
            f"that are free on device {device.type}; {advice}"
        )
    pinnable = available_bytes()
    if on_gpu and host > pinnable:
        raise CapacityError(
            f"cpu_blocks is {host_blocks}: {_gib(host)} of pinned memory; {_gib(pinnable)} are free, "
            f"so set it to at most {pinnable // block}"
        )


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
