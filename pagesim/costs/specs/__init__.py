"""specs: what a model and a GPU are, in numbers, and how many KV blocks the one leaves free on the other."""

from __future__ import annotations

from pagesim.costs.specs.block_plan import BlockGroup, BlockPlan, plan_blocks
from pagesim.costs.specs.capacity import capacity
from pagesim.costs.specs.catalogue import model, models
from pagesim.costs.specs.division import Division, divide
from pagesim.costs.specs.gpus import GpuSpec, Link, gpu, gpus
from pagesim.costs.specs.huggingface import from_hf_config
from pagesim.costs.specs.kv_blocks import Capacity, paged_block
from pagesim.costs.specs.layer_file import from_layers
from pagesim.costs.specs.models import LatentAttention, MixtureOfExperts, ModelSpec
from pagesim.costs.specs.parallel import ALL_REDUCES_PER_LAYER, all_reduce_bytes_per_token
from pagesim.costs.specs.pool_plan import PoolPlan, plan_pools
from pagesim.costs.specs.static_division import divide_statically
from pagesim.costs.specs.tier_spec import TierSpec, parse_tiers
from pagesim.costs.specs.type_plan import LayerType, TypePlan, plan_types
from pagesim.costs.specs.weights import WeightDtype, Weights

__all__ = [
    "ALL_REDUCES_PER_LAYER",
    "BlockGroup",
    "BlockPlan",
    "Capacity",
    "Division",
    "GpuSpec",
    "LatentAttention",
    "LayerType",
    "Link",
    "MixtureOfExperts",
    "ModelSpec",
    "PoolPlan",
    "TierSpec",
    "TypePlan",
    "WeightDtype",
    "Weights",
    "all_reduce_bytes_per_token",
    "capacity",
    "divide",
    "divide_statically",
    "from_hf_config",
    "from_layers",
    "gpu",
    "gpus",
    "model",
    "models",
    "paged_block",
    "parse_tiers",
    "plan_blocks",
    "plan_pools",
    "plan_types",
]
