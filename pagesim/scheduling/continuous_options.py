"""Options of iteration-level scheduling: of Orca, and of the paper's vLLM."""

from __future__ import annotations

from pydantic import Field

from pagesim.scheduling.options import MOST, LimitedOptions, PreemptingOptions


class OrcaOptions(LimitedOptions):
    """See `Orca`."""

    max_num_batched_tokens: int = Field(
        2560, ge=1, le=MOST, description="Running sequences plus prompts that join an iteration at most."
    )


class SospOptions(PreemptingOptions):
    """See `VllmSosp`."""

    max_num_seqs: int = Field(2048, ge=1, le=MOST, description="Running requests at most.")
    max_num_batched_tokens: int = Field(
        2560, ge=1, le=MOST, description="Running sequences plus prompts that join an iteration at most."
    )
