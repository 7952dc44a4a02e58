"""The blocks of a KV cache: the size of one block, and the capacity of a cache of several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from pagesim.errors import PagesimError
from pagesim.hardware.gpu_spec import GIB
from pagesim.models.layers import KV_SCALE_BYTES, StateLayer
from pagesim.models.model_spec import ModelSpec
from pagesim.sizing.block_pages import at_least_one
from pagesim.sizing.block_plan import BlockPlan
from pagesim.sizing.pool_plan import PoolPlan, StatePlan
from pagesim.sizing.type_plan import TypePlan

Sizing = Literal["paper", "vllm", "sglang"]

Plan = BlockPlan | PoolPlan | StatePlan | TypePlan

PAPER_BLOCK = 16

SWAP_GIB = 20
"""Default host memory for swapping, in GiB per GPU."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The cache that fits, in blocks of ``block_size`` tokens. Each block spans all ``tp`` GPUs.

    Args:
        num_blocks: blocks in GPU memory (vLLM v1 uses one of them as its null block).
        cpu_blocks: blocks in the host's swap space.
        block_size: tokens per block.
        block_bytes: bytes per block on each GPU.
        weight_bytes_per_gpu: bytes of weights on the fullest GPU; 0 if they are unknown or did not decide
            the number of blocks.
        activation_bytes: bytes set aside on each GPU for one iteration's activations, under SGLang including
            CUDA graphs; 0 in the same cases.
        tp: GPUs that share the model.
        plan: which layers share a block; its blocks include the null block. None if blocks were counted by
            bytes per token.
    """

    num_blocks: int
    cpu_blocks: int
    block_size: int
    block_bytes: int
    weight_bytes_per_gpu: int
    activation_bytes: int
    tp: int
    plan: Plan | None = None

    @property
    def slots(self) -> int:
        """Number of tokens whose KV fits in GPU memory."""
        return self.num_blocks * self.block_size

    @property
    def kv_bytes(self) -> int:
        """Bytes of all device blocks, summed over all GPUs."""
        return self.num_blocks * self.block_bytes * self.tp


class PagedBlock(NamedTuple):
    """A block of memory mapped in pages: one page in each tensor, or as many as one token needs.

    Attributes:
        tokens: whole tokens whose keys or values a page holds; 1 if a page holds less than one.
        bytes: bytes of all its pages on each GPU, including space too small for a whole token.
    """

    tokens: int
    bytes: int


def paged_block(model: ModelSpec, page_bytes: int, *, kv_dtype: str = "fp16", tp: int = 1) -> PagedBlock:
    """Return the block of a model's cache if it is mapped in pages.

    Every layer has a tensor of keys and one of values (under MLA one of latent vectors). Each tensor has its
    own address range and therefore its own pages.

    Args:
        model: the model.
        page_bytes: bytes per page, at least 1.
        kv_dtype: data type of the cache: one of `KV_DTYPE_BYTES`.
        tp: GPUs over which KV heads are divided.

    Raises:
        PagesimError: an argument is out of bounds.
    """
    at_least_one(page_bytes=page_bytes)
    if not model.keeps_all:
        raise PagesimError(
            f"layers of {model.name} differ in what they keep; memory that is mapped in pages is for models "
            "whose layers keep every token alike"
        )
    if kv_dtype in KV_SCALE_BYTES:
        raise PagesimError(
            f"kv_dtype is {kv_dtype}, and where its scales lie in memory that is mapped in pages is not "
            "known: choose fp16, bf16 or fp8"
        )
    tensors = model.layers * (1 if model.mla else 2)
    row = model.kv_bytes_per_token(kv_dtype, tp) // tensors
    tokens = max(1, page_bytes // row)
    pages = -(-tokens * row // page_bytes)
    return PagedBlock(tokens, tensors * pages * page_bytes)


class KVBlock(NamedTuple):
    """A block of a cache, as each GPU holds it.

    Attributes:
        tokens: token slots of the block.
        bytes: bytes of the block.
        unit: granularity in bytes of dividing memory into blocks: the block's own bytes or, by the paper's
            rule, those of 16 tokens for every block size.
    """

    tokens: int
    bytes: int
    unit: int

    def fitting(self, space: int) -> int:
        """Return how many such blocks fit into this many bytes."""
        return space // self.unit * self.unit // self.bytes


def kv_block(
    model: ModelSpec,
    *,
    block_size: int,
    page_bytes: int | None,
    kv_dtype: str,
    tp: int,
    sizing: Sizing,
    plan: Plan | None,
    draft_layers: int = 0,
) -> KVBlock:
    """Return the block of a model's cache.

    Args:
        model: the model.
        block_size: tokens per block, if neither pages nor a plan decide it.
        page_bytes: bytes per page if memory is mapped in pages.
        kv_dtype: data type of the cache: one of `KV_DTYPE_BYTES`.
        tp: GPUs over which KV heads are divided.
        sizing: rule by which memory is divided into blocks.
        plan: block plan, if layers differ in what they keep.
        draft_layers: drafter layers, each of which keeps as much as the model's average layer; used if there
            is no plan.

    Raises:
        PagesimError: the heads cannot be divided by ``tp``, or layers keep a state and there is no plan.
    """
    token_bytes = model.kv_bytes_per_token(kv_dtype, tp)
    token_bytes += token_bytes * draft_layers // model.layers
    if plan is None and any(isinstance(layer, StateLayer) for layer in model.cache_layers):
        raise PagesimError(
            f"layers of {model.name} keep a state, which is no number of bytes a token; choose policy "
            "vllm-v1, which plans blocks for them"
        )
    size, taken = block_size, block_size * token_bytes
    if page_bytes is not None:
        size, taken = paged_block(model, page_bytes, kv_dtype=kv_dtype, tp=tp)
    elif plan is not None:
        size, taken = plan.block_size, plan.bytes_per_block
    return KVBlock(size, taken, PAPER_BLOCK * token_bytes if sizing == "paper" and plan is None else taken)


def cache_of(num_blocks: int, block: KVBlock, *, tp: int, has_swap: bool, plan: Plan | None) -> Capacity:
    """Return a cache of this many blocks, regardless of what else the GPU's memory holds.

    Args:
        num_blocks: blocks in GPU memory.
        block: size of each block.
        tp: GPUs that share the model.
        has_swap: whether each GPU has `SWAP_GIB` of swap space.
        plan: block plan, if layers differ in what they keep.
    """
    cpu_blocks = block.fitting(SWAP_GIB * GIB) if has_swap else 0
    held = None if plan is None else plan.holding(num_blocks)
    return Capacity(num_blocks, cpu_blocks, block.tokens, block.bytes, 0, 0, tp, held)
