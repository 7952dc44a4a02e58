"""sizing: how many KV blocks fit on a GPU together with a model, and how the model's layers share them."""

from __future__ import annotations

from pagesim.sizing.block_plan import BlockGroup, BlockPlan
from pagesim.sizing.blocks import capacity
from pagesim.sizing.division import Division, MemoryOptions, divide
from pagesim.sizing.kv_blocks import Capacity, paged_block
from pagesim.sizing.planning import plan_blocks
from pagesim.sizing.pool_plan import PoolPlan, StatePlan, plan_pools, plan_states
from pagesim.sizing.static_division import divide_statically
from pagesim.sizing.type_plan import LayerType, TypePlan, plan_types

__all__ = [
    "BlockGroup",
    "BlockPlan",
    "Capacity",
    "Division",
    "LayerType",
    "MemoryOptions",
    "PoolPlan",
    "StatePlan",
    "TypePlan",
    "capacity",
    "divide",
    "divide_statically",
    "paged_block",
    "plan_blocks",
    "plan_pools",
    "plan_states",
    "plan_types",
]
