"""Routers, which decide on a request's replica when the request arrives."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Protocol

import numpy as np

from pagesim.experiments.clusters.replicas import Replicas
from pagesim.setup.plugins import Plugins
from pagesim.workloads.trace import Request


class Router(Protocol):
    """Decides which replica a request is sent to.

    Each run creates its router anew, without arguments, and asks it about requests in their order of arrival.
    A router may keep any state.
    """

    def choose(self, request: Request, replicas: Replicas, now: int) -> int:
        """Return the replica for a request, counting from 0.

        Args:
            request: the request as sent by its client; a real router does not know its output length.
            replicas: current state of the replicas.
            now: current time, in ticks.
        """


class RoundRobin:
    """Chooses one replica after another, whatever their load."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, request: Request, replicas: Replicas, now: int) -> int:
        chosen = self._next % len(replicas)
        self._next += 1
        return chosen


class LeastLoaded:
    """Chooses the replica with the fewest unfinished requests; the first of several."""

    def choose(self, request: Request, replicas: Replicas, now: int) -> int:
        return int(np.argmin(replicas.outstanding))


class FewestKvTokens:
    """Chooses the replica with the fewest tokens in its KV cache and in its waiting prompts together."""

    def choose(self, request: Request, replicas: Replicas, now: int) -> int:
        return int(np.argmin(replicas.kv_tokens(now) + replicas.waiting_tokens))


class PrefixAffinity:
    """Chooses the replica that served a prompt's beginning before, or the least loaded one for a new prompt.

    The beginning is the prompt's session, else the longest run of its ``hash_ids`` seen before, else its
    shared prefix. To keep a popular prefix from overloading a replica, affinity is ignored where the replica
    has more than twice the mean number of unfinished requests, plus some slack.
    """

    SLACK = 4
    """Requests by which a replica may exceed twice the mean before affinity is ignored."""

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
    """Return keys for the beginnings of a prompt, the longest last."""
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
"""The routers that are part of pagesim, by name."""


PLUGINS: Plugins[Callable[[], Router]] = Plugins("router", "pagesim.routers", ROUTERS, methods=("choose",))
"""All routers: those of pagesim and those of plug-ins."""


def find_router(router: str | Router) -> Router:
    """Return a new router by name, from ``ROUTERS`` or a plug-in; a `Router` is returned as it is.

    Raises:
        PagesimError: no router has this name, or it cannot be created.
    """
    return PLUGINS.make(router, lambda make: make()) if isinstance(router, str) else router
