"""Block plan: how vLLM 0.33.0 divides a model's KV cache into blocks, and how many a request can hold."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from pagesim.errors import PagesimError
from pagesim.models.layers import (
    ChunkLayer,
    Layer,
    RingLayer,
    StateLayer,
    WindowLayer,
)
from pagesim.sizing.block_pages import StateMode, most_blocks


@dataclass(frozen=True, slots=True)
class BlockGroup:
    """A KV cache group: layers that share block tables; a block of the group is one page in each layer.

    Attributes:
        rule: layer whose rule decides which blocks are kept; full attention for all layers if the hybrid
            manager is off.
        places: indices of the layers in the model, from 0.
        layers: the layers at those indices.
        block_size: tokens per block.
        pages: bytes of a block in each layer, including padding.
        real_pages: bytes of each page that the layer fills.
        most_blocks: most blocks that one request of ``max_model_len`` tokens can hold.
        checkpoint: tokens at whose multiples a prefill chunk may save a state, in an additional block; None
            if it cannot.
    """

    rule: Layer
    places: tuple[int, ...]
    layers: tuple[Layer, ...]
    block_size: int
    pages: tuple[int, ...]
    real_pages: tuple[int, ...]
    most_blocks: int
    checkpoint: int | None = None

    @property
    def kind(self) -> str:
        """Kind of the layer ``rule``."""
        return self.rule.kind

    @property
    def page_bytes(self) -> int:
        """Bytes of a block in the first layer, including padding."""
        return self.pages[0]

    @property
    def bytes(self) -> int:
        """Bytes of a block in all layers, including padding."""
        return sum(self.pages)

    def bytes_in(self, places: Collection[int]) -> int:
        """Return the bytes of a block in those of its layers that have these indices in the model."""
        return sum(page for place, page in zip(self.places, self.pages, strict=True) if place in places)

    @property
    def real_bytes(self) -> int:
        """Bytes of a block that the layers fill."""
        return sum(self.real_pages)

    @property
    def filled_bytes(self) -> int:
        """Filled bytes of a block, rounded down to whole bytes per token; for states, all filled bytes."""
        is_state = isinstance(self.rule, StateLayer | RingLayer)
        return self.real_bytes if is_state else self.real_bytes // self.block_size * self.block_size


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """The blocks of a cache, all of equal size, and the KV cache groups that allocate them.

    Attributes:
        groups: KV cache groups in vLLM's order; a request allocates blocks for each of them.
        num_blocks: blocks, including the null block.
        bytes_per_block: bytes of every block on each GPU, whichever group allocates it; in a pipeline, the
            sum over one GPU of each stage.
        scheduler_block: granularity of prefix hits, in tokens.
        hash_block: tokens per block hash.
        state_mode: ``align`` keeps states at block boundaries, so that prefixes can be matched; ``none``
            keeps one state per sequence.
        max_model_len: tokens of the longest request.
        in_flight_tokens: most tokens that are scheduled but not yet computed.
        host_copies: GPUs whose copies of a block a host tier stores: see `host_copies`.
        drafters: number of drafter layers in ``groups``; they come last in the model.
        drafts: additional states per request in each group of states, one after each draft token.
        retained: tokens kept before a window, for MTP modules that read behind.
        stage_bytes: bytes of a block on a GPU of each pipeline stage; they sum to ``bytes_per_block``.
    """

    groups: tuple[BlockGroup, ...]
    num_blocks: int
    bytes_per_block: int
    scheduler_block: int
    hash_block: int
    state_mode: StateMode
    max_model_len: int
    in_flight_tokens: int
    host_copies: int = 1
    drafters: int = 0
    drafts: int = 0
    retained: int = 0

    def drafting(self, group: BlockGroup) -> int:
        """Return how many layers of a group belong to the drafter."""
        first = sum(len(each.places) for each in self.groups) - self.drafters
        return sum(place >= first for place in group.places)

    stage_bytes: tuple[int, ...] = ()

    @property
    def block_size(self) -> int:
        """Tokens of the smallest block among groups whose layers do not fix their own block size."""
        sizes = [
            group.block_size
            for group in self.groups
            if not (isinstance(group.rule, WindowLayer | RingLayer) and group.rule.block_size)
        ]
        return min(sizes)

    @property
    def most_blocks(self) -> int:
        """Most blocks that one request of ``max_model_len`` tokens can hold in all groups."""
        return sum(group.most_blocks for group in self.groups)

    @property
    def least_blocks(self) -> int:
        """Least blocks that a request holds when the last of its ``max_model_len`` tokens is sampled."""
        drafts = self.drafts * sum(isinstance(group.rule, StateLayer) for group in self.groups)
        return max(1, drafts + sum(_least_blocks(group, self.max_model_len - 1) for group in self.groups))

    @property
    def starts(self) -> bool:
        """Whether the engine starts: one request of ``max_model_len`` tokens fits next to the null block."""
        return self.most_blocks < self.num_blocks

    @property
    def concurrency(self) -> float:
        """The "Maximum concurrency for ``max_model_len`` tokens per request", counting the null block."""
        return self.num_blocks / self.most_blocks

    @property
    def tokens(self) -> int:
        """The "GPU KV cache size" in vLLM's log, in tokens of requests of ``max_model_len``."""
        return int(self.concurrency * self.max_model_len)

    @property
    def padding(self) -> float:
        """Fraction of a block that no layer fills, averaged over the groups."""
        filled = sum(group.real_bytes for group in self.groups)
        return 1 - filled / (len(self.groups) * self.bytes_per_block)

    def padding_of(self, group: BlockGroup) -> float:
        """Return the fraction of a block that no layer of the group fills."""
        return 1 - group.real_bytes / self.bytes_per_block

    @property
    def longest(self) -> int:
        """Longest request in tokens that fits next to the null block, up to ``max_model_len``; 0 if none."""

        def takes(tokens: int) -> int:
            return sum(
                most_blocks(
                    *(group.rule, group.block_size, tokens, self.in_flight_tokens, self.state_mode),
                    drafts=self.drafts,
                    retained=self.retained,
                )
                + (group.checkpoint is not None)
                for group in self.groups
            )

        lengths = range(1, self.max_model_len + 1)
        return bisect_right(lengths, self.num_blocks - 1, key=takes)

    def blocks_in(self, cache_bytes: Sequence[int]) -> int:
        """Return how many blocks fit, given the bytes left for the cache on each stage's GPUs."""
        return min(left // size for left, size in zip(cache_bytes, self.stage_bytes, strict=True) if size)

    def holding(self, num_blocks: int) -> BlockPlan:
        """Return the plan with this many blocks."""
        return replace(self, num_blocks=num_blocks)

    def check_retention(self, interval: int) -> None:
        """Refuse a ``prefix_cache_retention_interval`` with which the engine does not start.

        Raises:
            PagesimError: it is not a multiple of ``scheduler_block``, or no group has a window or a state.
        """
        if interval <= 0:
            return
        if all(group.kind not in ("window", "state") for group in self.groups):
            raise PagesimError(
                f"prefix_cache_retention_interval is {interval}, and is for layers with a window or a state; "
                "there are none: leave it out"
            )
        if interval % self.scheduler_block:
            raise PagesimError(
                f"prefix_cache_retention_interval is {interval}; it must be a multiple of the "
                f"{self.scheduler_block} tokens of a block, 0, or -1"
            )

    def beyond_graphs(self, max_num_seqs: int) -> str:
        """Return why the engine cannot start with this many sequences and full CUDA graphs; empty if it can.

        Source: ``resolve_cudagraph_mode_and_sizes`` (config/compilation.py).
        """
        states = any(isinstance(layer, StateLayer) for group in self.groups for layer in group.layers)
        if not states or max_num_seqs <= self.num_blocks:
            return ""
        return (
            f"max_num_seqs is {max_num_seqs}, more than the {self.num_blocks} KV blocks; beside recurrent "
            "states vLLM captures full CUDA graphs only if each sequence can have a block, and does not "
            f"start so: lower max_num_seqs to at most {self.num_blocks}"
        )


def _least_blocks(group: BlockGroup, computed: int) -> int:
    """Return the blocks of a group that later tokens still need after this many computed ones."""
    match group.rule:
        case WindowLayer(window=window):
            return -(-min(window - 1, computed) // group.block_size)
        case ChunkLayer(chunk=chunk):
            return -(-(computed % chunk) // group.block_size)
        case StateLayer() | RingLayer():
            return 1
        case _:
            return -(-computed // group.block_size)
