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
    copy_pieces(source, target, piece_bytes, programs).run(ours)
    assert torch.equal(blocks[theirs], torch.stack(caches, 1)[ours])
    others = [row for row in range(7) if row not in theirs.tolist()]
    assert (blocks[others] == 0xAB).all()
print("done")
"""

COMPILED = """
import torch
from pagesim.kernels.aot import TARGETS, compile_for
from pagesim.kernels.swap.pieces import copy_pieces

ids = torch.empty(64, dtype=torch.int64, device="meta")
side = (ids, ids, 1 << 20)
for target in TARGETS:
    code = compile_for(copy_pieces(side, side, 160 << 10, 32), target)
    assert code.wide_loads == code.wide_stores == 8, code
    assert code.local == code.stack == code.shared == 0, code
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
