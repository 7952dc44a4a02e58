"""From a file that is good to one that need not be. All randomness is the caller's."""

from __future__ import annotations

import random
from collections.abc import Callable

from structured_mutators import deep, json_value, parquet_bomb, parquet_columns
from text_mutators import (
    flip_bits,
    insert,
    move_chunk,
    nasty_number,
    nasty_word,
    other_encoding,
    other_magic,
    remove_chunk,
    repeat_chunk,
    shuffle_lines,
    swap_columns,
    truncate,
)  # fmt: skip

Mutator = Callable[[bytes, random.Random], bytes]

BYTES: tuple[Mutator, ...] = (
    flip_bits, flip_bits, truncate, remove_chunk, repeat_chunk, move_chunk, insert, other_magic,
)  # fmt: skip
TEXT: tuple[Mutator, ...] = (*BYTES, other_encoding, *[nasty_number] * 4, *[nasty_word] * 2, shuffle_lines)
CSV: tuple[Mutator, ...] = (*TEXT, *[swap_columns] * 4)
JSON: tuple[Mutator, ...] = (*TEXT, *[json_value] * 10, deep)
TOML: tuple[Mutator, ...] = (*TEXT, deep)
PARQUET: tuple[Mutator, ...] = (*BYTES, *[parquet_columns] * 6)

BOMB_EVERY = 400
"""A bomb takes a second to make and to refuse: one in so many mutations of a binary file."""

LARGEST_BYTES = 1_000_000
"""A file that a mutation makes larger is left as it was: seconds would go into reading brackets."""


def mutate(name: str, data: bytes, rng: random.Random) -> bytes:
    """Return a mutation of a file; the name's suffix says what it is."""
    kind = name.rpartition(".")[2]
    mutators = {"csv": CSV, "json": JSON, "jsonl": JSON, "toml": TOML, "parquet": PARQUET}.get(kind, BYTES)
    if kind == "parquet" and rng.random() < 1 / BOMB_EVERY:
        return parquet_bomb(data, rng)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        changed = rng.choice(mutators)(data, rng)
        data = changed if len(changed) <= max(len(data), LARGEST_BYTES) else data
    return data
