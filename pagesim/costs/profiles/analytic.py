"""Analytic profiles: datasheet rates times rules of thumb, without any measurement."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pagesim.costs.profiles.bounds import Bounds
from pagesim.costs.profiles.profile import Profile, Shape, Terms
from pagesim.costs.table import Table, bilinear
from pagesim.hardware import GpuSpec
from pagesim.models import ModelSpec

FLOPS, HBM, KV, LINK = 0.80, 0.80, 0.65, 1.0
"""Fractions of the datasheet's rates that GEMMs, streaming reads, attention kernels of 2023 and pinned copies
achieve: rules of thumb, like those of `Efficiency`."""

SIZES = (1, 8, 32, 64, 96, 128, 160, 192, 224, 256, 320, 384, 512, 1024, 4096, 16384)


def datasheet_table(axis: str, seconds: Callable[[int], float], share: float) -> Table:
    """Return a table of seconds over sizes, at some fraction of the datasheet's rates."""
    return Table.of({axis: SIZES}, lambda size: seconds(size) / share)


def analytic_profile(
    gpu: GpuSpec, model: ModelSpec, *, tp: int = 1, kv_dtype: str = "fp16", block_sizes: Sequence[int] = (16,)
) -> Profile:
    """Return the profile of a model on a GPU by the GPU's datasheet.

    Args:
        gpu: GPU of which ``tp`` are used.
        model: model to run.
        tp: GPUs over which the model is divided.
        kv_dtype: data type of the KV cache.
        block_sizes: block sizes that the profile covers; a datasheet knows no difference between them.
    """
    bounds = Bounds(model, gpu, tp=tp, kv_dtype=kv_dtype)

    def blocks(seconds: Callable[[int], float], share: float) -> dict[int, Table]:
        def of(size: int) -> Table:
            return datasheet_table("blocks", lambda count: seconds(count * size), share)

        return {size: of(size) for size in block_sizes}

    context_s, pair_s = max(bounds.token_s / KV, bounds.context_s / FLOPS), bounds.pair_s / FLOPS
    decode, prefill = (
        bilinear("sequences", "context", each_s=context_s),
        bilinear("tokens", "keys", each_s=pair_s),
    )
    swaps = blocks(bounds.swap, LINK)
    terms = Terms(
        linear=datasheet_table("tokens", bounds.linear, min(FLOPS, HBM)),
        head=datasheet_table("sequences", bounds.head, min(FLOPS, HBM)),
        write=datasheet_table("tokens", bounds.write, HBM),
        decode=dict.fromkeys(block_sizes, decode),
        prefill=dict.fromkeys(block_sizes, prefill),
        copy=blocks(bounds.copy, HBM),
        swap_out=swaps,
        swap_in=swaps,
        all_reduce=datasheet_table("tokens", bounds.all_reduce, LINK) if tp > 1 else None,
    )
    return Profile(
        name=f"analytic-{gpu.name}",
        kind="analytic",
        sentence=f"{gpu.name} by its datasheet and rules of thumb, any model: nothing was measured",
        model=Shape.of(model),
        tp=tp,
        dtype=model.weights_in_words,
        kv_dtype=kv_dtype,
        gpu=gpu.name,
        terms=terms,
        origins=dict.fromkeys(terms.names(), "datasheet"),
        ranges={},
        errors={},
        machine={"gpu": gpu.name, "source": gpu.source},
    )
