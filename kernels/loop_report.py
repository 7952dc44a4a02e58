"""The main loop of decode attention as it is compiled, as a table: ``python -m pagesim.kernels.loop_report``.

Decoding is bound by memory, so what counts is how many bytes a multiprocessor has in flight and how many
instructions it must issue for them. ``--vllm FOLDER`` puts the kernel of an installed or unpacked vLLM beside
ours.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import triton

from pagesim.errors import PagesimError
from pagesim.kernels.aot import TARGETS, MachineCode, compile_for
from pagesim.kernels.compile_report import KERNELS, needs_e4m3
from pagesim.kernels.launch import Launch
from pagesim.kernels.vllm_source import decode_launch, unified_attention

SCHEDULERS = 4
"""Of a multiprocessor; each issues an instruction a cycle at most (CUDA C++ programming guide)."""

PORTION = 32 * 1024
"""Bytes of keys and values that issue slots are counted for."""

OURS = [
    "decode fp16 32/8, block 16",
    "decode fp16 32/8, block 128",
    "decode fp16 32/8, contiguous",
    "decode fp16 40/40, block 16",
    "decode fp16 head 256",
    "decode fp16 32/1, block 16",
    "decode fp8 KV, fp16 queries",
    "decode fp8 KV, scales a token",
    "decode int8 KV, scales a token",
]
"""Which of ``KERNELS`` the table has."""

_HEADS = {"q_heads": 32, "kv_heads": 8, "head_dim": 128, "block_size": 16}
_FP8 = torch.float8_e4m3fn
VLLM: dict[str, dict[str, Any]] = {
    "vLLM fp16 32/8, block 16": _HEADS,
    "vLLM fp16 32/8, block 16, split": {**_HEADS, "split": True},
    "vLLM fp16 32/8, block 128": {**_HEADS, "block_size": 128},
    "vLLM fp16 40/40, block 16": {**_HEADS, "q_heads": 40, "kv_heads": 40},
    "vLLM fp16 head 256": {**_HEADS, "head_dim": 256},
    "vLLM fp16 32/1, block 16": {**_HEADS, "kv_heads": 1},
    "vLLM fp8 KV, fp16 queries": {**_HEADS, "kv_dtype": _FP8},
    "vLLM fp8 KV, scales a token": {**_HEADS, "kv_dtype": _FP8, "token_scales": True},
    "vLLM int8 KV, scales a token": {**_HEADS, "kv_dtype": torch.int8, "token_scales": True},
}
"""vLLM's kernel for the same shapes (``vllm_source.decode_launch``)."""

HEADER = """\
| kernel | registers | spills | shared KB | programs an SM | instructions a turn | issue slots per 32 KB | KB in flight an SM |
|---|---|---|---|---|---|---|---|"""  # noqa: E501
"""The head of the table; its body are lines of ``table_row``."""


def turn_bytes(launch: Launch) -> int:
    """Return the bytes of keys and values of a turn of the main loop: a tile of each."""
    ours = ("key_cache", "TILE", "HEAD_DIM")
    names = ours if "TILE" in launch.arguments else ("key_cache_ptr", "TILE_SIZE", "HEAD_SIZE")
    keys, tile, head_dim = (launch.arguments[name] for name in names)
    return int(2 * tile * head_dim * keys.element_size())


def issue_slots(launch: Launch, code: MachineCode) -> float:
    """Return how many instructions a scheduler issues for 32 KB of keys and values."""
    return code.loop * code.warps / SCHEDULERS * PORTION / turn_bytes(launch)


def table_row(name: str, launch: Launch, code: MachineCode) -> str:
    """Return a kernel's line of the table; a dash for bytes in flight where no tile is copied ahead."""
    flying = f"{code.programs * code.flying / 1024:.0f}" if code.flying else "–"
    shared, slots = f"{code.shared / 1024:.0f}", f"{issue_slots(launch, code):.0f}"
    facts = (code.registers, code.local, shared, code.programs, code.loop, slots, flying)
    return f"| {name} | {' | '.join(map(str, facts))} |"


def report(target: int, vllm: Path | None, words: Sequence[str] = ()) -> Iterator[str]:
    """Compile kernels for a target and give the lines of the table.

    Args:
        target: compute capability times ten.
        vllm: the folder that holds the folder ``vllm``; None for our kernels alone.
        words: only kernels whose name holds one of these; all if there are none.

    Raises:
        PagesimError: the folder holds no vLLM whose kernel is known.
    """

    def asked(name: str) -> bool:
        typed = target >= 89 or not needs_e4m3(name)
        return typed and (not words or any(word in name for word in words))

    yield from HEADER.splitlines()
    launches = {name: KERNELS[name](target) for name in OURS if asked(name)}
    if vllm is not None:
        module = unified_attention(vllm)
        launches |= {name: decode_launch(module, **shape) for name, shape in VLLM.items() if asked(name)}
    for name, launch in launches.items():
        yield table_row(name, launch, compile_for(launch, target))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m pagesim.kernels.loop_report", description=__doc__)
    parser.add_argument("words", nargs="*", help="only kernels whose name holds one of these")
    parser.add_argument(
        "--target", type=int, default=90, choices=TARGETS, help="compute capability times ten"
    )
    parser.add_argument("--vllm", type=Path, help="the folder that holds vLLM 0.33's folder vllm")
    options = parser.parse_args(arguments)
    print(f"triton {triton.__version__}, sm_{options.target}\n")
    for line in report(options.target, options.vllm, options.words):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except PagesimError as error:
        sys.exit(f"loop_report: {error}")
