"""Swaps layer by layer, beside compute: a layer waits for its own blocks, while those of the next ones cross.

As vLLM's and LMCache's connectors and SGLang's HiCache load: an iteration waits for the first layer, and then
for what the link takes longer than the layers before.
"""

from __future__ import annotations

from pagesim.errors import PagesimError
from pagesim.kernels.swap.base import Copies, Direction, SwapStrategy, Transfer

AHEAD = 2
"""Layers whose copies are put under way before a layer computes: one crosses, the next waits its turn."""


class LayerSwap:
    """Blocks that leave the device and come to it layer by layer.

    Of each layer first the blocks that leave are copied, then those that come, which may take their place.
    On a GPU the copies run on the strategy's stream; they begin when what the current stream held when this
    was made is done. Copies of a layer are put under way when the layer ``ahead`` before it is joined, so
    that the host issues them between the launches of the layers. On the CPU they are done then.

    Args:
        strategy: how blocks are copied.
        layers: of which each has the same number of neighbouring pieces.
        out: (device block, host block), as of ``SwapStrategy.swap_out``.
        back: (host block, device block), as of ``SwapStrategy.swap_in``.
        ahead: layers whose copies are under way before they are joined.

    Raises:
        PagesimError: a block is outside its pool or named twice, ``layers`` does not divide the pieces, or
            ``ahead`` is negative; then nothing was copied.
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
        self._transfers: list[Transfer] = []  # of the layers whose copies are under way
        if self._moves:
            strategy.follow_current()
            self._start(ahead)

    @property
    def done(self) -> bool:
        """Whether every byte of every layer has arrived."""
        return not self._moves or (len(self._transfers) == self.layers and self._transfers[-1].done)

    def join(self, layer: int) -> None:
        """Let whatever is launched from now on, on the current stream, wait for a layer's blocks.

        Copies of the layers up to it, and of the next, are put under way. Layers may be left out.

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
        """Let what is launched later on the current stream wait for every layer's copies."""
        self.join(self.layers - 1)

    def wait(self) -> None:
        """Return when every byte of every layer has arrived."""
        self.join_all()
        if self._moves:
            self._transfers[-1].wait()

    def _start(self, layers: int) -> None:
        """Put the copies of the first ``layers`` under way; those of one stream end in their order."""
        for layer in range(len(self._transfers), min(layers, self.layers)):
            pieces = slice(layer * self._width, (layer + 1) * self._width)
            self._transfers.append(self._strategy.run(self._moves, pieces))
