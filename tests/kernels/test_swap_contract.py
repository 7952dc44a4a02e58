"""Every swap strategy that runs on the CPU keeps one contract: named blocks arrive, nothing else moves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pagesim.errors import PagesimError  # noqa: E402
from pagesim.kernels.requirements import Unavailable  # noqa: E402
from pagesim.kernels.swap import (  # noqa: E402
    STRATEGIES,
    CopyBatch,
    CopyEach,
    GatherCopy,
    Pools,
    make_strategy,
)
from pagesim.kvcache import Full, KVGroup, PagedManager, SequenceGroup  # noqa: E402

ON_CPU = [name for name in STRATEGIES if name != CopyBatch.name]
POISON = 0xAB


def make_pools(seed: int, shape: tuple[int, ...], dtype: torch.dtype, pieces: int, host_blocks: int) -> Pools:
    """Return caches of random bytes (NaNs among them) and a poisoned host pool."""
    generator = torch.Generator().manual_seed(seed)
    size = (*shape[:-1], shape[-1] * dtype.itemsize)
    caches = [torch.randint(0, 256, size, generator=generator, dtype=torch.uint8) for _ in range(pieces)]
    pools = Pools.beside([cache.view(dtype) for cache in caches], host_blocks)
    pools.host.fill_(POISON)
    return pools


def whole_blocks(pools: Pools) -> torch.Tensor:
    """Return a copy of the device's blocks as the host holds them, ``[device_blocks, P, piece_bytes]``."""
    return torch.stack(pools.rows(), 1)


def random_ids(seed: int, count: int, below: int) -> list[int]:
    return torch.randperm(below, generator=torch.Generator().manual_seed(seed))[:count].tolist()


SHAPES = {
    "one piece of 16 bytes": ((5, 8), torch.float16, 1),
    "keys and values": ((33, 16, 2, 64), torch.float16, 2),
    "four layers": ((12, 4, 1, 80), torch.bfloat16, 8),
    "float32": ((9, 1, 3, 64), torch.float32, 3),
    "fp8": ((20, 2, 4, 32), torch.float8_e4m3fn, 2),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ON_CPU)
def test_blocks_go_out_and_come_back_elsewhere(name, shape):
    size, dtype, pieces = SHAPES[shape]
    pools = make_pools(1, size, dtype, pieces, host_blocks=size[0] + 3)
    before = whole_blocks(pools)
    strategy = make_strategy(name, pools)
    count = size[0] // 2
    device, host = random_ids(2, count, pools.device_blocks), random_ids(3, count, pools.host_blocks)

    strategy.swap_out(list(zip(device, host, strict=True))).wait()

    assert torch.equal(pools.host[host], before[device])
    untouched = [block for block in range(pools.host_blocks) if block not in host]
    assert (pools.host[untouched] == POISON).all()
    assert torch.equal(whole_blocks(pools), before), "the source is only read"

    for cache in pools.rows():
        cache.fill_(POISON)
    elsewhere = random_ids(4, count, pools.device_blocks)
    strategy.swap_in(list(zip(host, elsewhere, strict=True))).wait()

    after = whole_blocks(pools)
    assert torch.equal(after[elsewhere], before[device])
    untouched = [block for block in range(pools.device_blocks) if block not in elsewhere]
    assert (after[untouched] == POISON).all()


@pytest.mark.parametrize("staging_blocks", [1, 2, 5, 100])
def test_gathering_in_a_small_buffer_is_the_same(staging_blocks):
    pools = make_pools(5, (16, 8, 8), torch.float16, 3, host_blocks=16)
    before = whole_blocks(pools)
    strategy = GatherCopy(pools, staging_bytes=staging_blocks * pools.block_bytes)
    device, host = random_ids(6, 11, 16), random_ids(7, 11, 16)
    strategy.swap_out(list(zip(device, host, strict=True)))
    assert torch.equal(pools.host[host], before[device])
    strategy.swap_in([(h, 15 - d) for d, h in zip(device, host, strict=True)])
    assert torch.equal(whole_blocks(pools)[[15 - d for d in device]], before[device])


def test_neighbours_on_the_host_cross_in_one_copy(monkeypatch):
    pools = make_pools(8, (16, 8), torch.float16, 2, host_blocks=32)
    crossings = []
    copy = torch.Tensor.copy_

    def counted(target: torch.Tensor, source: torch.Tensor, **how: bool) -> torch.Tensor:
        crossings.append(len(target))
        return copy(target, source, **how)

    strategy = GatherCopy(pools)
    monkeypatch.setattr(torch.Tensor, "copy_", counted)
    strategy.swap_out([(0, 7), (9, 5), (3, 6), (1, 20), (2, 31), (4, 30), (5, 0)])
    assert crossings == [1, 3, 1, 2]


@pytest.mark.parametrize("name", ON_CPU)
def test_a_memorys_own_moves_are_taken_as_they_are(name):
    memory = PagedManager(8, [KVGroup(16, Full())], 8, tables=True)
    assert memory.tables is not None
    memory.tables.notes_moves = True
    pools = make_pools(9, (8, 16, 8), torch.float16, 2, host_blocks=8)
    strategy = make_strategy(name, pools)
    leaves, moves, comes = SequenceGroup(40), SequenceGroup(20), SequenceGroup(16)
    memory.admit(leaves, 40)
    memory.admit(moves, 20)
    memory.release(leaves)
    kept = whole_blocks(pools)[memory.block_table(moves)]
    memory.swap_out(moves)
    strategy.swap_out(memory.tables.swaps_out)
    for cache in pools.rows():
        cache.fill_(POISON)
    memory.admit(comes, 16)
    memory.swap_in(moves)
    strategy.swap_in(memory.tables.swaps_in)
    assert torch.equal(whole_blocks(pools)[memory.block_table(moves)], kept)


OUT_OF_RANGE = {
    "swap_out": [
        ([(0, 0), (4, 1)], "copies[1]: device block is 4; it must be from 0 to 3"),
        ([(0, 6)], "copies[0]: host block is 6; it must be from 0 to 5"),
        ([(0, 1), (1, 0), (0, 2)], "copies[2]: device block 0 is named twice"),
        ([(0, 5), (1, 5)], "copies[1]: host block 5 is named twice"),
        ([(0, 1, 2), (3, 0, 1)], "copies[0] is (0, 1, 2); a pair of block ids, (from, to), is needed"),
        ((0, 1), "copies[0] is 0; a pair of block ids, (from, to), is needed"),
        ([(0, 1), (1, "2")], "copies[1] is (1, '2'); a pair of block ids, (from, to), is needed"),
        ([(0, 2**64)], "copies[0]: host block is 18446744073709551616; it must be from 0 to 5"),
    ],
    "swap_in": [
        ([(6, 0)], "copies[0]: host block is 6; it must be from 0 to 5"),
        ([(5, 4)], "copies[0]: device block is 4; it must be from 0 to 3"),
        ([(0, 2), (1, 2)], "copies[1]: device block 2 is named twice"),
    ],
}


@pytest.mark.parametrize("direction", OUT_OF_RANGE)
@pytest.mark.parametrize("name", ON_CPU)
def test_bad_blocks_are_named_and_nothing_moves(name, direction):
    pools = make_pools(11, (4, 8), torch.float16, 2, host_blocks=6)
    before = whole_blocks(pools)
    strategy = make_strategy(name, pools)
    for copies, said in OUT_OF_RANGE[direction]:
        with pytest.raises(PagesimError) as error:
            getattr(strategy, direction)(copies)
        assert said in str(error.value)
    assert (pools.host == POISON).all()
    assert torch.equal(whole_blocks(pools), before)


def test_an_unknown_strategy_is_named_with_those_there_are():
    pools = make_pools(12, (4, 8), torch.float16, 1, host_blocks=4)
    with pytest.raises(PagesimError, match="strategy is 'dma'; it must be one of copy-each, "):
        make_strategy("dma", pools)


def test_batched_copies_say_that_they_need_a_gpu():
    pools = make_pools(13, (4, 8), torch.float16, 1, host_blocks=4)
    with pytest.raises(Unavailable, match="strategy copy-batch: batched copies need a CUDA GPU"):
        make_strategy("copy-batch", pools)


def test_pieces_that_a_kernel_cannot_move_are_refused():
    pools = make_pools(14, (4, 3), torch.float16, 1, host_blocks=4)
    with pytest.raises(PagesimError, match="a piece is 6 bytes; it must be a multiple of 16"):
        GatherCopy(pools)


def bytes_of(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.uint8)


POOLS = {
    "nothing": ((), bytes_of(2, 1, 16), "caches is empty"),
    "strides": ((bytes_of(4, 32)[:, ::2],), bytes_of(2, 1, 16), "caches[0] must be contiguous"),
    "sizes": ((bytes_of(4, 16), bytes_of(5, 16)), bytes_of(2, 2, 16), "caches[1] is uint8 [5, 16] on cpu"),
    "host shape": ((bytes_of(4, 16),), bytes_of(2, 16), "host must be contiguous uint8 [host_blocks, 1, 16]"),
    "host dtype": ((bytes_of(4, 16),), torch.zeros(2, 1, 16), "it is float32 [2, 1, 16]"),
}


@pytest.mark.parametrize("case", POOLS)
def test_pools_that_do_not_fit_together_are_refused(case):
    caches, host, said = POOLS[case]
    with pytest.raises(PagesimError) as error:
        Pools(caches, host)
    assert said in str(error.value)


def test_on_a_gpu_a_swap_runs_on_a_stream_of_its_own(monkeypatch):
    log = []

    class Event:
        def record(self, stream: object) -> None:
            log.append(("record", stream))

        def synchronize(self) -> None:
            log.append("wait for the event")

        def query(self) -> bool:
            return False

    class Stream:
        def wait_stream(self, other: object) -> None:
            log.append(("wait for", other))

        def wait_event(self, event: object) -> None:
            log.append("the current stream waits")

    @contextmanager
    def on(stream: object) -> Iterator[None]:
        log.append(("on", stream))
        yield
        log.append("off")

    current = Stream()
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: current)
    pools = make_pools(16, (4, 8), torch.float16, 1, host_blocks=4)
    strategy = CopyEach(pools)
    monkeypatch.setattr(strategy, "move", lambda *_: log.append("move"))
    strategy.stream = own = Stream()

    transfer = strategy.swap_out([(0, 1)])
    assert log == [("wait for", current), ("on", own), "move", ("record", own), "off"]
    assert not transfer.done
    transfer.join()
    transfer.wait()
    assert log[-2:] == ["the current stream waits", "wait for the event"]
