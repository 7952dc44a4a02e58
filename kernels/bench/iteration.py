"""An iteration that swaps: without its swap, after it, and layer by layer; and the swap alone."""

from __future__ import annotations

from typing import Any

import torch

from pagesim.errors import PagesimError
from pagesim.kernels import Cache, Sizes, paged_attention
from pagesim.kernels.bench.inputs import DTYPES
from pagesim.kernels.bench.rows import Point
from pagesim.kernels.bench.session import Case, Session
from pagesim.kernels.bench.swap import check_swap, choose_pairs, start
from pagesim.kernels.swap import LayerSwap, Pools, make_strategy
from pagesim.kernels.timing import Call, CpuClock, Timing, WallClock


class Iteration:
    """A decode step of all layers of a model, each with a matrix product, then attention over its cache.

    All layers share the same weights, which are far larger than any hardware cache and so are always reread.

    Args:
        point: shapes; ``pieces`` are the keys and values of the layers.
        session: session to run in.

    Raises:
        PagesimError: the pieces do not match the keys and values of layers with these blocks.
    """

    def __init__(self, point: Point, session: Session) -> None:
        batch, dtype, device = point["batch"], DTYPES[point["dtype"]], session.device
        blocks = batch * -(-point["context"] // point["block_size"])
        sizes = Sizes(blocks, point["block_size"], point["kv_heads"], point["head_size"])
        size = sizes.block_size * sizes.kv_heads * sizes.head_dim * dtype.itemsize
        if point["piece_bytes"] != size or point["pieces"] % 2:
            raise PagesimError(
                f"pieces is {point['pieces']} of {point['piece_bytes']} bytes; keys and values of layers are "
                f"an even number of {size}"
            )
        self.flat = [session.random(*sizes, dtype=dtype) for _ in range(point["pieces"])]
        self.caches = [Cache(*pair) for pair in zip(self.flat[::2], self.flat[1::2], strict=True)]
        order = torch.randperm(blocks, generator=session.generator(point), dtype=torch.int32)
        self.table = order.view(batch, -1).to(device)
        self.lengths = torch.full((batch,), point["context"], dtype=torch.int32, device=device)
        self.tokens = session.random(batch, point["k"], dtype=dtype)
        self.weight = session.random(point["n"], point["k"], dtype=dtype)
        self.queries = session.random(batch, point["q_heads"], point["head_size"], dtype=dtype)
        self.out = torch.empty_like(self.queries)
        self.longest = point["context"]

    def run(self, swap: LayerSwap | None = None) -> None:
        """Compute all layers; each layer's attention waits for its own part of a swap."""
        batch = (self.table, self.lengths)
        for layer, cache in enumerate(self.caches):
            torch.nn.functional.linear(self.tokens, self.weight)
            if swap is not None:
                swap.join(layer)
            paged_attention(
                self.queries, cache, *batch, max_context=self.longest, out=self.out, check=layer == 0
            )


def prepare(point: Point, session: Session) -> Case:
    """Prepare an iteration that swaps by layer; ``columns`` are no swap, one in front, and a swap alone."""
    iteration = Iteration(point, session)
    blocks, pieces, size = point["blocks"], point["pieces"], point["piece_bytes"]
    host = session.host_bytes(blocks * pieces * size).view(blocks, pieces, size)
    strategy = make_strategy(point["strategy"], Pools(tuple(iteration.flat), host))
    pairs = choose_pairs(point, session, strategy.pools.device_blocks, blocks)

    def by_layer() -> LayerSwap:
        layers = len(iteration.caches)
        if point["direction"] == "out":
            return LayerSwap(strategy, layers, out=pairs)
        return LayerSwap(strategy, layers, back=pairs[:, ::-1])

    def finished() -> None:
        swap = by_layer()
        iteration.run(swap)
        swap.wait()

    def in_front() -> None:
        start(strategy, point, pairs).join()
        iteration.run()

    def measure(budget_s: float) -> tuple[Timing, dict[str, Any]]:
        clock = WallClock() if session.device.type == "cuda" else CpuClock()
        calls: dict[str, Call] = {
            "alone_s": iteration.run,
            "in_front_s": in_front,
            "swap_s": lambda: start(strategy, point, pairs),
        }
        columns = {name: clock.time([call], budget_s / 4).median_s for name, call in calls.items()}
        return clock.time([lambda: iteration.run(by_layer())], budget_s / 4), columns

    return Case(
        [lambda: iteration.run(by_layer())],
        bytes_moved=blocks * strategy.pools.block_bytes,
        check=check_swap(point, session, strategy.pools, pairs, finished),
        reference=f"pinned-copy-{point['direction']}",
        by_wall=True,
        measure=measure,
    )
