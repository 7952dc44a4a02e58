"""Options: what a user may choose of a scheduler, and what is known of its memory when one is chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field

MOST = 1_000_000_000
"""More tokens or requests than this are taken for a mistake."""

Preemption = Literal["default", "recompute", "swap", "auto"]

Prices = Callable[[int, int, int, int], tuple[int, int]]
"""Tells what swapping a sequence and what recomputing it costs, in ticks, from its tokens and blocks and from
the sequences and the context tokens that run beside it."""


@runtime_checkable
class ReturnPrices(Protocol):
    """Tells what it costs to load a prefix from a tier, and to compute it again."""

    def returning(
        self, tokens: int, history: int, blocks: Sequence[int], sequences: int, context: int
    ) -> tuple[int, int]:
        """Return the ticks of loading tokens behind a history, and of computing them."""


class SchedulerOptions(BaseModel):
    """The options of a scheduler. Each field has a default, bounds and a description, and that is all.

    A subclass adds fields; the field's name is the flag, the keyword and the name in a scenario file.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class LimitedOptions(SchedulerOptions):
    """What every scheduler of single iterations has."""

    max_num_seqs: int = Field(256, ge=1, le=MOST, description="Maximum number of running requests.")
    watermark: float = Field(
        0.0, ge=0, lt=1, description="Fraction of the blocks that an admission must leave free."
    )


class PreemptingOptions(LimitedOptions):
    """What schedulers have that preempt by recomputing or by swapping."""

    watermark: float = Field(
        0.01, ge=0, lt=1, description="Fraction of the blocks that an admission must leave free."
    )
    preemption: Preemption = Field(
        "default",
        description="Preemption mode: default recomputes a single sample and swaps a request of "
        "several; auto takes the cheaper.",
    )


class Machine(NamedTuple):
    """What an engine knows when it starts, besides its options.

    Attributes:
        gpu: the GPU's name; empty for one that is not known.
        memory_bytes: of one GPU; 0 where it is not known.
        max_model_len: tokens of the longest request.
        tp: GPUs that share the model.
        listed_mib: memory of one GPU as its driver lists it, in MiB; 0 where only ``memory_bytes`` is known.
        model: the model's name.
        latent: whether it caches latent vectors (MLA).
        mtp_modules: MTP modules of its checkpoint that draft; 0 where that is not known.
        has_states: whether layers of it keep a recurrent state.
    """

    gpu: str
    memory_bytes: int
    max_model_len: int
    tp: int = 1
    listed_mib: int = 0
    model: str = ""
    latent: bool = False
    mtp_modules: int = 0
    has_states: bool = False
