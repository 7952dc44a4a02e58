"""Other simulators of LLM serving that the same load can be replayed through: an adapter a file.

An adapter writes a load in its simulator's format and says how that one is called. It knows what is
documented of the command line, and nothing of the inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Load:
    """Requests, and the memory and limits of the system that serves them.

    Attributes:
        arrival_s: of each request, ``[N]``, in order.
        prompt_tokens, output_tokens: likewise.
        num_blocks: of the KV cache.
        block_size: tokens a block.
        max_num_seqs: sequences that run at once at most.
        max_num_batched_tokens: of an iteration at most.
    """

    arrival_s: npt.NDArray[np.float64]
    prompt_tokens: npt.NDArray[np.int64]
    output_tokens: npt.NDArray[np.int64]
    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int

    @property
    def longest(self) -> int:
        """Tokens of the longest request, prompt and output."""
        return int((self.prompt_tokens + self.output_tokens).max())


@dataclass(frozen=True)
class Call:
    """How a simulator is called.

    Attributes:
        command: the program and its arguments.
        folder: where it runs.
    """

    command: Sequence[str]
    folder: Path


class Peer(Protocol):
    """An installed simulator."""

    name: str

    def prepare(self, load: Load, folder: Path) -> Call:
        """Write a load into a folder in this simulator's format; return how it is replayed from there."""

    def finished(self, folder: Path) -> int | None:
        """Return how many requests were over in the end, as it wrote there; None if it says not."""
