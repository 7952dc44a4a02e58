"""Drafts: tokens that a cheaper model proposes and the model verifies, counted over a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

Drafting = dict[str, int | float | None]


class Speculation:
    """How many drafts were verified and what became of them.

    Attributes:
        drafted: drafts that an iteration computed.
        accepted: those of them that became output.
        verifications: how often a request had drafts in an iteration.
        verified: drafts that were accepted, those behind a request's last token included.
        outputs: tokens that requests got.
    """

    __slots__ = ("accepted", "drafted", "outputs", "verifications", "verified")

    def __init__(self) -> None:
        self.drafted = self.accepted = self.verifications = self.verified = self.outputs = 0

    def note(self, drafts: int, accepted: int) -> None:
        """Count the drafts of one request in one iteration."""
        if drafts:
            self.drafted += drafts
            self.accepted += accepted
            self.verifications += 1

    @classmethod
    def total(cls, parts: Iterable[Speculation]) -> Speculation:
        """Return the counts of several engines together."""
        whole = cls()
        for part in parts:
            whole.drafted += part.drafted
            whole.accepted += part.accepted
            whole.verifications += part.verifications
        return whole

    def summary(self) -> Drafting:
        """Return the counts, the share accepted and the mean tokens of a verification; None without any."""
        drafted, accepted, verifications = self.drafted, self.accepted, self.verifications
        return {
            "drafted": drafted,
            "accepted": accepted,
            "wasted": drafted - accepted,
            "acceptance_rate": accepted / drafted if drafted else None,
            "mean_accepted_length": 1 + accepted / verifications if verifications else None,
        }


def accepted_of(drafts: int, rates: Sequence[float], seed: int) -> int:
    """Draw how many drafts are accepted.

    Args:
        drafts: that are verified.
        rates: the probability of each to be accepted if all before it are, by position; the last holds for
            all further ones.
        seed: of the draw.
    """
    draw = Random(seed).random
    accepted, last = 0, len(rates) - 1
    while accepted < drafts and draw() < rates[min(accepted, last)]:
        accepted += 1
    return accepted
