"""Handover: from counts of what requests turned over to a cache in which contents are found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from pagesim.kvcache.base import KVCache
from pagesim.kvcache.hybrid.counted_prefix import CountedHybridPrefixKV
from pagesim.kvcache.hybrid.decoders import Kept
from pagesim.kvcache.hybrid.free import STEP
from pagesim.kvcache.hybrid.piece import Piece
from pagesim.kvcache.hybrid.stores import WindowStore
from pagesim.kvcache.hybrid.turnover import Life, Turnover
from pagesim.kvcache.runs import Run

_Pushed = tuple[int, int, int, Piece | Run]
"""When blocks were given back, see `Queued.at`; in which order at that time; in which store; and which."""


def hand_over(turnover: Turnover, before: KVCache, memory: CountedHybridPrefixKV) -> None:
    """Let memory go on where another one stands, of which no content has been looked up.

    Args:
        turnover: of that one.
        before: that one.
        memory: empty.
    """
    memory.steps, memory.lag = before.steps, before.lag
    turnover.settle(before.steps)
    pushed: list[_Pushed] = []
    for life, steps, place in zip(turnover.kept, *turnover.ended.tolist(), strict=True):
        tables = _tables(life, memory)
        pushed += _given_back(life, tables, memory, turnover)
        pushed += _dropped(tables, memory, steps, place)
    for life in turnover.lives.values():
        tables = _tables(life, memory)
        pushed += _given_back(life, tables, memory, turnover)
        _hold(life, tables, memory, turnover)
    pool = memory.pool
    there = 0
    for at, _, _, blocks in sorted(pushed, key=lambda each: each[:3]):
        pool.at = at
        pool.push(blocks)
        there += _size(blocks)
    pool.let_pass(before.steps)
    assert there >= turnover.cached, "what can be found was kept"
    if there > turnover.cached:
        pool.evict(there - turnover.cached)
    memory.begin_with(turnover.cached, before.free_blocks)
    for holder in turnover.lives:
        if holder.decodes:
            memory.go_on_decoding(holder)


def _tables(life: Life, memory: CountedHybridPrefixKV) -> list[Any]:
    """Return a table of each store for a holder, with all that can be found, even if it is not there."""
    holder = life.holder
    tables: list[Any] = [store.new_table(holder, holder.content) for store in memory.stores]
    if life.registered:
        for store, table in zip(memory.stores, tables, strict=True):
            store.register(table, holder.content, life.registered)
    return tables


def _given_back(
    life: Life, tables: list[Any], memory: CountedHybridPrefixKV, turnover: Turnover
) -> Iterator[_Pushed]:
    """Take out of a holder's tables what its windows gave back; yield what of it can be found."""
    windows = [
        (store, table)
        for store, table in zip(memory.stores, tables, strict=True)
        if isinstance(store, WindowStore)
    ]
    back: list[tuple[int, int, int, int, int]] = []
    for before, after, known, first, second, third, in_steps in life.given:
        for each in turnover.windows:
            low, high = map(int, each.findable(np.array(life.prompt)))
            start, end = each.released(np.array([before, after])).tolist()
            start, end = max(start, low), min(end, high, known)
            if start >= end:
                continue
            if not in_steps:
                back.append((each.number, start, end, first * STEP + STEP - 1, second))
                continue
            places = np.arange(start, end)
            steps = turnover.given_back_at(each, places, first, second, third)
            for step in np.unique(steps):
                of_step = places[steps == step]
                at = int(step) * STEP + life.holder.order
                back.append((each.number, int(of_step[0]), int(of_step[-1]) + 1, at, 0))
    for number, start, end, at, order in sorted(back):
        yield from _cut(*windows[number], start, end, at, order)


def _cut(store: WindowStore, table: Any, start: int, end: int, at: int, order: int) -> Iterator[_Pushed]:
    """Take the places from one to another, the first that are left, out of a table."""
    (piece,) = table.pieces
    assert piece.start == start, "places are given back in their order"
    if end < start + piece.count:
        store.index.cut(piece, end)
    table.pieces.remove(piece)
    piece.tables.remove(table)
    yield at, order, store.kind.number, piece


def _dropped(tables: list[Any], memory: CountedHybridPrefixKV, steps: int, order: int) -> Iterator[_Pushed]:
    """Yield what can be found of what a former holder gave back at its end, see `Turnover.ended`."""
    at = steps * STEP + STEP - 1
    for store, table in zip(memory.stores, tables, strict=True):
        if isinstance(store, WindowStore):
            for piece in table.pieces:
                piece.tables.remove(table)
                yield at, order, store.kind.number, piece
        else:
            for run in table.runs:
                run.holders.remove(table)
                yield at, order, store.kind.number, run


def _hold(life: Life, tables: list[Any], memory: CountedHybridPrefixKV, turnover: Turnover) -> None:
    """Let a holder have what it has."""
    holder = life.holder
    if holder.decodes and memory.steps > life.since:
        holder.in_flight = memory.lag
    end = -(-memory.length(holder) // memory.block_size)
    gone = {each.first: int(each.released(np.array(life.processed))) for each in turnover.windows}
    for store, table in zip(memory.stores, tables, strict=True):
        if isinstance(store, WindowStore):
            table.gone = gone[store.kind.number]
            memory.count_held(store.numbers, end - table.gone)
        else:
            memory.count_held([store.kind.number], end)
    holder.kv = kept = Kept(tables, holder.content, len(turnover.windows))
    kept.registered = life.registered


def _size(blocks: Piece | Run) -> int:
    return blocks.count * (blocks.last - blocks.first if isinstance(blocks, Piece) else 1)
