"""Every kernel compiled ahead of time for three GPUs: few spills, wide loads, tensor cores, shared memory."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

MISSING = [package for package in ("torch", "triton") if find_spec(package) is None]
if MISSING:
    pytest.skip(f"{' and '.join(MISSING)} not installed", allow_module_level=True)
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("TRITON_INTERPRET=1: nothing is compiled", allow_module_level=True)

import torch  # noqa: E402
import triton  # noqa: E402

from pagesim.kernels import (  # noqa: E402
    BlockPool,
    Cache,
    LatentCache,
    Sizes,
    attention,
    blocks,
    cache_write,
    mla,
    reduce,
)
from pagesim.kernels.launch import Launch  # noqa: E402

TARGETS = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
"""A100, H100 and H200, B200: compute capability times ten, and the bytes of shared memory a program may take
(CUDA C++ programming guide, technical specifications)."""

TYPES = {
    torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.float8_e4m3fn: "fp8e4nv",
    torch.int32: "i32", torch.int64: "i64",
}  # fmt: skip
F16, BF16, F32, FP8, I32, I64 = TYPES
BATCH = 64


class Code(NamedTuple):
    """Bytes of shared memory, spills, loads of 16 bytes and matrix products of a compiled kernel."""

    shared: int
    spills: int
    wide_loads: int
    tensor: int


def compiled(launch: Launch, config: triton.Config, target: int) -> Code:
    """Compile a launch in a configuration; pointers begin at multiples of 16 bytes."""
    kernel = launch.kernel
    given = {**launch.arguments, **config.kwargs}
    signature, constants, attributes = {}, {}, {}
    for parameter in kernel.params:
        value = given[parameter.name]
        if parameter.is_constexpr or (type(value) is int and value == 1):
            signature[parameter.name], constants[parameter.name] = "constexpr", value
            continue
        if isinstance(value, torch.Tensor):
            kind, divisible = "*" + TYPES[value.dtype], True
        elif isinstance(value, float):
            kind, divisible = "fp32", False
        else:
            kind, divisible = "i32" if abs(value) < 2**31 else "i64", value % 16 == 0
        signature[parameter.name] = kind
        if divisible:
            attributes[(parameter.num,)] = [["tt.divisibility", 16]]
    made = triton.compile(
        triton.compiler.ASTSource(kernel, signature, constants, attributes),
        target=triton.backends.compiler.GPUTarget("cuda", target, 32),
        options={"num_warps": config.num_warps, "num_stages": config.num_stages, "enable_fp_fusion": True},
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.cubin")
        file.write_bytes(made.asm["cubin"])
        tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
        code = subprocess.run([tool, "-c", str(file)], check=True, capture_output=True, text=True).stdout

    def count(pattern: str) -> int:
        return len(re.findall(pattern, code))

    wide = count(r"\b(?:LDGSTS|LDG)\.E\S*\.128\b|\bUBLKCP|\bUTMALDG")
    return Code(made.metadata.shared, count(r"\b(?:LDL|STL)\b"), wide, count(r"\b(?:\w+MMA)\b"))


def meta(*shape: int, dtype: torch.dtype = F16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def attend(
    heads: tuple[int, int],
    dim: int,
    block: int = 16,
    *,
    dtype=F16,
    kv=None,
    queries=1,
    layout="NHD",
    splits=1,
    **variant,
) -> Launch:
    """Return attention of a batch, of one query a sequence or of several."""
    shape = Sizes(4096, block, heads[1], dim).shape(layout)
    scales = {} if kv is None else {"k_scale": 0.5, "v_scale": meta(heads[1], dtype=F32)}
    cache = Cache(*(meta(*shape, dtype=kv or dtype) for _ in range(2)), layout=layout, **scales)
    q, starts = meta(BATCH * queries, heads[0], dim, dtype=dtype), meta(BATCH + 1, dtype=I32)
    if variant.pop("sinks", False):
        variant["sinks"] = meta(heads[0], dtype=F32)
    return attention.launches(
        q,
        cache,
        meta(BATCH, 256, dtype=I32),
        meta(BATCH, dtype=I32),
        starts if queries > 1 else None,
        q,
        max_query_len=queries,
        scale=0.1,
        num_splits=splits,
        **{"window": None, "softcap": None, "sinks": None, **variant},
    )[0]


def latents(heads: int, dims: tuple[int, int] = (512, 64), *, dtype=F16, splits=1) -> Launch:
    cache = LatentCache(meta(4096, 64, sum(dims), dtype=dtype), latent_dim=dims[0])
    q, out = meta(BATCH, heads, sum(dims), dtype=dtype), meta(BATCH, heads, dims[0], dtype=dtype)
    table, lengths = meta(BATCH, 64, dtype=I32), meta(BATCH, dtype=I32)
    return mla.launches(q, cache, table, lengths, out, scale=0.1, num_splits=splits)[0]


def written(dtype=F16, layout="NHD") -> Launch:
    shape = Sizes(4096, 16, 8, 128).shape(layout)
    cache = Cache(*(meta(*shape, dtype=dtype) for _ in range(2)), layout=layout)
    new = meta(256, 8, 128, dtype=F16 if dtype == FP8 else dtype)
    return cache_write.launch(new, new, cache, meta(256, dtype=I64))


def reduced(partial: torch.Tensor) -> Launch:
    return reduce.launch(partial, partial[..., 0], meta(*partial.shape[:2], partial.shape[3]))


def moved(what: str) -> Launch:
    pool = BlockPool([meta(4096, 16, 8, 128)] * 4)
    pool.addresses = meta(4, dtype=I64)
    if what == "copy":
        return blocks.copy(pool, meta(64, 2, dtype=I64))
    staging, ids = meta(64, 4, 16, 8, 128), meta(64, dtype=I64)
    return blocks.gather(pool, ids, staging) if what == "gather" else blocks.scatter(staging, pool, ids)


PROMPT = {"queries": 2048}
KERNELS: dict[str, Callable[[], Launch]] = {
    "decode": lambda: attend((32, 8), 128),
    "decode, block 128, splits": lambda: attend((32, 8), 128, 128, splits=8),
    "decode, HND, bf16": lambda: attend((40, 40), 128, layout="HND", dtype=BF16),
    "decode, fp8": lambda: attend((32, 8), 128, kv=FP8),
    "decode, window, sinks": lambda: attend((64, 8), 64, window=128, sinks=True, splits=4),
    "decode, head 256, soft cap": lambda: attend((16, 8), 256, softcap=50.0),
    "decode, head 512": lambda: attend((16, 8), 512),
    "decode, head 72": lambda: attend((16, 16), 72),
    "decode, 64 heads of one": lambda: attend((64, 1), 128),
    "decode, fp32": lambda: attend((32, 8), 128, dtype=F32),
    "four queries, splits": lambda: attend((32, 8), 128, queries=4, splits=4),
    "prefill": lambda: attend((32, 8), 128, **PROMPT),
    "prefill, block 128, HND": lambda: attend((32, 8), 128, 128, layout="HND", **PROMPT),
    "prefill, fp8": lambda: attend((32, 8), 128, kv=FP8, **PROMPT),
    "prefill, head 64, window, sinks": lambda: attend((64, 8), 64, window=128, sinks=True, **PROMPT),
    "prefill, head 256, window, soft cap": lambda: attend((16, 8), 256, window=4096, softcap=50.0, **PROMPT),
    "reduce": lambda: reduced(meta(64, 32, 8, 128, dtype=F32)),
    "mla, 128 heads, splits": lambda: latents(128, splits=8),
    "mla, 16 heads, bf16": lambda: latents(16, dtype=BF16),
    "mla, 256 + 32": lambda: latents(40, (256, 32)),
    "mla, fp32": lambda: latents(16, dtype=F32),
    "cache write": written,
    "cache write, bf16, HND": lambda: written(BF16, "HND"),
    "cache write, fp8": lambda: written(FP8),
    "copy of blocks": lambda: moved("copy"),
    "gather of blocks": lambda: moved("gather"),
    "scatter of blocks": lambda: moved("scatter"),
}  # fmt: skip
CHOICES = {
    attention.paged_attention_kernel: attention.choose_config,
    mla.mla_kernel: mla.choose_config,
}

QUICK = ("decode, fp8-90", "prefill-90", "reduce-90", "gather of blocks-90")


SPILLS = {
    "decode, fp8": 16, "prefill, head 256, window, soft cap": 122, "mla, 128 heads, splits": 188,
    "mla, 256 + 32": 38, "decode, 64 heads of one": 4,
}  # fmt: skip
"""Loads and stores that spill in kernels which were the fastest on an H100 even so. Smaller tiles, which
spill nothing, took 1.04 to 2 times as long. The last spills on an A100, where nothing was measured."""


def check(name: str, launch: Launch, config: triton.Config, target: int) -> None:
    code = compiled(launch, config, target)
    assert code.spills <= SPILLS.get(name, 0), (name, str(config), code)
    assert code.shared <= TARGETS[target], (name, str(config), code)
    assert code.wide_loads, (name, str(config), code)
    if launch.kernel in CHOICES and "fp32" not in name:
        assert code.tensor, (name, str(config), code)


@pytest.mark.slow_but(*QUICK)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", KERNELS)
def test_no_kernel_spills_more_than_is_known(name, target):
    launch = KERNELS[name]()
    if target == 80 and "fp8" in name:
        with pytest.raises(Exception, match=r"\A") as refused:
            compiled(launch, launch.config, target)
        said, error = "", refused.value
        while error is not None:  # what a function that the kernel calls is refused for is the cause of this
            said, error = f"{said} {error}", error.__cause__
        assert "fp8e4nv not supported in this architecture" in said
        return
    choose = CHOICES.get(launch.kernel)
    check(name, launch, choose(launch.arguments, target) if choose else launch.config, target)


def test_spills_are_seen():
    launch = KERNELS["decode, fp8"]()
    wide = triton.Config({"BLOCK_M": 128, "BLOCK_N": 128}, num_warps=4, num_stages=3)
    assert compiled(launch, wide, 90).spills > 0
    assert not attention.fits(wide, launch.arguments, 90)


def test_all_stages_but_one_are_in_flight():
    """Were the block ids not carried along, half of them would be: their load would be a stage of its own."""
    launch = KERNELS["decode"]()
    config = launch.config
    tile = 2 * config.kwargs["BLOCK_N"] * 128 * 2  # bytes of keys and values
    assert compiled(launch, config, 90).shared >= (config.num_stages - 1) * tile
