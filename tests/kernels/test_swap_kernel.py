"""The swaps' kernel without a GPU: interpreted it moves the right bytes, compiled it moves 16 at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pagesim

INTERPRETED = """
import torch
from pagesim.kernels.swap.pieces import copy_pieces

def addresses(caches):
    return torch.tensor([cache.data_ptr() for cache in caches])

for seed, (piece_bytes, pieces, count, programs) in enumerate(
    [(16, 1, 1, 1), (48, 3, 5, 4), (16384, 2, 3, 2), (16400, 1, 4, 100), (40960, 2, 2, 3)]
):
    torch.manual_seed(seed)
    caches = [torch.randint(0, 256, (9, piece_bytes), dtype=torch.uint8) for _ in range(pieces)]
    blocks = torch.full((7, pieces, piece_bytes), 0xAB, dtype=torch.uint8)
    ours, theirs = torch.randperm(9)[:count], torch.randperm(7)[:count]
    source = (addresses(caches), ours, piece_bytes)
    target = (addresses([blocks[0, piece] for piece in range(pieces)]), theirs, pieces * piece_bytes)
    copy_pieces(source, target, piece_bytes, programs)
    assert torch.equal(blocks[theirs], torch.stack(caches, 1)[ours])
    others = [row for row in range(7) if row not in theirs.tolist()]
    assert (blocks[others] == 0xAB).all()
print("done")
"""

COMPILED = """
import warnings
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from pagesim.kernels.swap.pieces import TILE_WORDS, _copy_pieces

warnings.simplefilter("ignore")  # about a default of a later triton
tensors = ("source_bases", "source_ids", "target_bases", "target_ids")
signature = {name: "*i64" if name in tensors else "i32" for name in _copy_pieces.arg_names[:-1]}
aligned = (*tensors, "source_stride", "target_stride", "words")
hints = {(_copy_pieces.arg_names.index(name),): [["tt.divisibility", 16]] for name in aligned}
for capability in (80, 90, 100):
    source = ASTSource(_copy_pieces, {**signature, "TILE": "constexpr"}, {"TILE": TILE_WORDS}, hints)
    target = GPUTarget("cuda", capability, 32)
    code = triton.compile(source, target=target, options={"num_warps": 4}).asm["ptx"]
    assert code.count("ld.global.v2.b64") == code.count("st.global.v2.b64") == 8, capability
    assert "ld.local" not in code
print("done")
"""


@pytest.mark.parametrize(
    ("program", "interpret"),
    [pytest.param(INTERPRETED, "1", id="bytes"), pytest.param(COMPILED, "0", id="16 at a time")],
)
def test_the_kernel(program, interpret, tmp_path):
    pytest.importorskip("triton", reason="triton is not installed")
    # In a process of its own: triton decides when it is imported whether it interprets.
    here = str(Path(pagesim.__file__).parents[1])
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    settings = {"PYTHONPATH": path, "TRITON_INTERPRET": interpret, "TRITON_CACHE_DIR": str(tmp_path)}
    # Functions that triton compiles are read from their file.
    script = tmp_path / "program.py"
    script.write_text(program)
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "done\n", done.stderr
