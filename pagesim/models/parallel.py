"""What tensor parallelism sends between GPUs."""

from __future__ import annotations

from pagesim.models.model_spec import ModelSpec

ALL_REDUCES_PER_LAYER = 2
"""One after attention, one after the MLP (Megatron-LM, arXiv 1909.08053)."""


def all_reduce_bytes_per_token(model: ModelSpec, tp: int, dtype_bytes: int = 2) -> float:
    """Bytes that each GPU sends (and receives) per token in one all-reduce.

    They are 2·(tp − 1)/tp · hidden · dtype_bytes: a ring sends every element that often, once while reducing
    and once while gathering. With one GPU it is 0.
    A layer has ``ALL_REDUCES_PER_LAYER``.

    Args:
        model: whose hidden size it is.
        tp: tensor parallel degree.
        dtype_bytes: of an element.
    """
    return 2 * (tp - 1) / tp * model.hidden * dtype_bytes
