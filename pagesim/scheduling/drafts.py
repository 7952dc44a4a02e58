"""Draft tokens, which a cheaper model proposes and the target model verifies, counted over a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

Drafting = dict[str, int | float | None]


class Speculation:
    """Counts of verified draft tokens and of their outcomes.

    Attributes:
        drafted: draft tokens that iterations verified.
        accepted: those of them that became output.
        verifications: number of times that a request had draft tokens in an iteration.
        verified: accepted draft tokens, including those after a request's last token.
        outputs: tokens generated for requests.
    """

    __slots__ = ("accepted", "drafted", "outputs", "verifications", "verified")

    def __init__(self) -> None:
        self.drafted = self.accepted = self.verifications = self.verified = self.outputs = 0

    def note(self, drafts: int, accepted: int) -> None:
        """Count the draft tokens of one request in one iteration."""
        if drafts:
            self.drafted += drafts
            self.accepted += accepted
            self.verifications += 1

    @classmethod
    def total(cls, parts: Iterable[Speculation]) -> Speculation:
        """Return the sums of the counts of several engines."""
        whole = cls()
        for part in parts:
            whole.drafted += part.drafted
            whole.accepted += part.accepted
            whole.verifications += part.verifications
        return whole

    def summary(self) -> Drafting:
        """Return the counts, the acceptance rate and the mean accepted length; None for both if undefined."""
        drafted, accepted, verifications = self.drafted, self.accepted, self.verifications
        return {
            "drafted": drafted,
            "accepted": accepted,
            "wasted": drafted - accepted,
            "acceptance_rate": accepted / drafted if drafted else None,
            "mean_accepted_length": 1 + accepted / verifications if verifications else None,
        }


def accepted_of(drafts: int, rates: Sequence[float], seed: int) -> int:
    """Draw how many draft tokens are accepted.

    Args:
        drafts: number of draft tokens that are verified.
        rates: probability, by position, that a draft is accepted if all before it are; the last applies to
            all further positions.
        seed: random seed of the draw.
    """
    draw = Random(seed).random
    accepted, last = 0, len(rates) - 1
    while accepted < drafts and draw() < rates[min(accepted, last)]:
        accepted += 1
    return accepted
