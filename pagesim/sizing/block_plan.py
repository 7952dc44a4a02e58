"""Block plan: the KV blocks that vLLM 0.33.0 makes of a model's layers, and how many a request can take."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from pagesim.errors import CapacityError, PagesimError
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
    """Layers that share block tables: a block of the group is a page in each of them.

    Attributes:
        rule: the layer by whose rule blocks are kept; full attention, whatever the layers, where the hybrid
            manager is off.
        places: of its layers in the model, from 0.
        layers: the layers there.
        block_size: tokens of a block.
        pages: bytes of a block in each layer, padding included.
        real_pages: bytes of them that the layers fill.
        most_blocks: blocks that one request of ``max_model_len`` tokens takes at most.
        checkpoint: a chunk of a prompt may leave a state behind at a multiple of so many tokens, in a block
            more; None where it cannot.
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
        """The kind of ``rule``."""
        return self.rule.kind

    @property
    def page_bytes(self) -> int:
        """Bytes of a block in the first layer, padding included."""
        return self.pages[0]

    @property
    def bytes(self) -> int:
        """Bytes of a block in all layers, padded pages included."""
        return sum(self.pages)

    def bytes_in(self, places: Collection[int]) -> int:
        """Return the bytes of a block in those of its layers that have these places in the model."""
        return sum(page for place, page in zip(self.places, self.pages, strict=True) if place in places)

    @property
    def real_bytes(self) -> int:
        """Bytes of a block that the layers fill."""
        return sum(self.real_pages)

    @property
    def filled_bytes(self) -> int:
        """Bytes of a block that its tokens fill alike: pages are aligned in some models; of a state, all."""
        is_state = isinstance(self.rule, StateLayer | RingLayer)
        return self.real_bytes if is_state else self.real_bytes // self.block_size * self.block_size


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """The blocks of a cache, of equal size, and the groups of layers that take them.

    Attributes:
        groups: in vLLM's order; a request takes blocks for each of them.
        num_blocks: blocks, the null block included.
        bytes_per_block: of every block on each GPU, whatever group takes it; in a pipeline on a GPU of each
            stage together.
        scheduler_block: tokens of which what is found in the cache is a multiple.
        hash_block: tokens of a hash.
        state_mode: ``align`` keeps states at the ends of blocks, so that prompts can be found by them;
            ``none`` keeps one a sequence.
        max_model_len: tokens of the longest request.
        in_flight_tokens: tokens that are scheduled and not yet computed at most.
        host_copies: GPUs of which a tier on the host keeps a block: see `host_copies`.
        drafters: layers of ``groups`` that draft, the last ones of the model.
        drafts: states that a request keeps in each group of states besides, one after each draft.
        retained: tokens before a window that are kept, for MTP modules that read behind.
        stage_bytes: of a block on each GPU of each stage of a pipeline: they sum to ``bytes_per_block``.
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
        """Return how many layers of a group draft."""
        first = sum(len(each.places) for each in self.groups) - self.drafters
        return sum(place >= first for place in group.places)

    stage_bytes: tuple[int, ...] = ()

    @property
    def block_size(self) -> int:
        """Tokens of the smallest block of a group whose layers have no block of their own."""
        sizes = [
            group.block_size
            for group in self.groups
            if not (isinstance(group.rule, WindowLayer | RingLayer) and group.rule.block_size)
        ]
        return min(sizes)

    @property
    def most_blocks(self) -> int:
        """Blocks that one request of ``max_model_len`` tokens takes at most, in all groups."""
        return sum(group.most_blocks for group in self.groups)

    @property
    def least_blocks(self) -> int:
        """Blocks that a request holds at least when its last of ``max_model_len`` tokens is sampled."""
        drafts = self.drafts * sum(isinstance(group.rule, StateLayer) for group in self.groups)
        return max(1, drafts + sum(_least_blocks(group, self.max_model_len - 1) for group in self.groups))

    @property
    def starts(self) -> bool:
        """Whether the engine starts: one such request fits beside the null block."""
        return self.most_blocks < self.num_blocks

    @property
    def concurrency(self) -> float:
        """The "Maximum concurrency for ``max_model_len`` tokens per request", the null block counted."""
        return self.num_blocks / self.most_blocks

    @property
    def tokens(self) -> int:
        """The "GPU KV cache size", in tokens of such requests."""
        return int(self.concurrency * self.max_model_len)

    @property
    def padding(self) -> float:
        """The share of a block that no layer fills, mean over the groups."""
        filled = sum(group.real_bytes for group in self.groups)
        return 1 - filled / (len(self.groups) * self.bytes_per_block)

    def padding_of(self, group: BlockGroup) -> float:
        """Return the share of a block that no layer of a group fills."""
        return 1 - group.real_bytes / self.bytes_per_block

    @property
    def longest(self) -> int:
        """Tokens of the longest request that fits beside the null block, at most ``max_model_len``; or 0."""

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
        """Return how many blocks fit, by the bytes that are left for the cache on the GPUs of each stage."""
        return min(left // size for left, size in zip(cache_bytes, self.stage_bytes, strict=True) if size)

    def holding(self, num_blocks: int) -> BlockPlan:
        """Return the plan of a cache of so many blocks."""
        return replace(self, num_blocks=num_blocks)

    def check_retention(self, interval: int) -> None:
        """Refuse a ``prefix_cache_retention_interval`` that the engine does not start with.

        Raises:
            PagesimError: it is no multiple of ``scheduler_block``, or no group has anything to thin out.
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
        """Return why the engine does not start with so many sequences and full CUDA graphs; empty if it does.

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

    def check_start(self) -> None:
        """Refuse, as the engine does when it starts, a cache that does not hold one longest request.

        Raises:
            CapacityError: it does not; the sentence names the longest that it holds.
        """
        if self.starts:
            return
        longest = self.longest
        remedy = f"lower max_model_len to at most {longest}, or give" if longest else "give"
        raise CapacityError(
            f"max_model_len is {self.max_model_len} tokens, and one such request takes up to "
            f"{self.most_blocks} KV blocks of {self.num_blocks}, one of them the null block: {remedy} the "
            "cache more memory"
        )


def _least_blocks(group: BlockGroup, computed: int) -> int:
    """Return the blocks of a group that what comes after so many tokens needs."""
    match group.rule:
        case WindowLayer(window=window):
            return -(-min(window - 1, computed) // group.block_size)
        case ChunkLayer(chunk=chunk):
            return -(-(computed % chunk) // group.block_size)
        case StateLayer() | RingLayer():
            return 1
        case _:
            return -(-computed // group.block_size)
