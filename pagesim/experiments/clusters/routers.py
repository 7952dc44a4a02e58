"""Routers: which replica a request goes to, decided when it arrives."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Protocol

import numpy as np

from pagesim.experiments.clusters.replicas import Replicas
from pagesim.setup.plugins import Plugins
from pagesim.workloads.trace import Request


class Router(Protocol):
    """Decides where requests go.

    A router is made anew for each run, without arguments, and asked about requests in the order in which they
    arrive. It may remember what it likes.
    """

    def choose(self, request: Request, replicas: Replicas, now: int) -> int:
        """Return the replica that a request goes to, from 0 on.

        Args:
            request: as its client sends it; a real router does not know its output length.
            replicas: what they do.
            now: ticks.
        """


class RoundRobin:
    """One after another, whatever they do."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, request: Request, replicas: Replicas, now: int) -> int:
        chosen = self._next % len(replicas)
        self._next += 1
        return chosen


class LeastLoaded:
    """The replica with the fewest requests that are not over; the first of equals."""

    def choose(self, request: Request, replicas: Replicas, now: int) -> int:
        return int(np.argmin(replicas.outstanding))


class FewestKvTokens:
    """The replica whose sequences hold, and whose waiting prompts will hold, the fewest tokens."""

    def choose(self, request: Request, replicas: Replicas, now: int) -> int:
        return int(np.argmin(replicas.kv_tokens(now) + replicas.waiting_tokens))


class PrefixAffinity:
    """The replica that served what a prompt begins with; a prompt that begins anew goes where least is to do.

    What a prompt begins with is its session, else the longest run of its ``hash_ids`` that was seen before,
    else its shared prefix. So that one popular prefix does not bring a replica down, affinity yields where
    that replica has over twice the mean of outstanding requests, and a few.
    """

    SLACK = 4
    """Requests by which a replica may always exceed twice the mean."""

    def __init__(self) -> None:
        self._served: dict[Hashable, int] = {}
        self._least_loaded = LeastLoaded()

    def choose(self, request: Request, replicas: Replicas, now: int) -> int:
        names = list(_beginnings(request))
        chosen = next((self._served[name] for name in reversed(names) if name in self._served), None)
        load = replicas.outstanding
        if chosen is None or load[chosen] > 2 * load.mean() + self.SLACK:
            chosen = self._least_loaded.choose(request, replicas, now)
        self._served.update(dict.fromkeys(names, chosen))
        return chosen


def _beginnings(request: Request) -> list[Hashable]:
    """Return names of what a prompt begins with, the longest last."""
    names: list[Hashable] = []
    if request.prefix_tokens and not request.hash_ids:
        names.append("prefix")
    chain = 0
    for each in request.hash_ids:
        chain = hash((chain, each))
        names.append(chain)
    if request.session_id is not None:
        names.append(("session", request.session_id))
    return names


ROUTERS: dict[str, Callable[[], Router]] = {
    "round-robin": RoundRobin,
    "least-loaded": LeastLoaded,
    "fewest-kv-tokens": FewestKvTokens,
    "prefix-affinity": PrefixAffinity,
}
"""The routers that come with pagesim, by name."""


PLUGINS: Plugins[Callable[[], Router]] = Plugins("router", "pagesim.routers", ROUTERS, methods=("choose",))
"""The same, and those that others bring."""


def find_router(router: str | Router) -> Router:
    """Return a new router by its name, one of ``ROUTERS`` or a plug-in's; or a router as it is.

    Raises:
        PagesimError: there is none of this name, or it cannot be made.
    """
    return PLUGINS.make(router, lambda make: make()) if isinstance(router, str) else router
