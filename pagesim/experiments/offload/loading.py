"""Loading or recomputing: which of the two gives a returning prefix its next token earlier."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pagesim.costs import CostModel, step_shape
from pagesim.costs.transfers import path_to_device, transfer_ticks
from pagesim.hardware import TierSpec
from pagesim.sim.clock import TICKS_PER_SECOND

NAP = TICKS_PER_SECOND // 1000
"""An iteration of vLLM that computes nothing, while it waits for a transfer (`sim.engine`)."""

STEPS_OF_A_LOAD = 2
"""Iterations that a load takes at least beside the copy, under asynchronous scheduling: it begins when that
has run in which it was decided, and is known with the outcome of one that was launched after its end."""


@dataclass(frozen=True, slots=True)
class DecodingLoad:
    """Sequences that decode while others load their prompts from a tier.

    Attributes:
        sequences: that decode.
        context: tokens of each.
    """

    sequences: int = 32
    context: int = 1024


@dataclass(frozen=True, slots=True)
class OffloadServer:
    """What computes: a model on GPUs.

    Attributes:
        name: of the model.
        tp: GPUs.
        token_bytes: KV of a token on each of them.
        device_bytes: of the KV cache on all of them.
        cost: of its iterations.
        budget: tokens of an iteration at most.
    """

    name: str
    tp: int
    token_bytes: int
    device_bytes: int
    cost: CostModel
    budget: int


@dataclass(frozen=True, slots=True)
class Returning:
    """A prefix that comes back, found in one tier.

    Attributes:
        server: which it comes back to.
        tier: where it is.
        tokens: that hit.
        reach_bytes: KV that may have been written since, for it to be still there under LRU.
        transfer_s: the copy, over all links on its way.
        load_s: until the first token if it is loaded: the copy, iterations that it waits for, the new tokens.
        recompute_s: until the first token if all of its prompt is computed.
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
        """What loading takes over what recomputing takes; below 1 loading is faster."""
        return self.load_s / self.recompute_s


def reaches(tiers: Sequence[TierSpec], device_bytes: int) -> list[int | None]:
    """Return how much KV may be written between two uses for a tier still to have what was used, under LRU.

    An inclusive tier has what was written last, as much as it can hold; an exclusive one what was written
    before all that is above it. None where there is no limit.
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
    """Return the tier in which a hit is found at a distance: KV written since, its own included, in bytes.

    Returns:
        Its place; -1 where the device has it still; None where no tier has.
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
    """Yield what each length of prefix takes that comes back from each tier.

    Links that end at the device are each GPU's own, and carry its part; a link between tiers carries all.

    Args:
        server: which it comes back to.
        tiers: that next to the device first.
        contexts: tokens that hit.
        new: tokens behind them, which are computed either way.
        beside: what runs meanwhile.
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
    """Return the ticks of the iterations that compute so many tokens behind a history, chunk by chunk."""
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
