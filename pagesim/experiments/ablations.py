"""Ablations over block sizes: the effect of the block size itself and of the way to preempt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pagesim.api import run
from pagesim.costs import Profiled, step_shape
from pagesim.costs.profiles import Profile
from pagesim.errors import PagesimError
from pagesim.models import ModelSpec
from pagesim.results.result import Result
from pagesim.setup.system import System
from pagesim.sim.clock import TICKS_PER_SECOND
from pagesim.workloads.trace import Trace

PREEMPTIONS = ("recompute", "swap", "auto")

ALIKE = 0.05
"""Relative difference in latency up to which block sizes count as equally good."""


@dataclass(frozen=True)
class PreemptionCost:
    """Time to undo a preemption at one block size, with nothing else running.

    Attributes:
        block_size: tokens per block.
        swap_out_s: seconds to move the blocks of a sequence to the host.
        swap_in_s: seconds to move them back.
        recompute_s: seconds of an iteration that recomputes the sequence's tokens.
    """

    block_size: int
    swap_out_s: float
    swap_in_s: float
    recompute_s: float

    @property
    def swap_s(self) -> float:
        """Seconds to swap out and back in."""
        return self.swap_out_s + self.swap_in_s

    def row(self) -> dict[str, Any]:
        """Return the times as a row of a table."""
        names = ("block_size", "swap_out_s", "swap_in_s", "swap_s", "recompute_s")
        return {name: getattr(self, name) for name in names}


def sizes_of(profile: Profile, asked: Sequence[int] | None) -> tuple[int, ...]:
    """Return the requested block sizes, or all that a profile contains.

    Raises:
        PagesimError: the profile lacks a block size; the message names those that it contains.
    """
    known = profile.block_sizes
    for size in asked or ():
        if size not in known:
            raise PagesimError(
                f"profile {profile.name} was not measured at block_size {size}; it knows "
                f"{', '.join(map(str, known)) or 'none'}"
            )
    return tuple(sorted(set(asked or known)))


def undo(profile: Profile, spec: ModelSpec, sizes: Sequence[int], tokens: int) -> list[PreemptionCost]:
    """Return the time to undo the preemption of a context of ``tokens`` tokens, for each block size.

    Args:
        profile: profile that gives the times.
        spec: its model.
        sizes: block sizes, in tokens.
        tokens: tokens that the sequence held.

    Raises:
        PagesimError: ``tokens`` is below 1, or the profile is for another model.
    """
    if tokens < 1:
        raise PagesimError(f"tokens is {tokens}; it must be at least 1")

    def seconds(size: int, *, prompt: int = 0, out: int = 0, back: int = 0) -> float:
        cost = Profiled(profile, spec, tp=profile.tp, block_size=size, kv_dtype=profile.kv_dtype)
        shape = step_shape(0, 0, prompt=prompt, blocks_out=out, blocks_in=back)
        return cost.iteration(shape) / TICKS_PER_SECOND

    found = []
    for size in sizes:
        blocks = -(-tokens // size)
        found.append(
            PreemptionCost(
                size, seconds(size, out=blocks), seconds(size, back=blocks), seconds(size, prompt=tokens)
            )
        )
    return found


def crossover(swap: Mapping[int, float], recompute: Mapping[int, float]) -> int | None:
    """Return the block size from which on swapping takes no longer than recomputing, or None.

    Args:
        swap: seconds by block size.
        recompute: seconds by block size, for the same sizes.
    """
    found = None
    for size in sorted(swap, reverse=True):
        if swap[size] > recompute[size]:
            break
        found = size
    return found


def serve(
    system: System, trace: Trace, sizes: Sequence[int], preemptions: Sequence[str]
) -> Iterator[tuple[str, int, Result]]:
    """Replay a trace with each block size and way to preempt, always with the same memory.

    Args:
        system: system whose block size and preemption are replaced; ``num_blocks`` is in its own size.
        trace: trace to replay each time.
        sizes: block sizes, in tokens.
        preemptions: ``default``, ``recompute``, ``swap`` or ``auto``.

    Yields:
        Preemption, block size, result.

    Raises:
        PagesimError: ``num_blocks`` (in blocks of the system's own size) holds no block of some size.
    """
    for preemption in preemptions:
        for size in sizes:
            update: dict[str, Any] = {"block_size": size}
            if preemption != "default":  # every policy has a default, few have the option
                update["preemption"] = preemption
            own = system.block_size or 16
            for option in ("num_blocks", "cpu_blocks"):
                number = getattr(system, option)
                if number is not None:
                    update[option] = number * own // size
                    if number and not update[option]:
                        raise PagesimError(
                            f"{option} is {number}; that many blocks of {own} tokens hold no block of {size}"
                        )
            yield preemption, size, run(system.model_copy(update=update), trace, steps="none")


def best(latency: Mapping[int, float]) -> tuple[int, list[int]]:
    """Return the block size with the lowest latency, and all that are equally good."""
    least = min(latency, key=lambda size: (latency[size], size))
    return least, [size for size in sorted(latency) if latency[size] <= (1 + ALIKE) * latency[least]]


def notes_on(profile: Profile, sizes: Sequence[int]) -> list[str]:
    """Return notes on comparing block sizes with a profile."""
    said = []
    decode = [profile.terms.decode[size] for size in sizes]
    prefill = [profile.terms.prefill[size] for size in sizes]
    if len(sizes) > 1 and all(each == decode[0] for each in decode) and all(
        each == prefill[0] for each in prefill
    ):  # fmt: skip
        said.append(
            f"profile {profile.name} ({profile.kind}) knows no difference between block sizes in attention: "
            "only memory and transfers differ here"
        )
    if profile.kind != "measured":
        said.append(f"profile {profile.name} is {profile.kind}; pagesim calibrate measures one")
    return said
