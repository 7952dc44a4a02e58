"""models: a model's layers, what they cache, its parameters and the bytes of its weights."""

from __future__ import annotations

from pagesim.models.catalogue import model, models
from pagesim.models.huggingface import from_hf_config
from pagesim.models.layer_file import from_layers
from pagesim.models.model_spec import ModelSpec
from pagesim.models.parallel import ALL_REDUCES_PER_LAYER, all_reduce_bytes_per_token
from pagesim.models.parts import LatentAttention, MixtureOfExperts
from pagesim.models.weights import WeightDtype, Weights

__all__ = [
    "ALL_REDUCES_PER_LAYER",
    "LatentAttention",
    "MixtureOfExperts",
    "ModelSpec",
    "WeightDtype",
    "Weights",
    "all_reduce_bytes_per_token",
    "from_hf_config",
    "from_layers",
    "model",
    "models",
]
