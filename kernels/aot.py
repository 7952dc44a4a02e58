"""Kernels compiled for GPUs that are not here, and what the machine code says about them.

Triton compiles for any target without a GPU and brings NVIDIA's assembler and disassembler along.
Registers, local memory and shared memory decide how many programs a multiprocessor holds; loads of 16 bytes
and tensor-core instructions are what a kernel that is bound by memory and packed for tensor cores must
consist of.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor

from pagesim.errors import PagesimError
from pagesim.kernels.launch import Launch
from pagesim.kernels.main_loop import WIDE_LOAD, buffer_bytes, loop_instructions

TARGETS = (80, 90, 100)
"""Compute capabilities (times ten): A100, H100 and H200, B200."""

SHARED_LIMIT = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
"""Bytes of shared memory that one program may take (CUDA C++ programming guide, technical specifications)."""

SHARED_OF_SM = {80: 164 * 1024, 90: 228 * 1024, 100: 228 * 1024}
"""Bytes of shared memory of a multiprocessor (the same table)."""

_TYPES = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
}
_NARROW_LOAD = re.compile(r"\b(?:LDGSTS|LDG)\.E(?!\S*\.128)")
_AHEAD = re.compile(r"\bLDGSTS\b")
_FUSED = re.compile(r"\bFFMA\b")
_WIDE_STORE = re.compile(r"\bSTG\.E\S*\.128\b")
_LOCAL = re.compile(r"\b(?:LDL|STL)\b")
_TENSOR = re.compile(r"\b(?:HMMA|HGMMA|QGMMA|IMMA|UTCHMMA|UTCQMMA)\b")


@dataclass(frozen=True, slots=True)
class MachineCode:
    """What a kernel compiled for one target is made of.

    Args:
        target: compute capability times ten.
        registers: of a thread.
        shared: bytes of a program.
        stack: bytes of local memory of a thread.
        local: instructions that load from or store to local memory: spills.
        wide_loads: instructions that load 16 bytes a thread from global memory.
        narrow_loads: those that load less.
        ahead: loads to shared memory that nothing waits for at once (cp.async).
        wide_stores: those that store 16 bytes.
        tensor: tensor-core instructions.
        fused: products in float32 with a sum.
        warps: of a program.
        loop: instructions a turn of the loop that loads most.
        flying: bytes that asynchronous copies of a program have in flight, with every stage under way.
    """

    target: int
    registers: int
    shared: int
    stack: int
    local: int
    wide_loads: int
    narrow_loads: int
    ahead: int
    wide_stores: int
    tensor: int
    fused: int
    warps: int
    loop: int
    flying: int

    @property
    def programs(self) -> int:
        """How many programs a multiprocessor holds at once (CUDA's occupancy calculator)."""
        registers = -(-self.registers * 32 // 256) * 256 * self.warps  # a warp is given them 256 at a time
        shared = self.shared + 1024  # of which the system takes a KB a program
        return min(65_536 // registers, SHARED_OF_SM[self.target] // shared, 64 // self.warps)


def compile_for(launch: Launch, target: int) -> MachineCode:
    """Compile what a launch would run, for a target, and take the machine code apart.

    Args:
        launch: its tensors may be on the device ``meta``; it is taken to begin at multiples of
            16 bytes.
        target: compute capability times ten.

    Raises:
        PagesimError: this process interprets kernels, so there is nothing to compile.
        triton.CompilationError: the target cannot run this.
    """
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise PagesimError("TRITON_INTERPRET is 1 in the environment; compiling ahead of time needs it unset")
    compiled = triton.compile(
        _source(launch),
        target=triton.backends.compiler.GPUTarget("cuda", target, 32),
        options=launch.options,
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.cubin")
        file.write_bytes(compiled.asm["cubin"])
        usage = _tool("cuobjdump", "-res-usage", str(file))
        code = _tool("nvdisasm", "-c", str(file))
    registers, stack = (int(_find(rf"{name}:(\d+)", usage)) for name in ("REG", "STACK"))
    return MachineCode(
        target,
        registers,
        shared=compiled.metadata.shared,
        stack=stack,
        local=len(_LOCAL.findall(code)),
        wide_loads=len(WIDE_LOAD.findall(code)),
        narrow_loads=len(_NARROW_LOAD.findall(code)),
        ahead=len(_AHEAD.findall(code)),
        wide_stores=len(_WIDE_STORE.findall(code)),
        tensor=len(_TENSOR.findall(code)),
        fused=len(_FUSED.findall(code)),
        warps=launch.num_warps,
        loop=loop_instructions(code),
        flying=buffer_bytes(compiled.asm["ttgir"]),
    )


def _source(launch: Launch) -> Any:
    """Return a kernel with the types and the divisibility that Triton would see if the launch were run."""
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    for parameter in launch.kernel.params:
        value = launch.arguments[parameter.name]
        if parameter.is_constexpr or value is None or (type(value) is int and value == 1):
            signature[parameter.name] = "constexpr"
            constants[parameter.name] = value
            continue
        if isinstance(value, Tensor):
            signature[parameter.name] = "*" + _TYPES[value.dtype]
            divisible = value.storage_offset() * value.element_size() % 16 == 0
        elif isinstance(value, float):
            signature[parameter.name] = "fp32"
            divisible = False
        else:
            fitting = "i32" if -(2**31) <= value < 2**31 else "i64"
            signature[parameter.name] = parameter.annotation_type or fitting
            divisible = value % 16 == 0
        if divisible:
            attributes[(parameter.num,)] = [["tt.divisibility", 16]]
    return triton.compiler.ASTSource(launch.kernel, signature, constants, attributes)


def _tool(name: str, *arguments: str) -> str:
    """Return what one of NVIDIA's tools that come with Triton prints."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    return subprocess.run([tool, *arguments], check=True, capture_output=True, text=True).stdout


def _find(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    assert found, f"{pattern} is not in {text}"
    return found[1]
