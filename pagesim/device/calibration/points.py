"""Points: what a calibration measures of a model, and what sample each becomes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pagesim.costs.profiles import Sample

ITERATION = "iteration"
"""A whole iteration that decodes, as a live run carries it out: what is beyond its parts is overhead."""

LAUNCH = "launch"
"""Launching an iteration's kernels from the host, without waiting for them; ``size`` says of which kind."""

KINDS = ("decode", "prompt", "mixed")
"""Kinds of iterations whose launching is timed; a `LAUNCH` point's ``size`` is the place here."""


class Point(NamedTuple):
    """One thing to measure.

    Attributes:
        term: one of `pagesim.costs.profiles.TERMS`, or one of the words above.
        block_size: tokens a block; 0 where it plays no part.
        size: as in `Sample`: tokens, sequences or blocks.
        sequences: over which new tokens are spread (``prefill``).
        context: tokens of each sequence, new ones included (``decode``, ``prefill``).
    """

    term: str
    block_size: int
    size: int
    sequences: int = 1
    context: int = 0

    @property
    def tokens(self) -> int:
        """Slots of the cache that it needs."""
        count = self.size if self.term == "decode" else self.sequences
        return count * (-(-self.context // self.block_size) * self.block_size) if self.block_size else 0

    def sample(self, seconds: float) -> Sample:
        """Return the sample of a term that so many seconds are."""
        context = 0
        if self.term == "decode":
            context = self.size * self.context
        elif self.term == "prefill":
            new = self.size // self.sequences
            context = self.sequences * (new * (self.context - new) + new * (new + 1) // 2)
        return Sample(self.term, self.block_size, self.size, context, seconds)

    def __str__(self) -> str:
        """Return it in a few words, for a progress bar."""
        parts = [self.term, str(self.size)]
        if self.context:
            parts.append(f"context {self.context}")
        if self.block_size:
            parts.append(f"block {self.block_size}")
        return " ".join(parts)


@dataclass(frozen=True)
class Grid:
    """The sizes that are measured.

    Args:
        tokens: of linear layers and cache writes.
        sequences: of the LM head.
        batches: of decode attention.
        contexts: of each of its sequences.
        prompts: (prompts, tokens of each).
        chunks: (new tokens, context) of a prompt that goes on.
        blocks: of copies and swaps.
        iterations: sequences of whole iterations.
        most_context: tokens of context at most in a batch that decodes.
    """

    tokens: tuple[int, ...]
    sequences: tuple[int, ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    prompts: tuple[tuple[int, int], ...]
    chunks: tuple[tuple[int, int], ...]
    blocks: tuple[int, ...]
    iterations: tuple[int, ...]
    most_context: int = 1 << 30

    def points(self, block_sizes: Sequence[int], *, longest: int, on_gpu: bool) -> Iterator[Point]:
        """Yield the points, those of one block size after another.

        Args:
            block_sizes: of the cache.
            longest: tokens of the longest sequence that the model takes.
            on_gpu: whether the host's launches and the device's work go on side by side.
        """
        yield from (Point("linear", 0, size) for size in self.tokens)
        yield from (Point("head", 0, size) for size in self.sequences)
        first = block_sizes[0]
        for block_size in block_sizes:
            if block_size == first:
                # A cache write goes slot by slot: the block size plays no part.
                yield from (Point("write", 0, size) for size in self.tokens)
            for batch in self.batches:
                for context in self.contexts:
                    if context <= longest and batch * context <= self.most_context:
                        yield Point("decode", block_size, batch, batch, context)
            for count, new in self.prompts:
                if new <= longest:
                    yield Point("prefill", block_size, count * new, count, new)
            for new, context in self.chunks:
                if context <= longest:
                    yield Point("prefill", block_size, new, 1, context)
            for term in ("copy", "swap_out", "swap_in"):
                yield from (Point(term, block_size, count) for count in self.blocks)
            if block_size == first:
                if on_gpu:
                    yield from (Point(LAUNCH, block_size, kind) for kind in range(len(KINDS)))
                yield from (Point(ITERATION, block_size, batch) for batch in self.iterations)

    def quick(self) -> Grid:
        """Return every second size of each list, and its last."""
        fewer: dict[str, Any] = {
            name: (*sizes[:-1:2], sizes[-1]) for name, sizes in vars(self).items() if isinstance(sizes, tuple)
        }
        return replace(self, **fewer)


_GPU = Grid(
    tokens=(
        1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896,
        1024, 1280, 1536, 1792, 2048, 2560, 3072, 4096,
    ),
    sequences=(1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256),
    batches=(1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256),
    contexts=(32, 128, 256, 512, 768, 1024, 1536, 2048, 4096, 8192),
    prompts=(
        (1, 16), (1, 32), (1, 64), (1, 128), (1, 192), (1, 256), (1, 384), (1, 512), (1, 768), (1, 1024),
        (1, 1536), (1, 2048), (1, 4096), (2, 128), (2, 512), (2, 1024), (4, 64), (4, 256), (4, 512),
        (8, 32), (8, 128), (8, 256), (16, 64), (16, 128),
    ),
    chunks=(
        (16, 512), (64, 512), (64, 2048), (256, 512), (256, 1024), (256, 2048), (512, 2048), (1024, 2048),
    ),
    blocks=(1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256),
    iterations=(1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256),
)  # fmt: skip

_CPU = Grid(
    tokens=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
    sequences=(1, 2, 4, 8, 16, 32, 64),
    batches=(1, 4, 16, 64),
    contexts=(16, 64, 256, 1024),
    prompts=((1, 4), (1, 16), (1, 64), (1, 256), (1, 1024), (2, 64), (4, 128), (8, 16)),
    chunks=((16, 128), (64, 256), (256, 1024)),
    blocks=(1, 2, 4, 8, 16, 64),
    iterations=(1, 2, 4, 8, 16, 32, 64),
    most_context=20_000,
)
"""Few enough for a minute: what they say is of no GPU."""


def grid_for(device: str, *, quick: bool) -> Grid:
    """Return the sizes that are measured on a device.

    Args:
        device: ``cpu`` or ``cuda``.
        quick: fewer of them on a GPU; on a CPU there are few in any case.
    """
    if device == "cpu":
        return _CPU
    return _GPU.quick() if quick else _GPU
