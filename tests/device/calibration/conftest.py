"""A device whose costs are known: live's own primitives advance a clock, and nothing else takes any time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from pagesim.device.calibration.points import CalibrationGrid


@dataclass(frozen=True)
class Costs:
    """Seconds of each part of an iteration, all layers."""

    linear: Callable[[int], float] = lambda tokens: 1e-3 + 20e-6 * tokens
    head: Callable[[int], float] = lambda sequences: 2e-4 + 5e-6 * sequences
    write: Callable[[int], float] = lambda tokens: 5e-5 + 1e-6 * tokens
    decode: Callable[[int, int], float] = lambda batch, context: 3e-4 + 4e-5 * batch + 5e-7 * context
    prefill: Callable[[int, int], float] = lambda tokens, pairs: 4e-4 + 3e-6 * tokens + 1e-8 * pairs
    copy: Callable[[int], float] = lambda blocks: 3e-5 + 1e-5 * blocks
    swap_out: Callable[[int], float] = lambda blocks: 1e-4 + 3e-5 * blocks
    swap_in: Callable[[int], float] = lambda blocks: 2e-4 + 5e-5 * blocks
    overhead: Callable[[int], float] = lambda sequences: 7e-4 + 1e-5 * sequences


SMALL = CalibrationGrid(
    tokens=(1, 2, 4, 8, 16, 32, 64, 128, 256),
    sequences=(1, 2, 4, 8, 16, 32),
    batches=(1, 2, 4, 8, 16, 32),
    contexts=(16, 32, 64, 128),
    prompts=((1, 8), (1, 32), (1, 128), (2, 16), (2, 64), (4, 32)),
    chunks=((16, 64), (16, 128), (64, 128)),
    blocks=(1, 2, 4, 8, 16),
    iterations=(1, 2, 4, 8, 16, 32),
)
"""Enough to tell every coefficient of every term."""


class FakeDevice:
    """A clock in whole nanoseconds, moved by what is computed."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self.now = 0

    def take(self, seconds: float) -> None:
        self.now += round(seconds * 1e9)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let live's primitives and the bench's cost what they cost here, and all clocks show this one."""
        import torch

        from pagesim.device.live import batch, cached_attention, clock, executor
        from pagesim.device.live.model import Model
        from pagesim.device.live.pools import KvPools
        from pagesim.kernels import timing
        from pagesim.kernels.bench import attention as bench_attention
        from pagesim.kernels.bench import block_moves, cache_write, swap
        from pagesim.kernels.bench.session import Session

        costs = self.costs
        shown = SimpleNamespace(perf_counter=lambda: self.now / 1e9, perf_counter_ns=lambda: self.now)
        for module in (timing, clock, executor):
            monkeypatch.setattr(module, "time", shown)

        def hidden(model: Any, tokens: Any, positions: Any, attend: Any) -> Any:
            self.take(costs.linear(len(tokens)))
            spec = model.spec
            queries = torch.zeros(len(tokens), spec.heads, spec.head_dim)
            keys = torch.zeros(len(tokens), spec.kv_heads, spec.head_dim)
            for layer in range(spec.layers):
                attend(layer, queries, keys, keys)
            return torch.zeros(len(tokens), spec.hidden)

        def logits(model: Any, x: Any, last: Any, out: Any = None) -> Any:
            self.take(costs.head(len(last)))
            return torch.zeros(len(last), model.spec.vocab)

        monkeypatch.setattr(Model, "hidden", hidden)
        monkeypatch.setattr(Model, "logits", logits)
        layers = 2  # of the tiny model

        reshape_and_cache = cached_attention.reshape_and_cache
        paged_attention = cached_attention.paged_attention

        def write(keys: Any, *others: Any, **how: Any) -> None:
            reshape_and_cache(keys, *others, **how)
            self.take(costs.write(len(keys)) / layers)

        def attention(
            queries: Any, cache: Any, tables: Any, lengths: Any, starts: Any = None, **how: Any
        ) -> Any:
            if starts is None:
                self.take(costs.decode(len(queries), int(lengths.sum())) / layers)
            else:
                new = starts.diff()
                pairs = int((new * (lengths - new) + new * (new + 1) // 2).sum())
                self.take(costs.prefill(len(queries), pairs) / layers)
            return paged_attention(queries, cache, tables, lengths, starts, **how)

        for module in (cached_attention, cache_write):
            monkeypatch.setattr(module, "reshape_and_cache", write)
        for module in (cached_attention, bench_attention):
            monkeypatch.setattr(module, "paged_attention", attention)
        for name in ("copy", "swap_out", "swap_in"):
            cost = getattr(costs, name)
            monkeypatch.setattr(KvPools, name, lambda pools, pairs, cost=cost: self.take(cost(len(pairs))))
        copy_blocks, start = block_moves.copy_blocks, swap.start

        def copied(pool: Any, pairs: Any) -> None:
            copy_blocks(pool, pairs)
            self.take(costs.copy(len(pairs)))

        def swapped(strategy: Any, point: Any, pairs: Any) -> Any:
            self.take((costs.swap_out if point["direction"] == "out" else costs.swap_in)(len(pairs)))
            return start(strategy, point, pairs)

        monkeypatch.setattr(block_moves, "copy_blocks", copied)
        monkeypatch.setattr(swap, "start", swapped)
        # What this clock does not time takes no time, and would be repeated for ever.
        monkeypatch.setattr(Session, "reference_gb_per_s", lambda session, reference: 1.0)
        monkeypatch.setattr(Session, "peak_tflop_per_s", 1.0)
        put = batch.Staging.put

        def staged(staging: Any, columns: Any) -> Any:
            self.take(costs.overhead(len(columns.new)))
            return put(staging, columns)

        monkeypatch.setattr(batch.Staging, "put", staged)


@pytest.fixture
def small_grid(monkeypatch: pytest.MonkeyPatch) -> CalibrationGrid:
    """Let a calibration measure a small grid, once."""
    from pagesim.device.calibration import calibrating

    monkeypatch.setattr(calibrating, "grid_for", lambda device, quick: SMALL)
    monkeypatch.setattr(calibrating, "TURNS", 1)
    return SMALL


@pytest.fixture
def fake_device(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeDevice]:
    """Return a function that puts a fake device of known costs in place of the CPU."""

    def install(**costs: Any) -> FakeDevice:
        device = FakeDevice(Costs(**costs))
        device.install(monkeypatch)
        return device

    return install
