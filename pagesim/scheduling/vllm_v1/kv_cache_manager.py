"""KVCacheManager: which blocks a request of vLLM v1 is given, if enough are free."""

from __future__ import annotations

from pagesim.kvcache import BlockManager
from pagesim.scheduling.request import EngineRequest
from pagesim.scheduling.vllm_v1.speculation import Drafts
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class KVCacheManager:
    """Allocates slots in a block manager, for requests that are not decoding in step with all others.

    Source: vLLM 0.33.0, v1/core/kv_cache_manager.py, ``allocate_slots``, 380 to 627.

    Args:
        memory: empty.
        drafts: what is known of requests under speculative decoding; None without.
        full_isl: whether a request is admitted only if there is room for all of it.
    """

    def __init__(self, memory: BlockManager, drafts: Drafts | None, *, full_isl: bool) -> None:
        self.memory = memory
        self._drafts = drafts
        self._full_isl = full_isl
        self._answering: dict[int, EngineRequest] = {}  # running requests by the name of what they generate

    def can_admit(self, request: EngineRequest, slots: int, spare: int) -> bool:
        """Say whether a waiting request that holds nothing could be given so many slots.

        Args:
            request: which.
            slots: for its first tokens, those included that are cached.
            spare: blocks that must be left free (a watermark).
        """
        return self.memory.can_admit(request, slots, spare, request.length if self._full_isl else 0)

    def admit(
        self, request: EngineRequest, num_tokens: int, spare: int, external: int = 0, reserved: int = 0
    ) -> bool:
        """Give a waiting request that holds nothing blocks for its first tokens, if enough are free.

        Args:
            request: which.
            num_tokens: those that are cached, loaded, and computed in this step.
            spare: blocks that must be left free (a watermark).
            external: how many of the tokens are loaded: their blocks cannot be found before.
            reserved: blocks that must be left free, too, but not beside the whole of the request.

        Returns:
            Whether there were enough; if not, nothing has changed.
        """
        memory, slots, uncommitted = self.memory, num_tokens, external
        if self._drafts is not None and not external:  # what is loaded takes none ahead
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
        """Give a request that holds blocks those for its first tokens, if enough are free.

        What no later token attends to is given back first, in any case.

        Args:
            request: which.
            num_tokens: those that are computed, and those of this step.
            spare: blocks that must be left free (a watermark).
            is_waiting: whether it was loaded, and there must be room for all of it.

        Returns:
            Whether there were enough.
        """
        memory, slots = self.memory, num_tokens
        if is_waiting and self._full_isl:
            request.lookahead_tokens = 0
            whole = memory.blocks_to_extend(request, request.length - request.tokens, request.tokens)
            if whole + spare > memory.free_blocks:
                return False
        if self._drafts is not None:
            # Slots of rejected drafts stay its own.
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
        """Take the blocks for further tokens of a request, which are free."""
        if request.content is not None and request.content.follows:
            self.cache_turns_before(request)  # the same blocks of these were there first
        self.memory.extend(request, tokens)

    # Turns of a conversation

    def cache_turns_before(self, request: EngineRequest) -> bool:
        """Let what was filled be found of turns before a request that are still answered; say if any are."""
        assert request.content is not None
        before = [self._answering[name] for name in request.content.follows if name in self._answering]
        for turn in before:
            self.memory.cache_full_blocks(turn)
        return bool(before)

    def runs(self, request: EngineRequest) -> None:
        """Note that a request runs from now on."""
        if request.content is not None:
            self._answering[request.content.answer] = request

    def runs_no_longer(self, request: EngineRequest) -> None:
        """Note that a running request lost its place, or is over."""
        if request.content is not None:
            del self._answering[request.content.answer]
