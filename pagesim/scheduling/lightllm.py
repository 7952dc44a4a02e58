"""LightLLM's admission: a request starts if the tokens of all requests fit at the predicted peak.

The loop is `ContinuousBatching`'s rather than LightLLM's own. See docs/explanation/lightllm.md for the rules.
"""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field

from pagesim.errors import PagesimError
from pagesim.kvcache import BlockManager
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.continuous import ContinuousBatching
from pagesim.scheduling.continuous_options import OrcaOptions
from pagesim.scheduling.failure_modes import no_room
from pagesim.scheduling.options import MOST, Prices, SchedulerOptions
from pagesim.scheduling.request import EngineRequest

ADDED_OUTPUT = 6
"""Tokens by which the expected length of each request exceeds what it may reach."""


def peak(futures: Iterable[tuple[int, int]]) -> int:
    """Return the peak number of tokens held if all requests generate in lockstep up to their limits.

    The peak is reached when some request ends, since what is held only grows until a request leaves.

    Source: LightLLM, ``ChunkedPrefillQueue._can_add_new_req``.

    Args:
        futures: for each request, the tokens that it will still generate and those that it holds.
    """
    most = held = 0
    for place, (to_come, own) in enumerate(sorted(futures, reverse=True), 1):
        held += own
        most = max(most, held + place * to_come)
    return most


class LightllmOptions(SchedulerOptions):
    """Options of LightLLM, under its own names."""

    running_max_req_size: int = Field(1000, ge=1, le=MOST, description="Maximum number of running requests.")
    batch_max_tokens: int | None = Field(
        None,
        ge=1,
        le=MOST,
        description="Maximum number of tokens per iteration: one per running request, and the prompts "
        "that join. Defaults to 8192, or to the longest request if that is more.",
    )
    max_new_tokens: int | None = Field(
        None,
        ge=1,
        le=MOST,
        description="Minimum number of output tokens that a request asks for; a stop token ends it earlier.",
    )


class Lightllm(ContinuousBatching):
    """LightLLM's admission within `ContinuousBatching`'s loop.

    Each request is assumed to generate as much as it asks for, as when LightLLM considers itself busy. It
    always does under its default ``router_token_ratio``, 0. No request is therefore ever preempted.

    Args:
        memory: empty block manager.
        options: limits, under LightLLM's own names.
        max_model_len: maximum length of a request in tokens.
        prices: not used.
    """

    __slots__ = ("_max_new_tokens",)

    Options = LightllmOptions
    budget_option = "batch_max_tokens"
    samples = "one"
    reservations = ("on-demand",)
    allocators = ("paged",)
    takes_plugins = False
    memory_reason = "it takes memory token by token"
    has_beams = False
    serves_hybrids = False

    def __init__(
        self,
        memory: BlockManager,
        options: LightllmOptions,
        *,
        max_model_len: int,
        prices: Prices | None = None,
    ) -> None:
        if memory.block_size != 1:
            raise PagesimError(
                f"block_size is {memory.block_size}; under scheduler lightllm it must be 1: it counts tokens"
            )
        limits = OrcaOptions(
            max_num_seqs=options.running_max_req_size,
            max_num_batched_tokens=options.batch_max_tokens or max(8192, max_model_len),
            watermark=0.0,
        )
        super().__init__(memory, limits, max_model_len=max_model_len, prices=prices)
        self._max_new_tokens = options.max_new_tokens or 0

    def refusal(self, prompt_tokens: int, output_tokens: int, samples: int) -> str:
        refusal = super().refusal(prompt_tokens, output_tokens, samples)
        longest = prompt_tokens + self._asked(prompt_tokens, output_tokens)
        return refusal or ("" if longest + ADDED_OUTPUT < self.memory.num_blocks else no_room(self.memory))

    def plan(self, now: int) -> Batch:
        batch = super().plan(now)
        # The predicted peak changes as running requests approach their ends while the head does not.
        self.must_replan = self.must_replan or self.queue.waiting > 0
        return batch

    def has_room(self, request: EngineRequest) -> bool:
        futures = [self._future(each, self.memory.length(each)) for each in self.running.values()]
        futures.append(self._future(request, request.length))
        return peak(futures) < self.memory.num_blocks

    def _asked(self, prompt: int, output: int) -> int:
        return max(output, min(self._max_new_tokens, self.max_model_len - prompt))

    def _future(self, request: EngineRequest, length: int) -> tuple[int, int]:
        """Return the tokens that a request of ``length`` tokens will still generate, and those it holds."""
        own = length + 1
        asked = request.prompt + self._asked(request.prompt, request.output)
        return max(0, asked - own) + ADDED_OUTPUT, own
