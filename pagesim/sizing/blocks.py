"""How many KV blocks fit on a GPU with a model, by the paper's, vLLM's or SGLang's rule, or as given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import get_args

from pagesim.errors import CapacityError, PagesimError
from pagesim.hardware.gpus import GIB, GpuSpec
from pagesim.models.model_spec import ModelSpec
from pagesim.models.parameters import tensors
from pagesim.models.weights import ALL_BF16
from pagesim.sizing.block_pages import at_least_one
from pagesim.sizing.block_plan import BlockPlan
from pagesim.sizing.division import USUAL_OPTIONS, Division, MemoryOptions, divide, layer_bytes
from pagesim.sizing.kv_blocks import SWAP_GIB, Capacity, Plan, Sizing, kv_block
from pagesim.sizing.pool_plan import PoolPlan, StatePlan
from pagesim.sizing.static_division import divide_statically

MEM_FRACTION_STATIC = 0.83
"""SGLang's default on an H100."""

PAPER_UTILIZATION = 0.95
PAPER_BATCHED_TOKENS = 2560
PAPER_WORKSPACE = 1 * GIB


def capacity(
    model: ModelSpec,
    gpu: GpuSpec,
    options: MemoryOptions = USUAL_OPTIONS,
    *,
    tp: int = 1,
    block_size: int = 16,
    page_bytes: int | None = None,
    kv_dtype: str = "fp16",
    sizing: Sizing = "paper",
    mem_fraction_static: float = MEM_FRACTION_STATIC,
    max_total_tokens: int | None = None,
    cache_bytes: int | None = None,
    max_model_len: int | None = None,
    swap_gib: float = SWAP_GIB,
    num_blocks: int | None = None,
    blocks: Plan | None = None,
    stages: Sequence[range] = (),
    draft_layers: int = 0,
) -> Capacity:
    """Return how many KV blocks fit next to the weights.

    ``paper``: ⌊(⌊0.95·memory⌋ − weights − activations − 1 GiB) / block bytes⌋ on each GPU, as the
    PagedAttention artifact sizes it. Blocks of 16 tokens are counted, and the same slots are then divided
    into other block sizes, on the GPU and in swap space, as the paper compares block sizes. Mapped pages
    divide the same bytes.

    ``vllm``: ⌊what `divide` leaves for the cache / block bytes⌋ on the fullest GPU, for the given block
    size.

    ``sglang``: ⌊what `divide_statically` leaves for the cache / bytes per token⌋, at most
    ``max_total_tokens``, in whole blocks. The cache may be shorter than the longest sequence.

    Args:
        model: the model.
        gpu: the GPU, of which there are ``tp``.
        options: server options, for ``vllm``; ``paper`` uses only the tokens of the largest iteration, by
            default 2560, and ``sglang`` only the drafter's bytes.
        tp: GPUs over which weights and KV heads are divided.
        block_size: tokens per block, at least 1.
        page_bytes: bytes per page if memory is mapped in pages; a block is then a `paged_block`, regardless
            of ``block_size``, and there is no swap space.
        kv_dtype: data type of the cache: one of `KV_DTYPE_BYTES`.
        sizing: sizing rule.
        mem_fraction_static: fraction of memory for weights and cache, for ``sglang``, in (0, 1].
        max_total_tokens: upper bound on the cache's tokens, for ``sglang``.
        cache_bytes: bytes for the cache on each GPU, if known; they are then not estimated.
        max_model_len: tokens of the longest sequence, refused if the cache cannot hold it. Defaults to the
            model's own under ``vllm``; other rules check nothing by default.
        swap_gib: host memory for swapping, in GiB per GPU.
        num_blocks: number of GPU blocks to use, whether or not they fit.
        blocks: block plan, which replaces ``block_size``, for layers that differ in what they keep. Its
            number of blocks is ignored; the plan itself checks whether the longest request fits.
        stages: layers of each pipeline stage, for ``vllm`` with a block plan of all layers; all stages have
            the same number of blocks. Defaults to one stage.
        draft_layers: drafter layers, as for `kv_block`, if there is no plan in ``blocks``.

    Raises:
        CapacityError: the model does not fit, or the cache cannot hold ``max_model_len`` tokens.
        PagesimError: an argument is out of bounds.
    """
    _check(sizing, mem_fraction_static, swap_gib)
    at_least_one(
        block_size=block_size,
        cache_bytes=cache_bytes,
        max_model_len=max_model_len,
        max_total_tokens=max_total_tokens,
        num_blocks=num_blocks,
    )
    block = kv_block(
        model,
        block_size=block_size,
        page_bytes=page_bytes,
        kv_dtype=kv_dtype,
        tp=tp,
        sizing=sizing,
        plan=blocks,
        draft_layers=draft_layers,
    )
    shares = {
        "paper": PAPER_UTILIZATION,
        "vllm": options.gpu_memory_utilization,
        "sglang": mem_fraction_static,
    }

    own = stages or (range(model.layers),)

    def divided(tp: int, layers: range) -> Division:
        if sizing == "paper":
            return _as_in_the_paper(model, gpu, tp, options.max_num_batched_tokens or PAPER_BATCHED_TOKENS)
        if sizing == "sglang":
            return divide_statically(
                *(model, gpu),
                tp=tp,
                mem_fraction_static=mem_fraction_static,
                drafter_bytes=options.drafter_bytes,
            )
        return divide(model, gpu, options, tp=tp, layers=layers)

    def rests(tp: int) -> list[int]:
        """Return the bytes for the cache on each GPU, per stage."""
        return [divided(tp, layers).cache if cache_bytes is None else cache_bytes for layers in own]

    def fitting(tp: int) -> int:
        """Return how many blocks fit on the GPUs of all stages."""
        if isinstance(blocks, PoolPlan | StatePlan):
            return blocks.within(rests(tp)[0]).num_blocks
        return blocks.blocks_in(rests(tp)) if isinstance(blocks, BlockPlan) else block.fitting(rests(tp)[0])

    known = model.has_weights or (num_blocks is None and cache_bytes is None)
    divisions = [divided(tp, layers) for layers in own] if known else []
    weights = max([each.weights for each in divisions], default=0)
    activations = max([each.activations for each in divisions], default=0)
    cpu_blocks = block.fitting(int(swap_gib * GIB)) if page_bytes is None else 0
    if num_blocks is not None:
        gpu_blocks = num_blocks
    else:
        if isinstance(blocks, StatePlan):
            blocks = blocks.within(rests(tp)[0])
        gpu_blocks = fitting(tp)
        if sizing == "sglang" and max_total_tokens is not None:
            gpu_blocks = min(gpu_blocks, max_total_tokens // block.tokens)
            if gpu_blocks < 1:
                raise PagesimError(
                    f"max_total_tokens is {max_total_tokens}; it must be at least the {block.tokens} of a "
                    "page"
                )
        if gpu_blocks < 1:
            needed = -(-block.bytes // block.unit) * block.unit
            if isinstance(blocks, BlockPlan):
                needed = max(blocks.stage_bytes)
            if cache_bytes is not None:
                raise CapacityError(
                    f"a KV block of {model.name} takes {needed} bytes on each GPU, more than the "
                    f"{cache_bytes} that are left for the cache: give it more, or take a smaller block_size"
                )
            raise _does_not_fit(
                model, gpu, tp, shares[sizing], fitting, weights / GIB, static=sizing == "sglang"
            )

    longest = max_model_len
    if longest is None and sizing == "vllm" and num_blocks is None:
        longest = model.max_model_len
    slots = gpu_blocks * block.tokens
    if longest is not None and longest > slots and blocks is None:
        remedy = "increase num_blocks" if num_blocks is not None else "increase tensor_parallel_size"
        if num_blocks is None and sizing == "vllm":
            remedy = "increase gpu_memory_utilization or tensor_parallel_size"
        raise CapacityError(
            f"max_model_len is {longest} tokens, but the KV cache of {model.name} on {tp} × {gpu.name} holds "
            f"{slots}: decrease max_model_len to at most {slots}, or {remedy}"
        )
    plan = None if blocks is None else blocks.holding(gpu_blocks)
    return Capacity(gpu_blocks, cpu_blocks, block.tokens, block.bytes, weights, activations, tp, plan)


def _check(sizing: str, fraction: float, swap_gib: float) -> None:
    if sizing not in get_args(Sizing):
        raise PagesimError(f"sizing is {sizing!r}; it must be paper, vllm or sglang")
    if not 0 < fraction <= 1:
        raise PagesimError(f"mem_fraction_static is {fraction}; it must be above 0 and at most 1")
    if not 0 <= swap_gib < float("inf"):
        raise PagesimError(f"swap_gib is {swap_gib}; it must be a finite number from 0")


def _as_in_the_paper(model: ModelSpec, gpu: GpuSpec, tp: int, batched: int) -> Division:
    """Divide memory as the PagedAttention artifact does; it keeps the logits of all batched tokens twice."""
    return Division(
        memory=gpu.memory_bytes,
        requested=int(PAPER_UTILIZATION * gpu.memory_bytes),
        weights=_artifact_weights(model, tp),
        activations=max(layer_bytes(model, tp, batched), 2 * 2 * batched * model.vocab),
        graphs=0,
        other=PAPER_WORKSPACE,
    )


def _artifact_weights(model: ModelSpec, tp: int) -> int:
    """Return the weight bytes per GPU as the artifact counts them: matrices are split, without padding."""
    if model.weights != ALL_BF16:
        return model.weight_bytes_per_gpu(tp)
    model.kv_heads_per_gpu(tp)
    parts = [(each.numbers(), each.columns > 1 and each.shards > 1) for each in tensors(model)]
    return sum(2 * -(-size // tp) if divided else 2 * size for size, divided in parts)


def _does_not_fit(
    model: ModelSpec,
    gpu: GpuSpec,
    tp: int,
    utilization: float,
    fitting: Callable[[int], int],
    weights: float,
    static: bool,
) -> CapacityError:
    """Return the error for a cache without blocks, naming the smallest larger ``tp`` that fits one."""
    larger = (d for d in range(tp + 1, model.heads + 1) if model.heads % d == 0)
    allowed = (d for d in larger if model.kv_heads % d == 0 or d % model.kv_heads == 0)
    # Blocks only get smaller with more GPUs, so room for the present block suffices.
    fits = next((d for d in allowed if fitting(d) >= 1), None)
    name = "tensor_parallel_size"
    # SGLang's counts the GPUs of all ranks of attention; here ``tp`` is one rank's.
    ranks = model.expert_division.ranks if static and model.expert_division else 1
    advice = (
        f"the smallest {name} that fits is {fits * ranks}"
        if fits
        else f"no {name} up to its {model.heads} heads{' a rank' if ranks > 1 else ''} fits"
    )
    usable = utilization * gpu.memory_bytes / GIB
    if static:
        advice += f", or raise mem_fraction_static above {utilization:g}"
    return CapacityError(
        f"{model.name} with {name} {tp * ranks} does not fit on {gpu.name}: {weights:.1f} GiB of weights a "
        f"GPU leave no room for a KV block in {usable:.1f} usable of its {gpu.memory_bytes / GIB:.1f} GiB; "
        f"{advice}"
    )
