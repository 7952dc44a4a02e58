"""Swaps layer by layer: what has arrived when a layer is joined, what it waits for, and that all arrives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pagesim.errors import PagesimError  # noqa: E402
from pagesim.kernels.swap import STRATEGIES, CopyBatch, CopyEach, LayerSwap, Pools, make_strategy  # noqa: E402

ON_CPU = [name for name in STRATEGIES if name != CopyBatch.name]
BLOCKS, PIECES, POISON = 12, 8, 0xAB


def make_pools() -> Pools:
    """Return caches and a host pool of random bytes."""
    random = torch.Generator().manual_seed(0)
    caches = [torch.randint(0, 256, (BLOCKS, 32), generator=random, dtype=torch.uint8) for _ in range(PIECES)]
    pools = Pools.beside(caches, BLOCKS)
    pools.host.copy_(torch.randint(0, 256, pools.host.shape, generator=random, dtype=torch.uint8))
    return pools


def device_of(pools: Pools) -> torch.Tensor:
    """Return the device's blocks, ``[blocks, pieces, bytes]``."""
    return torch.stack(pools.rows(), 1)


OUT = [(3, 7), (5, 8), (4, 1)]
BACK = [(0, 5), (2, 9), (10, 3)]
"""Blocks 3 and 5 of the device leave, and others come into their place."""


@pytest.mark.parametrize("layers", [1, 2, 4, 8])
@pytest.mark.parametrize("name", ON_CPU)
def test_all_layers_together_are_a_swap_out_and_then_one_in(name, layers):
    whole, parts = make_pools(), make_pools()
    strategy = make_strategy(name, whole)
    strategy.swap_out(OUT)
    strategy.swap_in(BACK)
    swap = LayerSwap(make_strategy(name, parts), layers, out=OUT, back=BACK)
    swap.join_all()
    assert swap.done
    assert torch.equal(parts.host, whole.host)
    assert torch.equal(device_of(parts), device_of(whole))


@pytest.mark.parametrize("ahead", [0, 1, 2, 7])
def test_a_layer_that_is_joined_has_arrived_and_as_many_ahead_are_under_way(ahead):
    pools = make_pools()
    for cache in pools.rows():
        cache.fill_(POISON)
    swap = LayerSwap(CopyEach(pools), 4, back=[(2, 9)], ahead=ahead)
    wanted = pools.host[2].view(4, -1)  # a row a layer
    for layer in range(4):
        swap.join(layer)
        arrived = (device_of(pools)[9].view(4, -1) == wanted).all(dim=1)
        begun = min(4, layer + 1 + ahead)
        assert arrived.tolist() == [True] * begun + [False] * (4 - begun)
        assert swap.done == (begun == 4)


def test_layers_may_be_left_out():
    pools = make_pools()
    swap = LayerSwap(CopyEach(pools), 4, back=[(2, 9)], ahead=0)
    swap.join(2)
    assert torch.equal(device_of(pools)[9, :6], pools.host[2, :6])
    swap.join(1)
    assert not swap.done


@pytest.fixture
def log(monkeypatch) -> list[str]:
    """Return what is asked of streams and events, in order, by a strategy that believes it has a stream."""
    said: list[str] = []

    class Event:
        made = 0

        def __init__(self) -> None:
            self.number = Event.made
            Event.made += 1

        def record(self, stream: Stream) -> None:
            said.append(f"record {self.number} on {stream.name}")

        def synchronize(self) -> None:
            said.append(f"wait for {self.number}")

        def query(self) -> bool:
            return False

    class Stream:
        def __init__(self, name: str) -> None:
            self.name = name

        def wait_stream(self, other: Stream) -> None:
            said.append(f"{self.name} waits for what {other.name} holds")

        def wait_event(self, event: Event) -> None:
            said.append(f"{self.name} waits for {event.number}")

    current = Stream("compute")

    @contextmanager
    def on(_: Stream) -> Iterator[None]:
        yield

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: current)
    init = CopyEach.__init__

    def with_a_stream(self, pools):
        init(self, pools)
        self.stream = Stream("copies")

    monkeypatch.setattr(CopyEach, "__init__", with_a_stream)
    monkeypatch.setattr(
        CopyEach, "move", lambda _, way, blocks, pieces: said.append(f"{way} {pieces.start}:{pieces.stop}")
    )
    return said


def test_a_layer_waits_for_its_own_copies_alone(log):
    """Copies of the next layer are under way before a layer is computed, and compute delays none of them."""
    swap = LayerSwap(CopyEach(make_pools()), 4, out=OUT, back=BACK, ahead=1)
    for layer in range(4):
        swap.join(layer)
        log.append(f"layer {layer}")
    swap.wait()
    first = ["copies waits for what compute holds", "out 0:2", "in 0:2", "record 0 on copies"]
    assert log == [
        *first, "compute waits for 0",
        "out 2:4", "in 2:4", "record 1 on copies", "layer 0",
        "compute waits for 1",
        "out 4:6", "in 4:6", "record 2 on copies", "layer 1",
        "compute waits for 2",
        "out 6:8", "in 6:8", "record 3 on copies", "layer 2",
        "compute waits for 3", "layer 3",
        "compute waits for 3", "wait for 3",
    ]  # fmt: skip


def test_nothing_to_move_asks_nothing_of_the_device(log):
    swap = LayerSwap(CopyEach(make_pools()), 4)
    swap.join(3)
    swap.wait()
    assert swap.done
    assert log == []


@pytest.mark.parametrize(
    ("layers", "options", "said"),
    [
        (3, {}, "layers is 3; it must divide the pieces of a block, 8"),
        (0, {}, "layers is 0; it must divide the pieces of a block, 8"),
        (4, {"ahead": -1}, "ahead is -1; it must be at least 0"),
        (4, {"out": [(0, 12)]}, "copies[0]: host block is 12; it must be from 0 to 11"),
        (4, {"back": [(1, 2), (3, 2)]}, "copies[1]: device block 2 is named twice"),
        (4, {"back": [(0, 1, 2)]}, "copies[0] is (0, 1, 2); a pair of block ids, (from, to), is needed"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_moves(layers, options, said):
    pools = make_pools()
    before, host = device_of(pools), pools.host.clone()
    with pytest.raises(PagesimError) as error:
        LayerSwap(CopyEach(pools), layers, **{"out": OUT, **options})
    assert said in str(error.value)
    assert torch.equal(device_of(pools), before)
    assert torch.equal(pools.host, host)


@pytest.mark.parametrize("layer", [-1, 4])
def test_a_layer_that_is_not_there_is_refused(layer):
    swap = LayerSwap(CopyEach(make_pools()), 4, back=BACK)
    with pytest.raises(PagesimError, match=f"layer is {layer}; it must be from 0 to 3"):
        swap.join(layer)
