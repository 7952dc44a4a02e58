"""What tensor and pipeline parallelism send between GPUs, and the layers of each stage of a pipeline."""

from __future__ import annotations

from pagesim.errors import PagesimError
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


def hand_over_bytes_per_token(model: ModelSpec, tp: int, dtype_bytes: int = 2) -> float:
    """Bytes that each GPU of a stage sends per token to the next stage: hidden states and the residual.

    The GPUs of a stage hold the same, so each sends 1/tp of it.

    Source: vLLM 0.33.0, ``send_tensor_dict`` in distributed/parallel_state.py.

    Args:
        model: whose hidden size it is.
        tp: tensor parallel degree.
        dtype_bytes: of an element.
    """
    return 2 * model.hidden * dtype_bytes / tp


def stage_layers(layers: int, stages: int) -> tuple[int, ...]:
    """Return how many layers each stage of a pipeline has.

    Layers that are left over go to the stages before the last, the latest first: the last has the head, too.

    Source: vLLM 0.33.0, ``get_pp_indices`` in distributed/utils.py.

    Args:
        layers: of the model.
        stages: of the pipeline.

    Raises:
        PagesimError: there are fewer layers than stages.
    """
    if layers < stages:
        raise PagesimError(f"pipeline_parallel_size is {stages}, and the model has {layers} layers: lower it")
    each, more = divmod(layers, stages)
    return tuple([each + (stages - 1 - more <= stage < stages - 1) for stage in range(stages)])
