"""Options: what a user may choose for a scheduler, and what an engine knows when it starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field

MOST = 1_000_000_000
"""Larger numbers of tokens or requests are considered mistakes."""

Preemption = Literal["default", "recompute", "swap", "auto"]

Prices = Callable[[int, int, int, int], tuple[int, int]]
"""Returns the costs of swapping and of recomputing a sequence, in ticks, given its tokens, its blocks, and
the sequences and context tokens that run together with it."""


@runtime_checkable
class ReturnPrices(Protocol):
    """Predicts the costs of loading a prefix from a tier and of recomputing it."""

    def returning(
        self, tokens: int, history: int, blocks: Sequence[int], sequences: int, context: int
    ) -> tuple[int, int]:
        """Return the ticks of loading tokens that follow a history, and of computing them."""


class SchedulerOptions(BaseModel):
    """The options of a scheduler; each field only needs a default, bounds and a description.

    A subclass adds fields. A field's name is also the flag, the keyword and the name in a scenario file.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class LimitedOptions(SchedulerOptions):
    """Options shared by all iteration-level schedulers."""

    max_num_seqs: int = Field(256, ge=1, le=MOST, description="Maximum number of running requests.")
    watermark: float = Field(
        0.0, ge=0, lt=1, description="Fraction of the blocks that an admission must leave free."
    )


class PreemptingOptions(LimitedOptions):
    """Options of schedulers that preempt by recomputation or swapping."""

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
        gpu: the GPU's name; empty if unknown.
        memory_bytes: memory of one GPU in bytes; 0 if unknown.
        max_model_len: maximum length of a request in tokens.
        tp: tensor-parallel size in GPUs.
        listed_mib: memory of one GPU as its driver lists it, in MiB; 0 if only ``memory_bytes`` is known.
        model: the model's name.
        latent: whether the model caches latent vectors (MLA).
        mtp_modules: MTP modules of its checkpoint that draft tokens; 0 if unknown.
        has_states: whether some of its layers keep a recurrent state.
        images: family, layers and width of its vision tower if images are served; else None.
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
    images: tuple[str, int, int] | None = None
