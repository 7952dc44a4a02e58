"""Evictions by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from pagesim.eviction import EVICTION_POLICIES
from pagesim.kvcache.tiers.arc import TierArc
from pagesim.kvcache.tiers.by_policy import ByPolicy
from pagesim.kvcache.tiers.eviction import Eviction
from pagesim.kvcache.tiers.lru import LruByRequest
from pagesim.kvcache.tiers.never import Never

EVICTIONS: Mapping[str, Callable[[int], Eviction]] = MappingProxyType(
    {
        "lru": lambda capacity: LruByRequest(),
        "arc": TierArc,
        "never": lambda capacity: Never(),
    }
)
"""Factories of vLLM's own evictions and of ``never``, each called with a capacity in chunks."""

BY_POLICY = {"lru-chunk": "lru", "arc-textbook": "arc"}
"""Tier names of the policies in `EVICTION_POLICIES` whose names here mean vLLM's own evictions."""

OWN = {"vllm-arc": "arc"}
"""Policies of `EVICTION_POLICIES` that tiers implement themselves, with the name used here."""


def tier_name(policy: str) -> str:
    """Return the name by which a tier knows a policy of `EVICTION_POLICIES`."""
    return OWN.get(policy) or next((name for name, of in BY_POLICY.items() if of == policy), policy)


def new_eviction(name: str, capacity: int) -> Eviction:
    """Return the eviction with this name, vLLM's own or a prefix cache's policy, for ``capacity`` chunks.

    Raises:
        PagesimError: there is no eviction with this name.
    """
    name = OWN.get(name, name)
    if name in EVICTIONS:
        return EVICTIONS[name](capacity)
    name = BY_POLICY.get(name, name)
    return ByPolicy(capacity, lambda view: EVICTION_POLICIES.make(name, lambda kind: kind(view)))
