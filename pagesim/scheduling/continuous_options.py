"""Options of iteration-level scheduling: of Orca, and of the paper's vLLM."""

from __future__ import annotations

from pydantic import Field

from pagesim.scheduling.options import MOST, LimitedOptions, PreemptingOptions


class OrcaOptions(LimitedOptions):
    """Options of Orca."""

    max_num_batched_tokens: int = Field(
        2560,
        ge=1,
        le=MOST,
        description="Maximum number of tokens per iteration: one per running sequence, and the prompts "
        "that join.",
    )


class SospOptions(PreemptingOptions, OrcaOptions):
    """Options of the paper's vLLM."""

    max_num_seqs: int = Field(2048, ge=1, le=MOST, description="Maximum number of running requests.")
