"""Rings count what sequences that are written out token by token take."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pagesim.kvcache.ring import Buckets, Ring
from pagesim.kvcache.sequence_group import SequenceGroup

SIZES = st.sampled_from([1, 2, 3, 4, 6])
PERIOD = 12
SEQUENCES = st.lists(st.tuples(st.integers(-40, 40), st.integers(1, 4), SIZES), max_size=5)
"""(base, blocks, block size) of each."""


def opens(base: int, block_size: int, step: int) -> bool:
    """Say whether a sequence opens a block in a step, which gives it a token."""
    return (base + step - 1) % block_size == 0


def taken(sequences: list[tuple[int, int, int]], step: int) -> int:
    return sum(blocks * opens(base, size, step) for base, blocks, size in sequences)


@given(SEQUENCES, SEQUENCES, st.integers(0, 30), st.integers(0, 40), st.integers(-5, 200))
def test_a_ring_counts_what_is_in_it(
    stay: list[tuple[int, int, int]],
    leave: list[tuple[int, int, int]],
    after: int,
    steps: int,
    room: int,
) -> None:
    ring = Ring(PERIOD)
    for sequence in (*stay, *leave):
        ring.enter(*sequence)
    for sequence in leave:
        ring.leave(*sequence)
    each = [taken(stay, step) for step in range(after + 1, after + steps + 1)]
    assert [ring.at(step) for step in range(after + 1, after + steps + 1)] == each
    assert ring.total(after, steps) == sum(each)
    assert ring.in_turn(after) == [taken(stay, after + step) for step in range(1, PERIOD + 1)]
    assert ring.whole == sum(ring.counts)
    fit = 0 if room < 0 else max(n for n in range(steps + 1) if sum(each[:n]) <= room)
    assert ring.steps_that_fit(after, steps, room) == fit


def test_holders_of_a_bucket_come_in_their_order() -> None:
    buckets, requests = Buckets(4), [SequenceGroup(1) for _ in range(3)]
    for order, request in enumerate(requests):
        request.order = order
    first, second, third = requests
    buckets.enter(third, (1, 3))
    buckets.enter(first, (1,))
    buckets.enter(second, (3,))
    assert [list(buckets.at(step)) for step in (4, 5, 7)] == [[], [first, third], [second, third]]
    assert set(buckets.requests()) == set(requests)
    buckets.leave(third)
    assert set(buckets.requests()) == {first, second}
    assert [list(buckets.at(step)) for step in (5, 7)] == [[first], [second]]
