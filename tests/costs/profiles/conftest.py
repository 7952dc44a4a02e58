"""A machine whose costs are known, so that what is fitted can be compared with what is true."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pagesim.costs.profiles import Profile, Sample, analytic_profile
from pagesim.costs.profiles.vidur import LAYER
from pagesim.hardware import gpu
from pagesim.models import model

KV_HEADS, SLOTS = 8, 132


@pytest.fixture
def analytic() -> Profile:
    """Return the datasheet's profile of OPT-13B on an A100."""
    return analytic_profile(gpu("a100-40gb"), model("opt-13b"), block_sizes=(1, 16))


@pytest.fixture
def measured(analytic: Profile) -> Profile:
    """Return a profile that holds samples, predicted exactly by its terms."""
    samples = tuple(
        Sample("linear", 0, size, 0, analytic.terms.linear(size)) for size in (1, 8, 64, 100, 512, 2048)
    )
    return analytic.model_copy(
        update={"name": "mine", "kind": "measured", "samples": samples, "held_out": (3,)}
    )


@pytest.fixture
def vidur_files(tmp_path: Path) -> Callable[..., tuple[Path, Path, Path]]:
    """Return a writer of files in Vidur's schema for Llama-2-7B, with times that follow simple rules."""

    def write(**shape: int) -> tuple[Path, Path, Path]:
        size = {
            "n_embd": 4096,
            "n_head": 32,
            "n_expanded_embd": 11008,
            "num_tensor_parallel_workers": 1,
            **shape,
        }
        tokens = np.array([1, 8, 16, 64, 128, 256, 512, 1024])
        linear = pd.DataFrame(
            {f"time_stats.{name}.median": 0.01 + 0.001 * tokens for name in (*LAYER, "emb")}
        )
        linear = linear.assign(num_tokens=tokens, **size)
        batch, past = (each.ravel() for each in np.meshgrid([1, 4, 16, 64], [64, 256, 1024, 4000]))
        decode = pd.DataFrame(
            {
                "is_prefill": False,
                "batch_size": batch,
                "prefill_chunk_size": 0,
                "kv_cache_size": past,
                "time_stats.attn_decode.median": 0.01 + 1e-5 * batch * (past + 1),
                "time_stats.attn_prefill.median": 0.0,
                "time_stats.attn_kv_cache_save.median": 0.004,
            }
        )
        chunk = np.array([32, 64, 128, 512, 1024, 2048])
        prefill = pd.DataFrame(
            {
                "is_prefill": True,
                "batch_size": 1,
                "prefill_chunk_size": chunk,
                "kv_cache_size": 0,
                "time_stats.attn_decode.median": 0.0,
                "time_stats.attn_prefill.median": 0.02 + 1e-7 * chunk * (chunk + 1) / 2,
                "time_stats.attn_kv_cache_save.median": 0.9,
            }
        )
        attention = pd.concat([decode, prefill]).assign(
            n_embd=4096, n_q_head=32, n_kv_head=32, block_size=16, num_tensor_parallel_workers=1
        )
        size_bytes = np.array([1, 16, 256, 1024, 4096]) * 2 * 4096
        reduces = pd.DataFrame(
            {
                "num_workers": 2,
                "devices_per_node": 2,
                "size": size_bytes,
                "time_stats.all_reduce.median": 0.02 + 1e-8 * size_bytes,
            }
        )
        files = tmp_path / "linear.csv", tmp_path / "attention.csv", tmp_path / "reduces.csv"
        for file, table in zip(files, (linear, attention, reduces), strict=True):
            table.to_csv(file, index=False)
        return files

    return write
