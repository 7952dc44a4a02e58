"""Every kernel compiled for every target, as a table: ``python -m pagesim.kernels.compile_report``.

The shapes are those of common models: 32 query heads on 8 KV heads, or 40 on 40, with head size 128 unless
the name says otherwise. What is compiled is what a launch with tensors of these shapes runs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from pagesim.errors import PagesimError
from pagesim.kernels import api, blocks, cache_write, cascade, decode, mla, prefill, sequences
from pagesim.kernels.aot import SHARED_LIMIT, TARGETS, MachineCode, compile_for
from pagesim.kernels.launch import Launch
from pagesim.kernels.layouts import HND, NHD, VLLM, Layout, Sizes
from pagesim.kernels.swap.pieces import copy_pieces
from pagesim.kernels.variant import Variant

F16, BF16, F32, FP8, INT8 = torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.int8
BATCH, CONTEXT, BLOCKS, TOKENS = 16, 4096, 8192, 2048

Build = Callable[[int], Launch]
"""From a target to what is run there."""


def _meta(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _cache(
    layout: Layout, dtype: torch.dtype, sizes: Sizes, *, token_scales: bool = False, **options: Any
) -> api.Cache:
    if token_scales:
        return api.token_scaled(sizes, dtype, layout=layout, device="meta")[0]
    keys, values = layout.shapes(sizes, dtype.itemsize)
    return api.Cache(_meta(*keys, dtype=dtype), _meta(*values, dtype=dtype), layout=layout, **options)


def _decode(
    dtype: torch.dtype = F16,
    *,
    kv_dtype: torch.dtype | None = None,
    q_heads: int = 32,
    kv_heads: int = 8,
    head_dim: int = 128,
    block_size: int = 16,
    layout: Layout = NHD,
    splits: int = 1,
    stages: int | None = None,
    head_scales: bool = False,
    token_scales: bool = False,
    work_list: bool = False,
    reduction: bool = False,
    queries: int | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: bool = False,
) -> Build:
    """Return decode attention, or the reduction that follows; a block size of 0 means contiguous."""

    def build(target: int) -> Launch:
        sizes = Sizes(*((BLOCKS, block_size) if block_size else (BATCH, CONTEXT)), kv_heads, head_dim)
        factor = _meta(kv_heads, dtype=F32) if head_scales else 1.0
        scales = {"k_scale": factor, "v_scale": factor}
        options = {"token_scales": True} if token_scales else {"paged": bool(block_size), **scales}
        cache = _cache(layout, kv_dtype or dtype, sizes, **options)
        each = () if queries is None else (queries,)
        q = _meta(BATCH, *each, q_heads, head_dim, dtype=dtype)
        table = _meta(BATCH, CONTEXT // block_size) if block_size else None
        lengths = [CONTEXT] * BATCH
        plan = api.decode_plan(
            q, cache, lengths, window=window, num_splits=splits, num_stages=stages, work_list=work_list
        )
        variant = Variant(window, softcap, _meta(q_heads, dtype=F32) if sinks else None)
        launches = decode.launches(q, cache, table, _meta(BATCH), 0.1, plan, torch.empty_like(q), variant)
        return launches[1] if reduction else launches[0]

    return build


def _prefill(
    dtype: torch.dtype = F16,
    *,
    kv_dtype: torch.dtype | None = None,
    head_dim: int = 128,
    block_size: int = 16,
    layout: Layout = NHD,
    max_query_len: int = TOKENS,
    token_scales: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    sinks: bool = False,
) -> Build:
    def build(target: int) -> Launch:
        sizes = Sizes(BLOCKS, block_size, 8, head_dim)
        cache = _cache(layout, kv_dtype or dtype, sizes, token_scales=token_scales)
        q = _meta(TOKENS, 32, head_dim, dtype=dtype)
        table, lens, starts = _meta(BATCH, CONTEXT // block_size), _meta(BATCH), _meta(BATCH + 1)
        out = torch.empty_like(q)
        variant = Variant(window, softcap, _meta(32, dtype=F32) if sinks else None)
        return prefill.launch(q, cache, table, lens, starts, max_query_len, 0.1, out, target, variant)

    return build


def _cascade(
    step: int,
    *,
    sharers: int = 16,
    kv_dtype: torch.dtype = F16,
    token_scales: bool = False,
    head_dim: int = 128,
) -> Build:
    """Return one of the launches of cascade attention: shared blocks, own blocks, merge."""

    def build(target: int) -> Launch:
        cache = _cache(NHD, kv_dtype, Sizes(BLOCKS, 16, 8, head_dim), token_scales=token_scales)
        q = _meta(BATCH, 32, head_dim, dtype=F16)
        table, lens = _meta(BATCH, CONTEXT // 16), _meta(BATCH)
        prefixes = api.SharedPrefixes(cache, table, lens, [(list(range(sharers)), CONTEXT // 32)])
        plans = api.cascade_plan(q, cache, prefixes, longest=CONTEXT)
        return list(cascade.launches(q, cache, prefixes, 0.1, plans, torch.empty_like(q)))[step]

    return build


def _mla(
    dtype: torch.dtype = F16,
    *,
    q_heads: int = 128,
    dims: tuple[int, int] = (512, 64),
    block_size: int = 64,
    splits: int = 1,
    reduction: bool = False,
) -> Build:
    """Return decode attention over latents, or the reduction that follows."""

    def build(target: int) -> Launch:
        cache = api.LatentCache(_meta(BLOCKS, block_size, sum(dims), dtype=dtype), latent_dim=dims[0])
        q, out = (_meta(BATCH, q_heads, width, dtype=dtype) for width in (sum(dims), dims[0]))
        plan = api.mla_plan(q, cache, [CONTEXT] * BATCH, num_splits=splits)
        table = _meta(BATCH, CONTEXT // block_size)
        return mla.launches(q, cache, table, _meta(BATCH), 0.1, plan, out)[int(reduction)]

    return build


def _mla_write(target: int) -> Launch:
    cache = api.LatentCache(_meta(BLOCKS, 64, 576, dtype=F16))
    latent, rope = (_meta(TOKENS, width, dtype=F16) for width in (512, 64))
    return mla.write_launch(latent, rope, cache, _meta(TOKENS, dtype=torch.int64))


def _write(
    layout: Layout, kv_dtype: torch.dtype = F16, *, token_scales: bool = False, head_dim: int = 128
) -> Build:
    def build(target: int) -> Launch:
        key, value = (_meta(TOKENS, 8, head_dim, dtype=F16) for _ in range(2))
        slots = _meta(TOKENS, dtype=torch.int64)
        cache = _cache(layout, kv_dtype, Sizes(BLOCKS, 16, 8, head_dim), token_scales=token_scales)
        return cache_write.launch(key, value, cache, slots)

    return build


def _pad(layout: Layout, *, head_dim: int = 128) -> Build:
    def build(target: int) -> Launch:
        padded = api.Cache(*(_meta(BATCH, CONTEXT, 8, head_dim, dtype=F16) for _ in range(2)), paged=False)
        table, lens = _meta(BATCH, CONTEXT // 16), _meta(BATCH)
        return sequences.launch(_cache(layout, F16, Sizes(BLOCKS, 16, 8, head_dim)), table, lens, padded)

    return build


def _move(what: str) -> Build:
    def build(target: int) -> Launch:
        caches = api.BlockPool([_meta(BLOCKS, 16, 40, 128, dtype=F16) for _ in range(80)])
        ids = _meta(64, dtype=torch.int64)
        staging = _meta(64, 80, 16, 40, 128, dtype=F16)
        if what == "copy":
            return blocks.copy(caches, _meta(64, 2, dtype=torch.int64))
        if what == "gather":
            return blocks.gather(caches, ids, staging)
        return blocks.scatter(staging, caches, ids)

    return build


def _zero_copy(target: int) -> Launch:
    bases, ids = _meta(80, dtype=torch.int64), _meta(64, dtype=torch.int64)
    size = 16 * 40 * 128 * 2
    return copy_pieces((bases, ids, size), (bases, ids, 80 * size), size, programs=32)


KERNELS: dict[str, Build] = {
    "decode fp16 32/8, block 16": _decode(),
    "decode fp16 32/8, block 128": _decode(block_size=128),
    "decode fp16 32/8, contiguous": _decode(block_size=0),
    "decode fp16 32/8, block 1": _decode(block_size=1),
    "decode fp16 32/8, block 16, 8 splits": _decode(splits=8),
    "decode fp16 32/8, block 128, 8 splits": _decode(block_size=128, splits=8),
    "reduction of 8 splits": _decode(splits=8, reduction=True),
    "decode fp16 32/8, work list": _decode(splits=8, work_list=True),
    "decode fp16 32/8, block 128, work list": _decode(block_size=128, splits=8, work_list=True),
    "decode fp8 KV, fp16, work list": _decode(kv_dtype=FP8, splits=8, work_list=True),
    "reduction of a work list": _decode(splits=8, work_list=True, reduction=True),
    "decode fp16 32/8, block 128, 4 stages": _decode(block_size=128, stages=4),
    "decode fp16 40/40, block 16": _decode(q_heads=40, kv_heads=40),
    "decode fp16 64/1, block 16": _decode(q_heads=64, kv_heads=1),
    "decode fp16 32/1, block 16": _decode(q_heads=32, kv_heads=1),
    "decode fp16 64/1, head 256": _decode(q_heads=64, kv_heads=1, head_dim=256),
    "decode fp16 HND, block 16": _decode(layout=HND),
    "decode fp16 vLLM, block 16": _decode(layout=VLLM),
    "decode fp16 vLLM, block 64": _decode(layout=VLLM, block_size=64),
    "decode fp16 head 64": _decode(head_dim=64),
    "decode fp16 head 80": _decode(head_dim=80),
    "decode fp16 head 96": _decode(head_dim=96),
    "decode fp16 head 256": _decode(head_dim=256),
    "decode bf16 32/8, block 16": _decode(BF16),
    "decode fp32 32/8, block 16": _decode(F32),
    "decode fp32 head 256": _decode(F32, head_dim=256),
    "decode fp8 KV, fp16 queries": _decode(kv_dtype=FP8),
    "decode fp8 KV, bf16, scales a head": _decode(BF16, kv_dtype=FP8, head_scales=True),
    "decode fp8 KV, fp16, vLLM, block 64": _decode(kv_dtype=FP8, layout=VLLM, block_size=64),
    "decode fp8 KV, fp16, head 64": _decode(kv_dtype=FP8, head_dim=64),
    "decode fp8 KV, fp16, head 80": _decode(kv_dtype=FP8, head_dim=80),
    "decode fp8 KV, fp16, head 256": _decode(kv_dtype=FP8, head_dim=256),
    "decode fp8 KV, fp16, 64/1": _decode(kv_dtype=FP8, q_heads=64, kv_heads=1),
    "decode fp16 head 32": _decode(head_dim=32),
    "decode fp16 head 192": _decode(head_dim=192),
    "decode fp8 KV, fp16, head 160": _decode(kv_dtype=FP8, head_dim=160),
    "decode fp16 head 72": _decode(head_dim=72),
    "decode fp16 head 120, block 128": _decode(head_dim=120, block_size=128),
    "decode fp8 KV, fp16, head 72": _decode(kv_dtype=FP8, head_dim=72),
    "decode int8 KV, scales a token, head 120": _decode(kv_dtype=INT8, head_dim=120, token_scales=True),
    "decode fp16 head 512": _decode(head_dim=512),
    "decode fp16 64/1, head 512": _decode(q_heads=64, kv_heads=1, head_dim=512),
    "decode fp16 vLLM, head 512": _decode(layout=VLLM, head_dim=512),
    "decode fp32 head 512": _decode(F32, head_dim=512),
    "decode bf16 head 512, 4 queries, window, soft cap": _decode(
        BF16, head_dim=512, queries=4, window=1024, softcap=50.0
    ),
    "decode fp8 KV, fp16, head 512": _decode(kv_dtype=FP8, head_dim=512),
    "decode int8 KV, scales a token, head 512": _decode(kv_dtype=INT8, head_dim=512, token_scales=True),
    "decode fp16 32/8, block 80": _decode(block_size=80),
    "decode fp16 32/8, block 1056": _decode(block_size=1056),
    "decode fp16 vLLM, block 528": _decode(layout=VLLM, block_size=528),
    "decode fp16 32/8, 4 queries": _decode(queries=4),
    "decode fp16 32/8, 8 queries, 8 splits": _decode(queries=8, splits=8),
    "reduction of 8 splits, 8 queries": _decode(queries=8, splits=8, reduction=True),
    "decode bf16 64/8, head 64, window, sinks": _decode(
        BF16, q_heads=64, head_dim=64, window=128, sinks=True
    ),
    "decode fp16 32/8, window, block 128": _decode(window=1024, block_size=128),
    "decode bf16 head 256, window, soft cap": _decode(BF16, head_dim=256, window=2048, softcap=50.0),
    "decode fp8 KV, fp16, 4 queries, window, sinks, soft cap": _decode(
        kv_dtype=FP8, queries=4, window=1024, softcap=50.0, sinks=True
    ),
    "decode int8 KV, scales a token": _decode(kv_dtype=INT8, token_scales=True),
    "decode int8 KV, bf16, scales a token": _decode(BF16, kv_dtype=INT8, token_scales=True),
    "decode int8 KV, scales a token, block 128": _decode(kv_dtype=INT8, block_size=128, token_scales=True),
    "decode int8 KV, scales a token, head 256": _decode(kv_dtype=INT8, head_dim=256, token_scales=True),
    "decode int8 KV, scales a token, 64/1": _decode(kv_dtype=INT8, q_heads=64, kv_heads=1, token_scales=True),
    "decode fp8 KV, scales a token": _decode(kv_dtype=FP8, token_scales=True),
    "decode fp8 KV, bf16, scales a token": _decode(BF16, kv_dtype=FP8, token_scales=True),
    "decode fp8 KV, scales a token, HND, block 64": _decode(
        kv_dtype=FP8, block_size=64, layout=HND, token_scales=True
    ),
    "decode fp8 KV, scales a token, head 256": _decode(kv_dtype=FP8, head_dim=256, token_scales=True),
    "decode int8 KV, scales a token, block 528": _decode(kv_dtype=INT8, block_size=528, token_scales=True),
    "decode int8 KV, scales a token, 4 queries": _decode(kv_dtype=INT8, queries=4, token_scales=True),
    "decode int8 KV, scales a token, 4 queries, window, sinks, soft cap": _decode(
        kv_dtype=INT8, queries=4, window=1024, softcap=50.0, sinks=True, token_scales=True
    ),
    "decode fp8 KV, bf16, head 64, scales a token, window, sinks": _decode(
        BF16, kv_dtype=FP8, q_heads=64, head_dim=64, window=128, sinks=True, token_scales=True
    ),
    "decode fp8 KV, scales a token, work list": _decode(
        kv_dtype=FP8, splits=8, work_list=True, token_scales=True
    ),
    "prefill fp16 32/8, block 16": _prefill(),
    "prefill fp16 32/8, block 128": _prefill(block_size=128),
    "prefill fp16 32/8, 16 queries": _prefill(max_query_len=16),
    "prefill fp16 vLLM, block 16": _prefill(layout=VLLM),
    "prefill fp16 head 64": _prefill(head_dim=64),
    "prefill fp16 head 256": _prefill(head_dim=256),
    "prefill fp32 32/8, block 16": _prefill(F32),
    "prefill fp32 head 256": _prefill(F32, head_dim=256),
    "prefill fp8 KV, bf16 queries": _prefill(BF16, kv_dtype=FP8),
    "prefill int8 KV, scales a token": _prefill(kv_dtype=INT8, token_scales=True),
    "prefill fp8 KV, bf16, scales a token": _prefill(BF16, kv_dtype=FP8, token_scales=True),
    "prefill int8 KV, scales a token, head 256": _prefill(kv_dtype=INT8, head_dim=256, token_scales=True),
    "prefill int8 KV, scales a token, window, soft cap": _prefill(
        kv_dtype=INT8, window=1024, softcap=50.0, token_scales=True
    ),
    "decode cascade fp16 32/8, 16 sharers": _cascade(0),
    "decode cascade fp16 32/8, 2 sharers": _cascade(0, sharers=2),
    "decode cascade fp8 KV, 16 sharers": _cascade(0, kv_dtype=FP8),
    "decode cascade int8 KV, scales a token": _cascade(0, kv_dtype=INT8, token_scales=True),
    "decode cascade fp16 32/8, 16 sharers, head 512": _cascade(0, head_dim=512),
    "merge of a cascade": _cascade(2),
    "merge of a cascade, head 512": _cascade(2, head_dim=512),
    "decode MLA fp16, 128 heads, block 64": _mla(),
    "decode MLA fp16, 128 heads, block 16": _mla(block_size=16),
    "decode MLA fp16, 16 heads, block 64": _mla(q_heads=16),
    "decode MLA bf16, 128 heads, block 64, 8 splits": _mla(BF16, splits=8),
    "decode MLA fp16, 40 heads, 256 + 32": _mla(q_heads=40, dims=(256, 32)),
    "decode MLA fp32, 16 heads": _mla(F32, q_heads=16),
    "reduction of 8 splits, MLA": _mla(splits=8, reduction=True),
    "write of latents fp16": _mla_write,
    "prefill bf16 head 64, window, sinks": _prefill(BF16, head_dim=64, window=128, sinks=True),
    "prefill bf16 head 256, window, soft cap": _prefill(BF16, head_dim=256, window=2048, softcap=50.0),
    "prefill fp16 head 32": _prefill(head_dim=32),
    "prefill fp16 head 192": _prefill(head_dim=192),
    "prefill fp16 head 72": _prefill(head_dim=72),
    "prefill int8 KV, scales a token, head 120": _prefill(kv_dtype=INT8, head_dim=120, token_scales=True),
    "prefill fp16 head 512": _prefill(head_dim=512),
    "prefill fp16 vLLM, head 512": _prefill(layout=VLLM, head_dim=512),
    "prefill fp32 head 512": _prefill(F32, head_dim=512),
    "prefill fp8 KV, bf16, head 512, window, soft cap": _prefill(
        BF16, kv_dtype=FP8, head_dim=512, window=1024, softcap=50.0
    ),
    "prefill int8 KV, scales a token, head 512": _prefill(kv_dtype=INT8, head_dim=512, token_scales=True),
    "prefill fp16 32/8, block 528": _prefill(block_size=528),
    "reshape and cache fp16, NHD": _write(NHD),
    "reshape and cache fp16, vLLM": _write(VLLM),
    "reshape and cache fp16, head 72": _write(NHD, head_dim=72),
    "reshape and cache fp16, head 512": _write(NHD, head_dim=512),
    "reshape and cache int8, scales a token, head 512": _write(NHD, INT8, token_scales=True, head_dim=512),
    "reshape and cache fp8, NHD": _write(NHD, FP8),
    "reshape and cache int8, scales a token": _write(NHD, INT8, token_scales=True),
    "reshape and cache fp8, scales a token": _write(NHD, FP8, token_scales=True),
    "gather to a padded batch": _pad(NHD),
    "gather to a padded batch, head 72": _pad(NHD, head_dim=72),
    "gather to a padded batch, head 512": _pad(NHD, head_dim=512),
    "copy blocks": _move("copy"),
    "gather blocks": _move("gather"),
    "scatter blocks": _move("scatter"),
    "zero-copy swap": _zero_copy,
}
"""What the table has, by name."""


THREE_PROGRAMS = (
    "decode fp8 KV, fp16 queries",
    "decode fp8 KV, bf16, scales a head",
    "decode int8 KV, scales a token",
    "decode int8 KV, bf16, scales a token",
    "decode fp8 KV, scales a token",
    "decode fp8 KV, bf16, scales a token",
)
"""Of which a multiprocessor of compute capability 9.0 holds three programs: bytes in flight."""


def needs_e4m3(name: str) -> bool:
    """Return whether a kernel reads or writes FP8, which compute capability 8.0 has no instructions for."""
    return "fp8" in name


def faults(name: str, code: MachineCode) -> list[str]:
    """Return what is wrong with a kernel's machine code; nothing, if it is as it should be."""
    found = []
    if code.local or code.stack:
        found.append(f"{code.local} spills, {code.stack} bytes of stack")
    if code.shared > SHARED_LIMIT[code.target]:
        found.append(f"{code.shared} bytes of shared memory, {SHARED_LIMIT[code.target]} at most")
    if not code.wide_loads:
        found.append("no load of 16 bytes")
    if name in THREE_PROGRAMS and code.target == 90 and code.programs < 3:
        found.append(f"{code.programs} programs a multiprocessor, 3 are needed")
    if name.startswith(("decode", "prefill")) and "fp32" not in name and not code.tensor:
        found.append("no tensor-core instruction")
    return found


def report(names: Sequence[str], targets: Sequence[int]) -> Iterator[tuple[str, int, MachineCode | None]]:
    """Compile kernels for targets: each name and target with the machine code; None without the type."""
    for name in names:
        for target in targets:
            if needs_e4m3(name) and target < 89:
                yield name, target, None
            else:
                yield name, target, compile_for(KERNELS[name](target), target)


HEADER = """\
| kernel | target | registers | shared KB | spills | 16-byte loads | narrower | tensor | faults |
|---|---|---|---|---|---|---|---|---|"""
"""The head of the table; its body are lines of ``table_row``."""


def table_row(name: str, target: int, code: MachineCode | None) -> str:
    """Return a kernel's line of the table."""
    if code is None:
        return f"| {name} | sm_{target} | – | – | – | – | – | – | no e4m3 on sm_{target}, as expected |"
    loads = f"{code.wide_loads} | {code.narrow_loads} | {code.tensor}"
    wrong = "; ".join(faults(name, code)) or "none"
    shared = f"{code.shared / 1024:.0f}"
    return f"| {name} | sm_{target} | {code.registers} | {shared} | {code.local} | {loads} | {wrong} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; the exit code is 1 if a kernel has a fault."""
    parser = argparse.ArgumentParser(prog="python -m pagesim.kernels.compile_report", description=__doc__)
    parser.add_argument("words", nargs="*", help="only kernels whose name holds one of these")
    parser.add_argument("--targets", default=",".join(map(str, TARGETS)), help="such as 90 or 80,90")
    options = parser.parse_args(arguments)
    names = [name for name in KERNELS if not options.words or any(word in name for word in options.words)]
    try:
        targets = [int(target) for target in options.targets.split(",")]
        if not set(targets) <= set(TARGETS):
            raise ValueError
    except ValueError:
        raise PagesimError(
            f"--targets is {options.targets!r}; some of {','.join(map(str, TARGETS))} are needed"
        ) from None
    print(f"triton {triton.__version__}\n")
    print(HEADER)
    faulty = False
    for name, target, code in report(names, targets):
        print(table_row(name, target, code), flush=True)
        faulty = faulty or (code is not None and bool(faults(name, code)))
    return int(faulty)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except PagesimError as error:
        sys.exit(f"compile_report: {error}")
