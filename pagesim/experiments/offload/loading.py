"""Loading or recomputing: which of the two gives a returning prefix its next token sooner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pagesim.costs import CostModel, step_shape
from pagesim.costs.transfers import path_to_device, transfer_ticks
from pagesim.hardware import TierSpec
from pagesim.sim.clock import TICKS_PER_SECOND

NAP = TICKS_PER_SECOND // 1000
"""Ticks of a vLLM iteration that computes nothing while it waits for a transfer (`sim.engine`)."""

STEPS_OF_A_LOAD = 2
"""Minimum iterations that a load takes besides the copy, with asynchronous scheduling. The copy starts after
the iteration that scheduled it, and is reported with the outcome of one launched after the copy's end."""


@dataclass(frozen=True, slots=True)
class DecodingLoad:
    """Sequences that decode while other requests load their prompts from a tier.

    Attributes:
        sequences: number of decoding sequences.
        context: tokens of context of each.
    """

    sequences: int = 32
    context: int = 1024


@dataclass(frozen=True, slots=True)
class OffloadServer:
    """A server that runs a model on its GPUs.

    Attributes:
        name: name of the model.
        tp: tensor-parallel size (number of GPUs).
        token_bytes: KV bytes of a token on each GPU.
        device_bytes: size of the KV cache over all GPUs.
        cost: cost model of its iterations.
        budget: maximum number of tokens per iteration.
    """

    name: str
    tp: int
    token_bytes: int
    device_bytes: int
    cost: CostModel
    budget: int


@dataclass(frozen=True, slots=True)
class Returning:
    """A returning prefix that hits in one tier.

    Attributes:
        server: server that the prefix returns to.
        tier: tier that holds it.
        tokens: number of tokens that hit.
        reach_bytes: KV bytes that may have been written since, if LRU is to have kept it; None: any number.
        transfer_s: time of the copy over all links to the device.
        load_s: time to the first token with loading: the copy, iterations waited for, and the new tokens.
        recompute_s: time to the first token if the whole prompt is computed.
    """

    server: OffloadServer
    tier: TierSpec
    tokens: int
    reach_bytes: int | None
    transfer_s: float
    load_s: float
    recompute_s: float

    @property
    def ratio(self) -> float:
        """Loading time divided by recomputing time; below 1, loading is faster."""
        return self.load_s / self.recompute_s


def reaches(tiers: Sequence[TierSpec], device_bytes: int) -> list[int | None]:
    """Return how many KV bytes may be written between two uses for each tier to still hold the data (LRU).

    An inclusive tier holds the most recent writes, up to its capacity. An exclusive tier holds what was
    written before the contents of the tiers above it. None means no limit.
    """
    found: list[int | None] = []
    above: int | None = device_bytes
    for tier in tiers:
        if tier.capacity_bytes is None or (tier.exclusive and above is None):
            reach = None
        else:
            reach = tier.capacity_bytes + (above or 0) * tier.exclusive
        found.append(reach)
        above = reach
    return found


def place_at(tiers: Sequence[TierSpec], device_bytes: int, distance: int) -> int | None:
    """Return the tier that hits at a reuse distance: KV bytes written since, including the prefix's own.

    Returns:
        The tier's index; -1 if the device still holds the prefix; None if no tier does.
    """
    if distance <= device_bytes:
        return -1
    for place, reach in enumerate(reaches(tiers, device_bytes)):
        if reach is None or distance <= reach:
            return place
    return None


def returning(
    server: OffloadServer,
    tiers: Sequence[TierSpec],
    contexts: Sequence[int],
    *,
    new: int = 16,
    beside: DecodingLoad,
) -> Iterator[Returning]:
    """Yield the times for every prefix length and for every tier that it returns from.

    A link to the device exists per GPU and carries that GPU's part; a link between tiers carries everything.

    Args:
        server: server that the prefix returns to.
        tiers: tiers, starting with the one closest to the device.
        contexts: numbers of tokens that hit.
        new: tokens after the prefix, which are computed in either case.
        beside: load that decodes at the same time.
    """
    step = NAP
    if beside.sequences:
        step = server.cost.iteration(step_shape(beside.sequences, beside.sequences * beside.context))
    for place, reach in enumerate(reaches(tiers, server.device_bytes)):
        path = path_to_device(tiers, place)
        for tokens in contexts:
            size = tokens * server.token_bytes
            copy = sum(
                transfer_ticks(tiers[each].load, size if each == path[-1] else size * server.tp)
                for each in path
            )
            load = STEPS_OF_A_LOAD * step + copy + _prefill(server, tokens, new, beside)
            again = _prefill(server, 0, tokens + new, beside)
            yield Returning(
                server,
                tiers[place],
                tokens,
                reach,
                *(each / TICKS_PER_SECOND for each in (copy, load, again)),
            )


def _prefill(server: OffloadServer, history: int, tokens: int, beside: DecodingLoad) -> int:
    """Return the ticks of the chunked prefill of ``tokens`` tokens after a history."""
    ticks, held = 0, beside.sequences * beside.context
    room = max(1, server.budget - beside.sequences)
    while tokens:
        chunk = min(tokens, room)
        tokens -= chunk
        shape = step_shape(beside.sequences, held, prompt=chunk, history=history)
        shape = shape._replace(sampled=beside.sequences + (not tokens), computed_prompts=1)
        ticks += server.cost.iteration(shape)
        history += chunk
    return ticks
