"""KV groups of a plan: by which rule each group of layers, or layer type, takes and gives back blocks."""

from __future__ import annotations

from pagesim.costs.specs import BlockPlan, TypePlan
from pagesim.costs.specs.layers import ChunkLayer, Layer, StateLayer, WindowLayer
from pagesim.kvcache import ChunkedLocal, Full, KVGroup, Rule, SlidingWindow, State


def kv_groups(plan: BlockPlan) -> tuple[KVGroup, ...]:
    """Return the KV groups of a block plan, in its order."""
    return tuple(
        [
            KVGroup(
                group.block_size,
                _rule(group.rule, State(plan.state_mode == "align", group.checkpoint)),
                len(group.layers),
                plan.bytes_per_block,
                group.real_bytes,
            )
            for group in plan.groups
        ]
    )


def type_groups(plan: TypePlan) -> tuple[KVGroup, ...]:
    """Return a KV group for each layer type of a plan, in its order."""
    return tuple(
        [
            KVGroup(each.block_size, _rule(each.rule, State()), len(each.places), each.page_bytes)
            for each in plan.types
        ]
    )


def _rule(layer: Layer, of_states: State) -> Rule:
    match layer:
        case WindowLayer(window=window):
            return SlidingWindow(window)
        case ChunkLayer(chunk=chunk):
            return ChunkedLocal(chunk)
        case StateLayer():
            return of_states
        case _:
            return Full()
