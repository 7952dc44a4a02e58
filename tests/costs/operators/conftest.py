"""Operator tables of a machine whose times follow simple rules, and those that are installed."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pagesim.costs.operators.aiconfigurator import read_system, tables_folder
from pagesim.costs.operators.tables import Chip, OperatorTables
from pagesim.errors import PagesimError
from pagesim.hardware import gpu

SYSTEM = "x1_sxm"


def write(folder: Path, path: str, rows: list[dict[str, Any]], system: str = SYSTEM) -> Path:
    """Write a table below a folder of systems."""
    file = folder / "data" / system / f"{path}.parquet"
    file.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_parquet(file)
    return file


def gemm_ms(m: int, n: int, k: int) -> float:
    """Return what a product takes: reading the weights, and going through the tokens; milliseconds."""
    return 0.01 + 1e-9 * n * k + 1e-10 * m * n * k


def decode_ms(batch: int, context: int, kv_heads: int) -> float:
    """Return what decode attention takes, milliseconds."""
    return 0.008 + 1e-6 * batch * context * kv_heads


def prompt_ms(batch: int, isl: int, heads: int) -> float:
    """Return what prompts' attention takes, milliseconds."""
    return 0.01 + 1e-7 * batch * heads * isl**1.5


def write_store(folder: Path, system: str = SYSTEM) -> Path:
    """Write tables of one system, of version 1.2.0, and return the folder."""

    def table(path: str, rows: list[dict[str, Any]]) -> None:
        write(folder, path, rows, system)

    sizes = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]
    widths = [1024, 2048, 4096, 8192, 16384]
    table(
        "gemm/vllm/1.2.0/gemm_perf",
        [
            {
                "m": m,
                "n": n,
                "k": k,
                "gemm_dtype": "bfloat16",
                "kernel_source": "a",
                "latency": gemm_ms(m, n, k),
            }
            for m, n, k in product(sizes, widths, widths)
        ],
    )
    heads = [(8, 2), (16, 4), (32, 8)]
    shape = {"head_dim": 128, "attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "kernel_source": "a"}
    batches = [1, 2, 4, 8, 16, 32, 64, 128, 256]
    table(
        "attention/vllm/1.2.0/generation_attention_perf",
        [
            {
                **shape,
                **{"num_heads": q, "num_key_value_heads": kv, "window_size": 0},
                **{"batch_size": b, "step": c - 1, "latency": decode_ms(b, c, kv)},
            }
            for (q, kv), b, c in product(heads, batches, [2**i for i in range(1, 15)])
            if b * c <= 1 << 19
        ],
    )
    table(
        "attention/vllm/1.2.0/context_attention_perf",
        [
            {
                **shape,
                **{"num_heads": q, "num_key_value_heads": kv, "window_size": 0, "step": 0},
                **{"batch_size": b, "isl": s, "latency": prompt_ms(b, s, q)},
            }
            for (q, kv), b, s in product(heads, batches, [1, 16, 64, 128, 256, 512, 1024, 2048, 4096])
            if b * s <= 1 << 15
        ],
    )
    table(
        "comm/vllm/1.2.0/custom_allreduce_perf",
        [
            {
                **{"num_gpus": g, "message_size": 1 << s, "backend": f"vllm_{how}", "kernel_source": how},
                "latency": (0.004 if how == "graph" else 0.02) + 1e-8 * (1 << s),
            }
            for g, s, how in product([2, 4], range(7, 25), ["graph", "eager"])
        ],
    )
    table(
        "moe/vllm/1.2.0/moe_perf",
        [
            {
                **{"hidden_size": 2048, "inter_size": 768, "topk": 8, "num_experts": 128},
                **{"moe_tp_size": tp, "moe_ep_size": 1, "distribution": how, "moe_dtype": "bfloat16"},
                **{"num_tokens": t, "kernel_source": "a", "latency": 0.02 * t**0.5 / tp},
            }
            for tp, how, t in product([1, 2], ["power_law_1.2", "balanced"], sizes)
        ],
    )
    return folder


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a folder of tables of one system, of version 1.2.0."""
    return write_store(tmp_path)


@pytest.fixture
def tables(store: Path) -> OperatorTables:
    """Return the tables of that folder."""
    return read_system(SYSTEM, tables=store)


@pytest.fixture
def chip(tables: OperatorTables) -> Chip:
    """Return these tables as measurements of an H100."""
    return Chip(gpu("h100"), tables)


@pytest.fixture
def put_table(tmp_path: Path) -> Callable[[str, list[dict[str, Any]]], Path]:
    """Return a writer of tables below the folder of ``store``."""
    return lambda path, rows: write(tmp_path, path, rows)


@pytest.fixture(scope="session")
def installed() -> Path:
    """Return the folder of the published tables: installed, or named by PAGESIM_TABLES."""
    named = os.environ.get("PAGESIM_TABLES")
    try:
        return tables_folder(Path(named) if named else None)
    except PagesimError:
        pytest.skip("aiconfigurator-core is not installed, and PAGESIM_TABLES names no folder of its tables")
