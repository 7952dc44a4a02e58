"""What one request holds in a KV cache: blocks and bytes, by ledger entry."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pagesim.accounting.ledger import GROUP_ENTRIES
from pagesim.api import run
from pagesim.errors import PagesimError
from pagesim.models import model
from pagesim.results.result import Result
from pagesim.setup.engine_config import EngineConfig
from pagesim.setup.system import System
from pagesim.workloads.trace import Trace

ENTRIES = GROUP_ENTRIES
"""Ledger entries that sequences hold."""

FREE = ("external", "cached", "free")
"""Ledger entries that no sequence holds."""

ANY_COST = "affine:1,0,0"
"""A cost model for runs in which all requests arrive at the start, so that durations do not matter."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What a request holds while it runs alone.

    Args:
        tokens: tokens in the cache while the last token is decoded, including the current one.
        blocks: blocks in all KV cache groups at that time.
        bytes: bytes on each GPU at that time, by ledger entry (`ENTRIES`).
        most_blocks: maximum number of blocks at any time, such as during prefill.
    """

    tokens: int
    blocks: int
    bytes: dict[str, int]
    most_blocks: int

    @property
    def all_bytes(self) -> int:
        """Total bytes on each GPU."""
        return sum(self.bytes.values())


def holding(system: System, tokens: int, *, output: int = 128) -> Holding:
    """Replay a single request, and return what it holds.

    Args:
        system: system under policy ``vllm-v1``; its cost model is ignored.
        tokens: prompt and output tokens of the request together.
        output: output tokens among them.

    Raises:
        PagesimError: an option is invalid, the prompt is empty, or the request is rejected.
    """
    if tokens <= output:
        raise PagesimError(f"tokens is {tokens}; it must be above the {output} of the output")
    request = Trace(
        arrival_s=np.zeros(1),
        prompt_tokens=np.array([tokens - output]),
        output_tokens=np.array([output]),
    )
    result = run(system.model_copy(update={"cost": ANY_COST}), request, steps="iterations")
    if not result.summary["requests"]["finished"]:
        raise PagesimError(
            f"tokens is {tokens}; such a request is longer than max_model_len or than the cache: raise these"
        )
    steps = result.steps
    assert steps is not None
    unit = slot_bytes(result)
    last = steps[steps["num_batched_tokens"] > 0].iloc[-1]
    return Holding(
        tokens=int(last["sum_context_tokens"]),
        blocks=int(last["num_physical_blocks"]),
        bytes={name: int(last[name]) * unit for name in ENTRIES if name in steps},
        most_blocks=int(steps["num_physical_blocks"].max()),
    )


def slot_bytes(result: Result) -> int:
    """Return the bytes on each GPU per unit of a run's ledger, which is a byte or a token slot."""
    if "page_bytes" in result.summary["memory"]:
        return 1
    system = result.scenario
    return model(system.model).kv_bytes_per_token(EngineConfig(system).kv_dtype, system.tensor_parallel_size)
