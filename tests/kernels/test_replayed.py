"""Attention over exported block tables: which points there are, and what a batch reads, by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("safetensors", reason="safetensors is not installed")

from safetensors.torch import save_file  # noqa: E402

from pagesim import PagesimError  # noqa: E402
from pagesim.kernels.bench.exported import points  # noqa: E402
from pagesim.kernels.bench.replayed import distinct_tokens, in_order, prepare  # noqa: E402
from pagesim.kernels.bench.session import Session  # noqa: E402


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a batch with blocks of 4: a decode step at 6 tokens, three queries at 7, one block shared."""
    tensors = {
        "block_tables": torch.tensor([[5, 2], [5, 7]], dtype=torch.int32),
        "seq_lens": torch.tensor([6, 7], dtype=torch.int32),
        "query_lens": torch.tensor([1, 3], dtype=torch.int32),
    }
    save_file(tensors, tmp_path / "one.safetensors")
    line = {
        "run": "mine", "iteration": 3, "block_size": 4, "head_dim": 64, "heads": 8, "kv_heads": 2,
        "sequences": 2, "new_tokens": 4, "file": "one.safetensors",
    }  # fmt: skip
    (tmp_path / "batches.jsonl").write_text(json.dumps(line) + "\n")
    return tmp_path


def test_a_batch_is_read_once_and_right(folder: Path) -> None:
    """Block 5 is shared: 4 + 2 + 3 tokens are read, of one head of 64 numbers, keys and values, 4 bytes each.

    Seen by the queries: 6 tokens by the first, then 5, 6 and 7.
    """
    for point in points(folder, "fp32", one_head=True):
        case = prepare(point, Session("cpu", 1e-6))
        queries = 4 * 4 * 64 * 4  # queries, query heads, numbers, bytes
        assert case.bytes_moved == 2 * (4 + 2 + 3) * 64 * 4 + 2 * queries
        assert case.flops == 4 * (6 + 5 + 6 + 7) * 4 * 64
        assert case.check is not None
        assert case.check() < case.tolerance


def test_on_a_gpu_all_heads_are_computed(folder: Path) -> None:
    assert [(p.op, p["q_heads"], p["kv_heads"]) for p in points(folder, "fp16")] == [
        ("replayed", 8, 2),
        ("replayed-in-order", 8, 2),
    ]


def test_blocks_are_numbered_as_they_are_named_first() -> None:
    table = torch.tensor([[9, 4, -1], [9, 0, 4]], dtype=torch.int32)
    assert in_order(table).tolist() == [[0, 1, -1], [0, 2, 1]]
    assert distinct_tokens(table, torch.tensor([7, 12]), 4) == 12


def test_another_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PagesimError, match="is no folder of pagesim bench export"):
        points(tmp_path, "fp32")
