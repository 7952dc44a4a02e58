"""Bench: one point after another on one device, each with the clock that fits, each with an outcome."""

from __future__ import annotations

import gc
from dataclasses import KW_ONLY, dataclass
from statistics import median
from typing import Any

import torch

from pagesim.device.calibration.harness import Harness
from pagesim.device.calibration.iterations import WholeIterations
from pagesim.device.calibration.points import ITERATION, LAUNCH, Point
from pagesim.device.live.model import Model
from pagesim.device.live.pools import KvPools
from pagesim.device.live.preflight import available_bytes
from pagesim.errors import PagesimError
from pagesim.hardware.gpus import GIB
from pagesim.kernels.bench.rows import OK
from pagesim.kernels.bench.session import Session
from pagesim.kernels.timing import MAX_SAMPLES, Call, CpuClock, WallClock, time_kernel
from pagesim.models import ModelSpec

Row = dict[str, Any]

_SPARE_BYTES = 6 * GIB
"""Of a GPU's memory, for activations, captured graphs and CUDA itself."""

_HOST_BYTES = 4 * GIB
"""The swap space at most: pinning takes its time."""

_CPU_TOKENS = 65_536
"""A CPU's cache at most."""

_FEW = 3
"""Samples at least, in each turn."""


@dataclass
class Bench:
    """A model on a device, and caches of the block sizes that points ask for.

    Args:
        name: of the model, or the path of its config.
        spec: the model.
        device: ``cpu`` or ``cuda``.
        dtype: of weights, activations and cache.
        cuda_graphs: whether iterations that only decode are replayed from graphs.
        swap: how blocks are swapped.
        budget_s: seconds to time each point for.
        steps: iterations that are carried out for each whole-iteration point.
        most_tokens: that the cache needs to hold for the largest point.
        most_blocks: that are swapped at once.
        block_size: of the cache beside points that have none.
        seed: of weights, tokens and tables.

    Raises:
        PagesimError: the model leaves no room for a cache.
    """

    name: str
    spec: ModelSpec
    _: KW_ONLY
    device: torch.device
    dtype: torch.dtype
    cuda_graphs: bool
    swap: str
    budget_s: float
    steps: int
    most_tokens: int
    most_blocks: int
    block_size: int
    seed: int

    def __post_init__(self) -> None:
        spec = self.spec
        longest = spec.max_model_len
        self.model = Model(spec, dtype=self.dtype, device=self.device, longest=longest, seed=self.seed)
        self._session = Session(self.device.type, self.budget_s, self.seed)
        self._harness: Harness | None = None
        self._iterations: WholeIterations | None = None
        self._room()

    def measure(self, point: Point) -> Row:
        """Return what came of a point: ``status`` and, if that is ok, ``seconds`` and how sure they are.

        Where it left the GPU unusable, ``lost`` says so.
        """
        row = self._session.attempt(lambda: {"status": OK, **self._measured(point)})
        return row if self._session.lost is None else {**row, "lost": self._session.lost}

    def _measured(self, point: Point) -> Row:
        harness = self._harness_of(point.block_size)
        if point.term in (ITERATION, LAUNCH):
            if self._iterations is None or self._iterations.harness is not harness:
                self._iterations = WholeIterations(harness, model=self.name, steps=self.steps, seed=self.seed)
            if point.term == LAUNCH:
                return {"seconds": self._iterations.launch(point.size)}
            seconds, context = self._iterations.decode(point.size)
            return {"seconds": seconds, "context": context}
        work = harness.prepare(point)
        if self.device.type == "cpu":
            return self._few(work.call)
        if work.by_wall:
            timing = WallClock().time([work.call], self.budget_s)
        else:
            timing = time_kernel([work.call], self.device, self.budget_s, work.bytes_read)
        return {
            "seconds": timing.median_s,
            "p20_s": timing.p20_s,
            "p80_s": timing.p80_s,
            "noise": timing.noise,
            "samples": timing.samples,
            "clock": timing.clock,
        }

    def _few(self, call: Call) -> Row:
        """Time a call a few times: on a CPU every point comes again, in another turn."""
        clock = CpuClock()
        sample = clock.prepare([call])
        samples = [sample() for _ in range(_FEW)]
        while sum(samples) < self.budget_s and len(samples) < MAX_SAMPLES:
            samples.append(sample())
        return {"seconds": median(samples), "samples": len(samples), "clock": clock.name}

    def _harness_of(self, block_size: int) -> Harness:
        """Return the harness of a block size; the last one's cache makes room for it."""
        have = self._harness
        if have is not None and block_size in (0, have.pools.block_size):
            return have
        self._harness = self._iterations = have = None
        gc.collect()
        size = block_size or self.block_size
        num_blocks = max(2, min(self.most_tokens, self._room()) // size)
        bytes_a_block = size * self._token_bytes
        host = min(self.most_blocks, int(min(_HOST_BYTES, available_bytes() / 4)) // bytes_a_block)
        pools = KvPools(
            self.spec,
            num_blocks=num_blocks,
            host_blocks=max(1, min(host, num_blocks)),
            block_size=size,
            dtype=self.dtype,
            device=self.device,
            strategy=self.swap,
        )
        self._harness = Harness(self.model, pools, cuda_graphs=self.cuda_graphs, seed=self.seed)
        return self._harness

    @property
    def _token_bytes(self) -> int:
        spec = self.spec
        return 2 * spec.layers * spec.kv_heads * spec.head_dim * self.dtype.itemsize

    def _room(self) -> int:
        """Return for how many tokens there is room."""
        if self.device.type == "cpu":
            return min(_CPU_TOKENS, int(available_bytes() / 4) // self._token_bytes)
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info(self.device)[0]
        if free <= _SPARE_BYTES:
            raise PagesimError(
                f"model {self.name} leaves {free / GIB:.1f} GiB of the GPU's memory and "
                f"{_SPARE_BYTES / GIB:.0f} GiB are needed beside a cache; choose a smaller model"
            )
        return int(free - _SPARE_BYTES) // self._token_bytes
