"""KVCacheManager: allocates blocks to requests of vLLM v1, if enough are free."""

from __future__ import annotations

from pagesim.kvcache import BlockManager
from pagesim.scheduling.request import EngineRequest
from pagesim.scheduling.vllm_v1.speculation import Drafts
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class KVCacheManager:
    """Allocates slots in a block manager for requests that do not decode in lockstep with all others.

    Source: vLLM 0.33.0, v1/core/kv_cache_manager.py, ``allocate_slots``, 380 to 627.

    Args:
        memory: empty block manager.
        drafts: state of requests that decode apart, as under speculative decoding; None otherwise.
        full_isl: whether a request is admitted only if its full length fits.
    """

    def __init__(self, memory: BlockManager, drafts: Drafts | None, *, full_isl: bool) -> None:
        self.memory = memory
        self._drafts = drafts
        self._full_isl = full_isl
        self._answering: dict[int, EngineRequest] = {}  # running requests by the name of their answer

    def can_admit(self, request: EngineRequest, slots: int, spare: int) -> bool:
        """Return whether ``slots`` slots can be allocated to a waiting request that holds no blocks.

        Args:
            request: the waiting request.
            slots: slots for its first tokens, cached ones included.
            spare: blocks that must stay free (a watermark).
        """
        return self.memory.can_admit(request, slots, spare, request.length if self._full_isl else 0)

    def admit(
        self, request: EngineRequest, num_tokens: int, spare: int, external: int = 0, reserved: int = 0
    ) -> bool:
        """Allocate blocks for the first tokens of a waiting request that holds none, if enough are free.

        Args:
            request: the waiting request.
            num_tokens: tokens that are cached, loaded or computed in this step.
            spare: blocks that must stay free (a watermark).
            external: how many of the tokens are loaded; their blocks give no prefix hits before that.
            reserved: further blocks that must stay free; not applied to the full-length check.

        Returns:
            Whether enough blocks were free; if not, nothing has changed.
        """
        memory, slots, uncommitted = self.memory, num_tokens, external
        if self._drafts is not None and not external:  # no lookahead slots while loading
            slots = self._drafts.slots(num_tokens)
            uncommitted = self._drafts.uncommitted(request, num_tokens, slots)
        request.lookahead_tokens = slots - num_tokens
        request.uncommitted_tokens, request.external_tokens = uncommitted, external
        if not self.can_admit(request, slots, spare) or (
            external and not memory.can_admit(request, slots, spare + reserved)
        ):
            request.uncommitted_tokens = request.external_tokens = 0
            return False
        memory.admit(request, slots)
        request.external_tokens = 0
        return True

    def allocate_slots(
        self, request: EngineRequest, num_tokens: int, spare: int = 0, *, is_waiting: bool = False
    ) -> bool:
        """Allocate further blocks for the first tokens of a request that holds some, if enough are free.

        Blocks that no later token attends to are freed before the allocation is tried, even if it then fails.

        Args:
            request: a request that holds blocks.
            num_tokens: tokens computed so far plus those of this step.
            spare: blocks that must stay free (a watermark).
            is_waiting: whether the request was loaded and is now admitted, so that ``full_isl`` applies.

        Returns:
            Whether enough blocks were free.
        """
        memory, slots = self.memory, num_tokens
        if is_waiting and self._full_isl:
            request.lookahead_tokens = 0
            whole = memory.blocks_to_extend(request, request.length - request.tokens, request.tokens)
            if whole + spare > memory.free_blocks:
                return False
        if self._drafts is not None:
            # The request keeps the slots of rejected draft tokens.
            slots = max(request.tokens, self._drafts.slots(num_tokens))
            request.lookahead_tokens = slots - num_tokens
        memory.free_skipped_blocks(request)
        if memory.blocks_to_extend(request, slots - request.tokens) + spare > memory.free_blocks:
            return False
        if self._drafts is not None:
            request.uncommitted_tokens = self._drafts.uncommitted(request, num_tokens, slots)
        self.extend(request, slots - request.tokens)
        return True

    def extend(self, request: EngineRequest, tokens: int) -> None:
        """Allocate blocks for further tokens of a request; enough must be free."""
        if request.content is not None and request.content.follows:
            self.cache_turns_before(request)  # their identical blocks existed first
        self.memory.extend(request, tokens)

    # Turns of a conversation

    def cache_turns_before(self, request: EngineRequest) -> bool:
        """Cache the full blocks of still running earlier turns of a request; return whether any run."""
        assert request.content is not None
        before = [self._answering[name] for name in request.content.follows if name in self._answering]
        for turn in before:
            self.memory.cache_full_blocks(turn)
        return bool(before)

    def runs(self, request: EngineRequest) -> None:
        """Note that a request starts to run."""
        if request.content is not None:
            self._answering[request.content.answer] = request

    def runs_no_longer(self, request: EngineRequest) -> None:
        """Note that a running request was preempted or has finished."""
        if request.content is not None:
            del self._answering[request.content.answer]
