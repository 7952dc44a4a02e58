"""Reservation policies: for how many tokens a sequence allocates memory when it is admitted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reservation:
    """A named guess of a sequence's final length.

    Args:
        name: the policy's name.
        guess: maps the true output length, unknown to real systems, to the output length to reserve for.
        max_model_len: maximum tokens of a sequence; nothing beyond it is ever reserved.
    """

    name: str
    guess: Callable[[int], int]
    max_model_len: int

    def tokens(self, prompt_tokens: int, output_tokens: int) -> int:
        """Return the tokens to reserve for a sequence with this prompt."""
        tokens = prompt_tokens + self.guess(output_tokens)
        if tokens > self.max_model_len:
            tokens = self.max_model_len
        return tokens if tokens > prompt_tokens else prompt_tokens


def reserve_max(max_model_len: int) -> Reservation:
    """Return the policy that reserves the model's maximum length for every sequence (Orca Max)."""
    return Reservation("max", lambda _: max_model_len, max_model_len)


def reserve_pow2(max_model_len: int) -> Reservation:
    """Return the policy that rounds the output length up to a power of two (Orca Pow2)."""
    return Reservation("pow2", lambda output: 1 << (output - 1).bit_length() if output else 0, max_model_len)


def reserve_oracle(max_model_len: int) -> Reservation:
    """Return the policy that knows the output length (Orca Oracle), which no real system does."""
    return Reservation("oracle", lambda output: output, max_model_len)


RESERVATIONS: dict[str, Callable[[int], Reservation]] = {
    "max": reserve_max,
    "pow2": reserve_pow2,
    "oracle": reserve_oracle,
}
"""Policies that reserve memory at admission, by name; ``on-demand`` (paging) reserves nothing."""
