"""The conformance suite for eviction policies: one call tests any implementation."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from pagesim.eviction import CacheView, EvictionPolicy, Future, PrefixCache
from pagesim.testing.makes import check_makes

_PROMPTS = 400
_CAPACITIES = (1, 2, 7, 24)


def check_eviction_policy(make: Callable[[CacheView], EvictionPolicy]) -> None:
    """Check that an eviction policy fulfils the contract of ``pagesim.eviction.EvictionPolicy``.

    It serves random prompts that share prefixes, the same in every run, in a cache in which only leaves may
    be evicted.

    Args:
        make: factory of a policy for an empty cache: usually the class itself.

    Raises:
        AssertionError: a rule is broken; the message says which.
        TypeError: a policy was passed instead of a factory.
    """
    check_makes(make)
    for capacity in _CAPACITIES:
        first, second = _victims(make, capacity), _victims(make, capacity)
        assert first == second, "the same prompts evicted different blocks"


def _victims(make: Callable[[CacheView], EvictionPolicy], capacity: int) -> list[list[int]]:
    """Serve random prompts with all checks, and return the blocks that each prompt evicted."""
    rng = Random(capacity)
    prompts: list[list[int]] = []
    for _ in range(_PROMPTS):
        begun = rng.choice(prompts)[: rng.randint(0, 8)] if prompts else []
        fresh = len(prompts) * 16
        prompts.append([*begun, *range(fresh, fresh + rng.randint(1, 6))])
    future = Future(prompts)
    depth = [0] * future.distinct
    for blocks in future.blocks:
        for place, block in enumerate(blocks):
            depth[block] = place
    view = CacheView(capacity, depth, [1.0 + 0.1 * each for each in depth])
    cache = PrefixCache(view, _Watched(make(view)))
    victims = []
    for row, blocks in enumerate(future.blocks):
        view.now = float(row)
        cache.serve(blocks, future.following[row])
        victims.append(list(cache.victims))
        assert len(cache) <= capacity, "a cache never holds more than its capacity"
    return victims


class _Watched(EvictionPolicy):
    """A wrapper that checks a policy's answers."""

    def __init__(self, policy: EvictionPolicy) -> None:
        super().__init__(policy.cache)
        self._policy = policy
        self._cached: set[int] = set()

    def hit(self, block: int) -> None:
        self._policy.hit(block)

    def miss(self, block: int) -> bool:
        wanted = self._policy.miss(block)
        assert isinstance(wanted, bool), "miss returns whether the block is to be cached"
        return wanted

    def insert(self, block: int) -> None:
        self._cached.add(block)
        self._policy.insert(block)

    def freed(self, block: int) -> None:
        self._policy.freed(block)

    def evict(self) -> int | None:
        free = self.cache.free
        before = set(free)
        victim = self._policy.evict()
        assert free == before, "a policy changes nothing of its cache"
        if victim is None:
            assert not before, f"it evicts nothing, though {len(before)} blocks may go"
            return None
        assert victim in self._cached, f"it evicts block {victim}, which is not cached"
        assert victim in before, f"it evicts block {victim}, which is in use or has blocks behind it"
        self._cached.discard(victim)
        return victim
