"""What attention of an iteration checks: its batch once, for any number of layers, and no cache at all."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pagesim import PagesimError  # noqa: E402
from pagesim.device.live.batch import Columns, Staging  # noqa: E402
from pagesim.device.live.cached_attention import CachedAttention  # noqa: E402
from pagesim.device.live.pools import KvPools  # noqa: E402
from pagesim.kernels import cache, cache_ops, checks, ops  # noqa: E402
from pagesim.models import ModelSpec  # noqa: E402

CPU = torch.device("cpu")
SHAPE = {"hidden": 128, "ffn": 192, "heads": 4, "kv_heads": 2, "head_dim": 64, "vocab": 100}
CHECKS = [name for name in vars(checks) if name.startswith("check_")]


def pools_of(layers: int) -> KvPools:
    spec = ModelSpec("small", layers=layers, **SHAPE, max_model_len=64, source="a test")
    room = {"num_blocks": 12, "host_blocks": 4, "block_size": 16, "dtype": torch.float32, "device": CPU}
    return KvPools(spec, **room)


def batch_of(lengths: list[int], new: list[int]):
    """Return sequences of these lengths, two blocks each, those with one new token first."""
    tables = np.zeros((len(new), 16), np.int32)
    tables[:, :2] = np.arange(2 * len(new)).reshape(-1, 2)
    positions = np.concatenate([np.arange(n - k, n) for n, k in zip(lengths, new, strict=True)])
    rows = np.repeat(np.arange(len(new)), new)
    slots = tables[rows, positions // 16].astype(np.int64) * 16 + positions % 16
    columns = (np.zeros(sum(new), np.int64), positions, slots, tables, np.array(lengths), np.array(new))
    return Staging(CPU).put(Columns(*columns, sum(each == 1 for each in new)))


def attend(pools: KvPools) -> None:
    batch = batch_of([20, 17, 9], [1, 1, 5])
    attention = CachedAttention(pools, batch)
    for layer in range(len(pools.caches)):
        attention(layer, torch.randn(7, 4, 64), *torch.randn(2, 7, 2, 64))


@pytest.fixture
def counted(monkeypatch) -> Counter[str]:
    """Count the calls of every check from now on."""
    calls: Counter[str] = Counter()

    def counting(name, right):
        def check(*arguments, **options):
            calls[name] += 1
            return right(*arguments, **options)

        return check

    for module in (checks, cache, cache_ops, ops):
        for name in CHECKS:
            if hasattr(module, name):
                monkeypatch.setattr(module, name, counting(name, getattr(module, name)))
    return calls


def test_a_batch_is_checked_once_and_no_layer(counted):
    each = []
    for layers in (1, 2, 7):
        pools = pools_of(layers)
        counted.clear()
        attend(pools)
        counted.pop("check_out", None)  # makes what is not given; it looks at nothing unless it is told to
        each.append(dict(counted))
    assert each[0] == each[1] == each[2]
    assert each[0]["check_batch"] == 2, "decodes and prompts"


def test_paged_caches_are_checked_when_they_are_made_and_not_again(counted):
    pools = pools_of(3)
    assert counted["check_fp8"] == 3  # once a cache
    assert counted["check_blocks"] == 2  # for copies and for swaps
    counted.clear()
    attend(pools)
    pools.copy([(0, 7)])
    pools.swap_out([(0, 1)])
    pools.swap_in([(1, 3)])
    assert not counted["check_fp8"]
    assert not counted["check_blocks"]


def test_a_batch_that_is_off_is_refused_in_the_first_layer():
    pools = pools_of(2)
    attention = CachedAttention(pools, batch_of([20], [1]))
    with pytest.raises(PagesimError, match="q has 3 heads; a multiple of the cache's 2 is needed"):
        attention(0, torch.randn(1, 3, 64), *torch.randn(2, 1, 2, 64))
