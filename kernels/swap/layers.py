"""Swaps layer by layer during compute: a layer waits for its own blocks while the next layers' cross.

Like loading in vLLM's and LMCache's connectors and in SGLang's HiCache, an iteration waits for the first
layer, and then only if the link takes longer than the layers before.
"""

from __future__ import annotations

from pagesim.errors import PagesimError
from pagesim.kernels.swap.base import Copies, Direction, SwapStrategy, Transfer

AHEAD = 2
"""Layers whose copies are started before a layer computes: one crosses, the next one waits."""


class LayerSwap:
    """Blocks that leave the device and return to it layer by layer.

    For each layer, the outgoing blocks are copied first, then the incoming ones, which may replace them. On a
    GPU the copies run on the strategy's stream, after everything queued on the current stream when this
    object was created. A layer's copies are started when the layer ``ahead`` layers before it is joined, so
    that the host issues them between the layers' launches. On the CPU they finish at that time.

    Args:
        strategy: strategy that copies the blocks.
        layers: number of layers, each with the same number of consecutive pieces.
        out: (device block, host block), as for ``SwapStrategy.swap_out``.
        back: (host block, device block), as for ``SwapStrategy.swap_in``.
        ahead: number of layers whose copies are started before they are joined.

    Raises:
        PagesimError: a block is outside its pool or occurs twice, ``layers`` does not divide the pieces, or
            ``ahead`` is negative. Nothing is copied in this case.
    """

    def __init__(
        self,
        strategy: SwapStrategy,
        layers: int,
        *,
        out: Copies = (),
        back: Copies = (),
        ahead: int = AHEAD,
    ) -> None:
        pieces = strategy.pools.pieces
        if layers < 1 or pieces % layers:
            raise PagesimError(f"layers is {layers}; it must divide the pieces of a block, {pieces}")
        if ahead < 0:
            raise PagesimError(f"ahead is {ahead}; it must be at least 0")
        both: list[tuple[Direction, Copies]] = [("out", out), ("in", back)]
        checked = [(direction, strategy.checked(direction, copies)) for direction, copies in both]
        self.layers = layers
        self._strategy = strategy
        self._moves = [(direction, blocks) for direction, blocks in checked if len(blocks)]
        self._ahead = ahead
        self._width = pieces // layers
        self._transfers: list[Transfer] = []  # of the layers whose copies were started
        if self._moves:
            strategy.follow_current()
            self._start(ahead)

    @property
    def done(self) -> bool:
        """Whether every byte of every layer has arrived."""
        return not self._moves or (len(self._transfers) == self.layers and self._transfers[-1].done)

    def join(self, layer: int) -> None:
        """Make everything launched on the current stream from now on wait for a layer's blocks.

        This starts the copies of all layers up to it, and of the next ones. Layers may be skipped.

        Raises:
            PagesimError: there is no such layer.
        """
        if not 0 <= layer < self.layers:
            raise PagesimError(f"layer is {layer}; it must be from 0 to {self.layers - 1}")
        if not self._moves:
            return
        self._start(layer + 1)
        self._transfers[layer].join()
        self._start(layer + 1 + self._ahead)

    def join_all(self) -> None:
        """Make everything launched on the current stream from now on wait for all layers' copies."""
        self.join(self.layers - 1)

    def wait(self) -> None:
        """Wait until every byte of every layer has arrived."""
        self.join_all()
        if self._moves:
            self._transfers[-1].wait()

    def _start(self, layers: int) -> None:
        """Start the copies of the first ``layers`` layers; copies on one stream finish in order."""
        for layer in range(len(self._transfers), min(layers, self.layers)):
            pieces = slice(layer * self._width, (layer + 1) * self._width)
            self._transfers.append(self._strategy.run(self._moves, pieces))
