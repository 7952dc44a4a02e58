"""A balance knows how many blocks are missing at most as sequences give back and take, one after another."""

from __future__ import annotations

from random import Random

from pagesim.kvcache.hybrid.balance import Balance


def lowest(changes: dict[int, int]) -> int:
    """Return the least that is left on the way of 0 and these changes, in their order."""
    left = least = 0
    for order in sorted(changes):
        left += changes[order]
        least = min(least, left)
    return least


def test_the_least_is_that_of_the_changes_in_their_order_whatever_came_and_went() -> None:
    for seed in range(200):
        rnd = Random(seed)
        balance, changes = Balance(), dict[int, int]()
        for _ in range(60):
            order = rnd.randrange(30)
            if order in changes:
                balance.remove(order)
                del changes[order]
            else:
                changes[order] = rnd.choice((-3, -2, 1, 2, 4))
                balance.add(order, changes[order])
            assert (balance.least, balance.total) == (lowest(changes), sum(changes.values()))
            once = {30 + rnd.randrange(5): rnd.randint(1, 3), -1: -rnd.randint(0, 2)}
            before = balance.copy()
            balance.add(40, 5)
            assert before.least_with(once.items()) == lowest({**changes, **once})
            balance.remove(40)
