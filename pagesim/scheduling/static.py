"""Request-level scheduling: FasterTransformer's static batches, as the PagedAttention artifact runs them."""

from __future__ import annotations

from pydantic import Field

from pagesim.errors import PagesimError
from pagesim.kvcache import BlockManager, SequenceGroup
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.failure_modes import no_room
from pagesim.scheduling.growth import keep_running
from pagesim.scheduling.options import MOST, Prices, SchedulerOptions
from pagesim.scheduling.queue import WaitingQueue
from pagesim.scheduling.request import EngineRequest

SHORT_OF = 8
"""Tokens short of max_model_len: the artifact's FasterTransformer stops at 2040 of 2048 tokens."""


class StaticOptions(SchedulerOptions):
    """Options of static batching."""

    max_batch: int | None = Field(
        None,
        ge=1,
        le=MOST,
        description="Maximum number of requests in a static batch. Defaults to what the cache holds.",
    )


class StaticBatching(Scheduler):
    """Static batching of whole requests.

    When nothing runs, the longest possible prefix of the queue forms a batch, which no request joins or
    leaves. Inputs are padded to the longest, every row generates as many tokens as the longest output, and
    all finish together. Each row reserves the padded length, so memory must reserve exactly what is
    requested.

    Args:
        memory: empty block manager that reserves prompt + output.
        options: engine options; ``max_batch`` is the measured capacity of the engine, an input, not a result.
        max_model_len: limit on the longest input plus the longest output of a batch plus 8, in tokens.
        prices: not used.
    """

    __slots__ = (
        "_padded_input",
        "_padded_output",
        "max_batch",
        "max_length",
    )

    Options = StaticOptions
    streams = False
    reservations = ("oracle",)
    allocators = ("first-fit", "best-fit", "paged")
    takes_plugins = False
    memory_reason = "a batch reserves its own padded length, in memory that holds its rows without rounding"

    def __init__(
        self,
        memory: BlockManager,
        options: StaticOptions,
        *,
        max_model_len: int,
        prices: Prices | None = None,
    ) -> None:
        super().__init__(memory, WaitingQueue(), options, max_model_len=max_model_len, prices=prices)
        self.max_length = max_model_len - SHORT_OF
        slots = memory.num_blocks * memory.block_size
        self.max_batch = options.max_batch or max(1, slots // max(1, self.max_length))
        self._padded_input = 0
        self._padded_output = 0

    def refusal(self, prompt_tokens: int, output_tokens: int, samples: int) -> str:
        if prompt_tokens + output_tokens > self.max_length:
            return (
                f"prompt and output exceed {self.max_length} tokens, which is {SHORT_OF} less than "
                f"max_model_len, {self.max_model_len}"
            )
        needed = self.memory.blocks_to_admit(SequenceGroup(1, output_tokens, samples), prompt_tokens)
        return "" if needed <= self.memory.num_blocks else no_room(self.memory)

    def arrival_matters(self) -> bool:
        return not self.running

    def plan(self, now: int) -> Batch:
        batch = Batch()
        if self.running:
            keep_running(self, batch)
            batch.batched_tokens = batch.tokens = batch.decoding = self.running_sequences
            batch.decode_context = self.context
        elif self.queue.waiting:
            self._form_batch(batch)
        batch.sequences = self.running_sequences
        batch.context_tokens = self.context
        return batch

    def abort(self, row: int, now: int) -> int:
        raise PagesimError(
            "a static batch cannot be left: leave out abort_s and client_timeout, or choose another policy"
        )

    def stored_length(self, request: EngineRequest) -> int:
        return self._padded_input - request.prompt + self.memory.length(request)

    def may_join(self, request: EngineRequest) -> bool:
        return False

    def finish(self, now: int) -> list[EngineRequest]:
        done = super().finish(now)
        if done:
            self.context = 0  # it counted padded rows, which requests' lengths do not show
        return done

    def _form_batch(self, batch: Batch) -> None:
        memory, chosen = self.memory, self._next_batch()
        longest, padded_output = self._padded_input, self._padded_output
        for request in chosen:
            self.enter(request)
            own, request.output = request.output, padded_output
            memory.admit(request, longest)
            request.output = own
            memory.start_decoding(request)
            request.length_offset = request.prompt - memory.steps  # counts its own tokens without padding
            request.last_step = memory.steps + padded_output - 1
            self._finishing.append((request.last_step, request.order, request))
        sequences = self.running_sequences
        self.context = sequences * longest
        batch.prompts = tuple(chosen)
        batch.batched_tokens = batch.tokens = sequences * longest
        batch.query_key_pairs = sequences * (longest * (longest + 1) // 2)

    def _next_batch(self) -> list[EngineRequest]:
        """Remove the longest prefix of the queue that can form a batch, and return it."""
        memory, queue = self.memory, self.queue
        longest_input = longest_output = rows = 0
        chosen: list[EngineRequest] = []
        while (request := queue.head()) is not None and len(chosen) < self.max_batch:
            width, output = max(longest_input, request.prompt), max(longest_output, request.output)
            rows += request.samples
            if width + output > self.max_length:
                break
            if chosen and request.samples != chosen[0].samples:
                break
            padded = SequenceGroup(width, output, rows)
            if memory.blocks_to_admit(padded, width) > memory.num_blocks:
                break
            queue.pop(request)
            chosen.append(request)
            longest_input, longest_output = width, output
        self._padded_input, self._padded_output = longest_input, longest_output
        return chosen
