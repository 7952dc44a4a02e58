"""Options of vLLM before 0.3, and differences between its releases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from pagesim.scheduling.options import MOST, PreemptingOptions


@dataclass(frozen=True, slots=True)
class V0Release:
    """Differences between the releases.

    Attributes:
        pads: whether a batch of prompts counts as padded to its longest, and the padding is limited.
        gives_up: whether a prompt that can never fit is ignored instead of blocking the queue forever.
        batched_tokens: default of max_num_batched_tokens, unless max_model_len is larger.
    """

    pads: bool
    gives_up: bool
    batched_tokens: int


RELEASES = {
    "0.1.7": V0Release(pads=False, gives_up=False, batched_tokens=2560),
    "0.2.0": V0Release(pads=False, gives_up=False, batched_tokens=2048),
    "0.2.7": V0Release(pads=True, gives_up=True, batched_tokens=2048),
}


class VllmV0Options(PreemptingOptions):
    """Options of vLLM before 0.3."""

    vllm_version: Literal["0.1.7", "0.2.0", "0.2.7"] = Field(
        "0.2.7", description="Release whose scheduler is simulated."
    )
    max_num_batched_tokens: int | None = Field(
        None,
        ge=1,
        le=MOST,
        description="Maximum number of tokens in a batch of prompts. Defaults to the release's.",
    )
    max_paddings: int = Field(
        256, ge=0, le=MOST, description="Maximum padding of a batch of prompts, in releases that pad."
    )
