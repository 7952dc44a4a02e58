"""Names of a prompt's blocks made from its tokens: alike where all tokens up to a block's end are."""

from __future__ import annotations

from collections.abc import Sequence


def named(prompts: Sequence[Sequence[int]], block_size: int) -> list[tuple[int, ...]]:
    """Return names of each prompt's full blocks: alike where all tokens up to a block's end are."""
    names: dict[tuple[int, tuple[int, ...]], int] = {}
    found = []
    for tokens in prompts:
        before, own = -1, []
        for start in range(0, len(tokens) // block_size * block_size, block_size):
            before = names.setdefault((before, tuple(tokens[start : start + block_size])), len(names))
            own.append(before)
        found.append(tuple(own))
    return found
