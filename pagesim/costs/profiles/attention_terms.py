"""Attention's cost in a few terms that mean something: launches, bytes, rounds of programs on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from pagesim.costs.profiles.curves import Floats, Seconds, Strict, non_negative
from pagesim.errors import PagesimError

SLOTS = (0, 108, 132, 216, 264, 324, 396, 432, 528, 648, 792)
"""Numbers of programs at once that are tried: one to six on each multiprocessor of an A100 and an H200; 0 for
a device that shows no rounds."""

MIN_SPLIT_TOKENS = 256
"""Below so many tokens a sequence is not cut into splits."""

Counts = Sequence[int] | npt.NDArray[np.int64]


class Line(NamedTuple):
    """Decode attention while a batch grows: so many seconds, and so many more a token of context.

    ``until`` is the mean context up to which that holds, None for ever.
    """

    seconds: float
    context_s: float
    until: int | None


class DecodeAttention(Strict):
    """Seconds of one iteration's decode attention, all layers.

    launch + sequence·batch + context·(tokens of context) + round·rounds·(tokens a program reads): the last is
    what a program's own chain of loads takes where the device is not full. With ``slots`` programs at once, a
    batch of short sequences leaves slots empty, so sequences are cut into splits to fill them; where batch ×
    KV heads is more than there are slots, programs run in rounds.

    Attributes:
        launch_s: of every iteration.
        sequence_s: a sequence.
        context_s: a token of context.
        round_s: a token that a program reads, in each round; 0 if ``slots`` is.
        slots: programs that run at once on the device; 0 if that was not seen.
        kv_heads: programs a sequence and split.
    """

    launch_s: Seconds
    sequence_s: Seconds
    context_s: Seconds
    round_s: Seconds = 0.0
    slots: Annotated[int, Field(ge=0)] = 0
    kv_heads: Annotated[int, Field(ge=1)] = 1

    def line(self, batch: int, context: int) -> Line:
        """Return what a batch of sequences costs from this context (tokens in all) on.

        Args:
            batch: sequences, at least 1.
            context: tokens that they hold together.
        """
        fixed = self.launch_s + self.sequence_s * batch
        if not (self.slots and self.round_s):
            return Line(fixed, self.context_s, None)
        rounds, splits = _rounds(batch, context // batch, self.slots, self.kv_heads)
        a_token = self.context_s + self.round_s * rounds / (batch * splits)
        room = self.slots // (batch * self.kv_heads)
        return Line(fixed, a_token, splits * MIN_SPLIT_TOKENS if splits < room else None)

    def __call__(self, batch: int, context: int) -> float:
        """Return the seconds of a batch of sequences over so many tokens of context."""
        if not batch:
            return 0.0
        fixed, a_token, _ = self.line(batch, context)
        return fixed + a_token * context


def _rounds(batch: int, mean: int, slots: int, kv_heads: int) -> tuple[int, int]:
    """Return in how many rounds programs run, and the splits of a sequence."""
    room = slots // (batch * kv_heads)
    splits = max(1, min(room, -(-mean // MIN_SPLIT_TOKENS)))
    return -(-batch * kv_heads * splits // slots), splits


def fit_decode(
    batch: Counts,
    context: Counts,
    seconds: Sequence[float],
    kv_heads: int,
    tried: Sequence[int] = SLOTS,
) -> DecodeAttention:
    """Fit decode attention to measurements, by least squares of relative errors.

    Args:
        batch: sequences, ``[N]``.
        context: tokens that they held together, ``[N]``.
        seconds: of all layers, ``[N]``, above 0.
        kv_heads: on the device.
        tried: numbers of programs at once that may be what the device has room for.

    Raises:
        PagesimError: nothing was measured, or scipy is not installed.
    """
    b, c, y = np.asarray(batch, np.int64), np.asarray(context, np.int64), np.asarray(seconds, np.float64)
    if not len(b):
        raise PagesimError("no measurement to fit decode attention to")
    plain = np.stack([np.ones(len(b)), b, c], 1).astype(np.float64)
    best: tuple[float, int, Floats] | None = None
    for slots in tried:
        features = plain
        if slots:
            cuts = [
                _rounds(one, whole // one, slots, kv_heads)
                for one, whole in zip(b.tolist(), c.tolist(), strict=True)
            ]
            rounds, splits = np.array(cuts, np.float64).T
            features = np.column_stack([plain, rounds * c / (b * splits)])
        found = non_negative(features, y)
        error = float(np.square(features @ found / y - 1).sum())
        # More parameters must be worth it.
        if best is None or error < 0.98 * best[0]:
            best = error, slots, found
    assert best is not None
    _, slots, found = best
    launch, sequence, a_token, *a_round = found.tolist()
    return DecodeAttention(
        launch_s=launch,
        sequence_s=sequence,
        context_s=a_token,
        round_s=a_round[0] if slots else 0.0,
        slots=slots,
        kv_heads=kv_heads,
    )


class PrefillAttention(Strict):
    """Seconds of one iteration's prompts in attention, all layers.

    launch + token·tokens + pair·pairs + key·(pairs / tokens): the last is a program's own chain of loads,
    over as many keys as a token attends to, and counts where a short chunk follows a long context.

    Attributes:
        launch_s: of an iteration with a prompt.
        token_s: a token of a prompt.
        pair_s: a query and a key that it attends to.
        key_s: a key, of those that a token attends to on average.
    """

    launch_s: Seconds
    token_s: Seconds
    pair_s: Seconds
    key_s: Seconds

    def __call__(self, tokens: int, pairs: int) -> float:
        """Return the seconds of so many new tokens that attend to so many pairs."""
        if not tokens:
            return 0.0
        return self.launch_s + self.token_s * tokens + self.pair_s * pairs + self.key_s * pairs / tokens


def fit_prefill(tokens: Counts, pairs: Counts, seconds: Sequence[float]) -> PrefillAttention:
    """Fit prefill attention to measurements, by least squares of relative errors.

    Args:
        tokens: new ones, ``[N]``.
        pairs: of a query and a key, ``[N]``.
        seconds: of all layers, ``[N]``, above 0.

    Raises:
        PagesimError: nothing was measured, or scipy is not installed.
    """
    if not len(tokens):
        raise PagesimError("no measurement to fit prefill attention to")
    t, p = np.asarray(tokens, np.float64), np.asarray(pairs, np.float64)
    features = np.stack([np.ones(len(t)), t, p, p / t], 1)
    launch, token, pair, key = non_negative(features, np.asarray(seconds, np.float64)).tolist()
    return PrefillAttention(launch_s=launch, token_s=token, pair_s=pair, key_s=key)
