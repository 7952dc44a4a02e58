"""TensorRT-LLM's scheduler: a capacity policy decides which requests fit, a micro-batch which of them run."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from pagesim.errors import PagesimError
from pagesim.kvcache import BlockManager
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.draining import DrainingScheduler
from pagesim.scheduling.failure_modes import FailureMode, no_room
from pagesim.scheduling.options import Machine, Prices
from pagesim.scheduling.request import EngineRequest
from pagesim.scheduling.trtllm.chunking import share_out
from pagesim.scheduling.trtllm.options import TrtllmOptions, check
from pagesim.scheduling.trtllm.queue import PlaceQueue


class Trtllm(DrainingScheduler):
    """Common base of the schedulers for the two capacity policies.

    Requests are served in order of arrival; paused ones keep their position. Every decoding request gets a
    token, and prompts share the rest of ``max_num_tokens``. In TensorRT-LLM a prompt allocates all its blocks
    with its first chunk. Here it allocates them as its chunks run, and no decision counts the remaining ones
    as free.

    Args:
        memory: empty block manager.
        options: options under TensorRT-LLM's own names.
        max_model_len: maximum length of a request in tokens.
        prices: not used.

    Attributes:
        options: the engine's options, including its capacity policy.
        longest: maximum length of a request that fits into the cache, in tokens.
        in_chunks: running requests with an unfinished prefill, by `SequenceGroup.order`.
    """

    __slots__ = ("in_chunks", "longest", "options")

    Options = TrtllmOptions
    samples = "one"
    reservations = ("on-demand",)
    allocators = ("paged",)
    takes_plugins = False
    memory_reason = "capacity_scheduler_policy says what an admission leaves room for"
    has_beams = False
    serves_hybrids = False
    empty_turns = False

    queue: PlaceQueue

    @classmethod
    def resolve(cls, options: TrtllmOptions, machine: Machine) -> TrtllmOptions:
        check(options)
        return options

    @classmethod
    def schedules_ahead(cls, options: TrtllmOptions) -> bool:
        return not options.disable_overlap_scheduler

    def __init__(
        self,
        memory: BlockManager,
        options: TrtllmOptions,
        *,
        max_model_len: int,
        prices: Prices | None = None,
    ) -> None:
        check(options)
        if options.enable_chunked_prefill and options.max_num_tokens < memory.block_size:
            raise PagesimError(
                f"max_num_tokens is {options.max_num_tokens}; with enable_chunked_prefill it must be at "
                f"least block_size, {memory.block_size}: chunks are whole blocks"
            )
        super().__init__(memory, PlaceQueue(), options, max_model_len=max_model_len, prices=prices)
        self.options = options
        self.longest = min(max_model_len, memory.num_blocks * memory.block_size)
        self.in_chunks: dict[int, EngineRequest] = {}
        self._draining = {}
        self.in_flight = 1 if options.disable_overlap_scheduler else 2
        memory.steps_in_flight = self.in_flight - 1

    def refusal(self, prompt_tokens: int, output_tokens: int, samples: int) -> str:
        if samples > 1:
            return "it is of several samples, and this engine serves one"
        if prompt_tokens + output_tokens > self.max_model_len:
            return f"prompt and output exceed max_model_len, {self.max_model_len} tokens"
        if prompt_tokens + output_tokens > self.longest:
            return no_room(self.memory)
        if self.options.enable_chunked_prefill or prompt_tokens <= self.options.max_num_tokens:
            return ""
        return (
            f"the prompt exceeds max_num_tokens, {self.options.max_num_tokens} tokens, and "
            "enable_chunked_prefill is off"
        )

    def plan(self, now: int) -> Batch:
        batch = Batch()
        if self.in_flight > 1:
            self.start_draining()
        waiting = self.fit(batch)
        self.memory.allocate_step(1)
        decoding = len(self.running) - len(self.in_chunks) - self.draining
        batch.decoding = batch.batched_tokens = decoding
        self.context += decoding
        chunked = sum([each.tokens for each in self.in_chunks.values()])
        batch.decode_context = self.context - chunked - self.draining_context
        unserved = self.draining_context + self._run_prompts(waiting, batch)
        batch.tokens = batch.batched_tokens
        batch.context_tokens = self.context - unserved
        batch.sequences = self.running_sequences
        self.must_replan = self.must_replan or bool(self.in_chunks or batch.recomputed or batch.unschedulable)
        return batch

    @abstractmethod
    def fit(self, batch: Batch) -> list[EngineRequest]:
        """Make room for one token per decoding request, and remove the requests that fit from the queue.

        Args:
            batch: batch in which preempted requests are recorded.

        Returns:
            The requests removed from the queue, in order.
        """

    def seats_left(self, waiting: Sequence[EngineRequest]) -> bool:
        """Return whether another request may start in addition to the running and the starting ones."""
        return len(self.running) + len(waiting) < self.options.max_batch_size

    @abstractmethod
    def blocks_to_start(self, request: EngineRequest) -> int:
        """Return the blocks that must be free for a request to start."""

    def take_heads(self, free: int, batch: Batch) -> list[EngineRequest]:
        """Remove requests from the queue while they fit into ``free`` blocks, and return them."""
        queue = self.queue
        waiting: list[EngineRequest] = []
        while self.seats_left(waiting) and (request := queue.head()) is not None:
            needed = self.blocks_to_start(request)
            if needed > free:
                if self.running or waiting:
                    break
                queue.pop(request)
                batch.unschedulable += ((request, FailureMode.NEVER_ADMITTED),)
                continue
            free -= needed
            queue.pop(request)
            waiting.append(request)
        return waiting

    # Prompts

    def _run_prompts(self, waiting: list[EngineRequest], batch: Batch) -> int:
        """Run the prompts of requests that fit, as far as the iteration's token budget allows.

        Returns:
            Number of tokens held by running requests whose prompt gets nothing.
        """
        self.must_replan = False
        if not (waiting or self.in_chunks):
            return 0
        contexts = [(each, each.tokens) for each in self.in_chunks.values()]
        contexts += [(each, 0) for each in waiting]
        contexts.sort(key=lambda context: context[0].index)
        budget = self.options.max_num_tokens - batch.decoding
        if self.options.enable_chunked_prefill:
            left = [request.length - computed for request, computed in contexts]
            unit = self.memory.block_size
            shares = share_out(self.options.context_chunking_policy, left, budget, unit)
        else:
            shares = self._whole(waiting, budget, batch)
        unserved = 0
        starts, goes_on, ends = [], [], []
        for (request, computed), tokens in zip(contexts, shares, strict=False):
            if not tokens:
                unserved += computed
                continue
            if computed:
                self.events.interval_ended(request)
                self.memory.extend(request, tokens)
            else:
                self._enter(request, tokens)
                starts.append(request)
            if self._compute(request, computed, tokens, batch):
                goes_on.append(request)
            elif computed:
                ends.append(request)
        batch.prompts, batch.completed = tuple(starts), tuple(ends)
        gone = {*starts, *(request for request, _ in batch.unschedulable)}
        batch.incomplete = tuple([each for each in goes_on if each in gone])
        back = [each for each in waiting if each not in gone]
        for request in back:
            self.queue.requeue(request)
        # Unchunked prompts keep their order, so one that is too long must wait until others end.
        self.must_replan = bool(back) and (self.options.enable_chunked_prefill or bool(starts))
        return unserved

    def _whole(self, waiting: list[EngineRequest], budget: int, batch: Batch) -> list[int]:
        """Return the tokens of each prompt without chunking, up to the first that exceeds the budget."""
        shares, most = [], self.options.max_num_tokens
        for request in waiting:
            if request.length > most:  # including what it generated before it was paused
                batch.unschedulable += ((request, FailureMode.NEVER_RESUMED),)
                shares.append(0)
            elif request.length > budget:
                break
            else:
                shares.append(request.length)
                budget -= request.length
        return shares

    def _enter(self, request: EngineRequest, tokens: int) -> None:
        """Start a request and allocate blocks for its first tokens."""
        self.memory.admit(request, tokens)
        overtaken = bool(self.running) and self.latest().index > request.index
        self.enter(request)
        if overtaken:
            self.reorder(lambda each: each.index)

    def _compute(self, request: EngineRequest, computed: int, tokens: int, batch: Batch) -> bool:
        """Run a chunk whose blocks are allocated; return whether the prompt continues after it."""
        batch.batched_tokens += tokens
        batch.query_key_pairs += tokens * computed + tokens * (tokens + 1) // 2
        self.context += tokens
        if request.tokens < request.length:
            self.in_chunks[request.order] = request
            return True
        self.in_chunks.pop(request.order, None)
        self.start_decoding(request)
        return False

    # Requests that leave

    def end_in_flight(self, now: int) -> list[EngineRequest]:
        return self.finish_draining(now)

    def preempt(self, request: EngineRequest, batch: Batch) -> None:
        length, chunked = request.length, self.in_chunks.pop(request.order, None)
        super().preempt(request, batch)
        if chunked is not None:
            request.length = length

    def _abort_running(self, request: EngineRequest) -> int:
        chunked = self.in_chunks.pop(request.order, None)
        generated = super()._abort_running(request)
        self.stop_draining(request)
        return generated if chunked is None else request.length - request.prompt

    def may_join(self, request: EngineRequest) -> bool:
        return self.seats_left(())
