"""Latent attention: seconds of one layer's whole module, its projections included."""

from __future__ import annotations

import numpy as np

from pagesim.costs.operators.decoding import guess as guess_decode
from pagesim.costs.operators.decoding import plane_of as decode_plane
from pagesim.costs.operators.grids import Grid
from pagesim.costs.operators.planes import Plane
from pagesim.costs.operators.prompts import guess as guess_prompts
from pagesim.costs.operators.prompts import plane_of as prompt_plane
from pagesim.costs.operators.table_rows import Rows

FAMILY = "mla"
CONTEXT, GENERATION = "mla_context_module_perf", "mla_generation_module_perf"
TEXTS = ("architecture", "mla_dtype", "kv_cache_dtype", "gemm_type", "kernel_source")
CONTEXT_INTS = ("num_heads", "batch_size", "isl", "tp_size")
GENERATION_INTS = ("num_heads", "batch_size", "step", "tp_size")

RANKS = (512, 64, 128, 128, 1536)
"""kv_lora_rank, qk_rope_head_dim, qk_nope_head_dim, v_head_dim and q_lora_rank of what was measured."""

__all__ = ["Latent", "guess_decode", "guess_prompts"]


class Latent:
    """Modules of latent attention with weights of one type over a cache of one element.

    Args:
        context, generation: rows of `CONTEXT` and `GENERATION`.
        gemm_dtype: of the projections.
        kv_dtype: of the cache.
    """

    def __init__(self, context: Rows, generation: Rows, gemm_dtype: str, kv_dtype: str) -> None:
        wanted = {"gemm_type": gemm_dtype, "kv_cache_dtype": kv_dtype, "tp_size": 1}
        self._context, self._generation = context.where(**wanted), generation.where(**wanted)

    def heads(self) -> list[int]:
        """Return how many heads a GPU had in what was measured."""
        return [int(each) for each in self._generation.values("num_heads")]

    def prompt_grid(self, heads: int) -> Grid:
        """Return what was measured of prompts, over prompts and their length."""
        return Grid.of(_one_kind(self._context.where(num_heads=heads)), "batch_size", "isl")

    def decode_grid(self, heads: int) -> Grid:
        """Return what was measured in decoding over sequences and steps, a step one short of context."""
        return Grid.of(_one_kind(self._generation.where(num_heads=heads)), "batch_size", "step")

    def prompts(self, heads: int) -> Plane | None:
        """Return the seconds of a layer over prompts and their length; None if that was not measured."""
        has = np.any(self._context.ints("num_heads") == heads)
        return prompt_plane(self.prompt_grid(heads)) if has else None

    def decoding(self, heads: int) -> Plane | None:
        """Return the seconds of a layer over sequences and context; None if that was not measured."""
        has = np.any(self._generation.ints("num_heads") == heads)
        return decode_plane(self.decode_grid(heads), ahead=1) if has else None


def _one_kind(rows: Rows) -> Rows:
    """Return the rows whose attention computes in 16 bits, if there are any."""
    plain = rows.where(mla_dtype="bfloat16")
    return plain if len(plain) else rows
