"""Bench: one point after another on one device, each with the clock that fits, each with an outcome."""

from __future__ import annotations

import gc
from datetime import UTC, datetime
from statistics import median
from typing import Any

import torch

from pagesim.device.calibration.harness import Harness
from pagesim.device.calibration.iterations import Iterations
from pagesim.device.calibration.points import BESIDE, ITERATION, LAUNCH, Point
from pagesim.device.live.fit import available_bytes
from pagesim.device.live.model import Model
from pagesim.errors import PagesimError
from pagesim.hardware.gpus import GIB
from pagesim.kernels.bench.rows import FAILED, OK, OUT_OF_MEMORY
from pagesim.kernels.bench.rows import Point as BenchPoint
from pagesim.kernels.timing import MAX_SAMPLES, Call, CpuClock, Timing, WallClock, time_kernel
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

_BESIDE = {"batch": 32, "context": 1024, "blocks": 16}


class Bench:
    """A model on a device, and caches of the block sizes that points ask for.

    Args:
        model: its name, or the path of its config.
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
    """

    def __init__(
        self,
        model: str,
        spec: ModelSpec,
        *,
        device: torch.device,
        dtype: torch.dtype,
        cuda_graphs: bool,
        swap: str,
        budget_s: float,
        steps: int,
        most_tokens: int,
        most_blocks: int,
        block_size: int,
        seed: int,
    ) -> None:
        self.device = device
        self.budget_s = budget_s
        self._name = model
        self._spec = spec
        self._cuda_graphs = cuda_graphs
        self._swap = swap
        self._steps = steps
        self._most_tokens = most_tokens
        self._most_blocks = most_blocks
        self._first_block_size = block_size
        self._seed = seed
        self.longest = spec.max_model_len
        self.model = Model(spec, dtype=dtype, device=device, longest=self.longest, seed=seed)
        self._harness: Harness | None = None
        self._iterations: Iterations | None = None
        self._token_bytes = 2 * spec.layers * spec.kv_heads * spec.head_dim * dtype.itemsize

    def measure(self, point: Point) -> Row:
        """Return what came of a point: ``status`` and, if that is ok, ``seconds`` and how sure they are.

        Raises:
            PagesimError: the point left the GPU unusable.
        """
        lost = None
        try:
            row = self._measured(point)
        except (torch.OutOfMemoryError, MemoryError) as error:
            row = {"status": OUT_OF_MEMORY, "error": _first_line(error)}
        except RuntimeError as error:  # a kernel that does not compile, say: the others are measured
            memory = "can't allocate memory" in str(error) or "out of memory" in str(error)
            row = {"status": OUT_OF_MEMORY if memory else FAILED, "error": _first_line(error)}
        if row["status"] != OK:
            gc.collect()  # the exception's frames held tensors
            if self.device.type == "cuda":
                try:
                    torch.cuda.synchronize()
                    torch.cuda.empty_cache()
                except RuntimeError as error:
                    lost = _first_line(error)
        row["date"] = datetime.now(UTC).isoformat(timespec="seconds")
        if lost is not None:
            row["lost"] = lost
        return row

    def _measured(self, point: Point) -> Row:
        harness = self._harness_of(point.block_size)
        if point.term == BESIDE:
            return self._beside(point)
        if point.term in (ITERATION, LAUNCH):
            iterations = self._whole(harness)
            if point.term == LAUNCH:
                return {"status": OK, "seconds": iterations.launch(point.size)}
            seconds, context = iterations.decode(point.size)
            return {"status": OK, "seconds": seconds, "context": context}
        work = harness.prepare(point)
        if self.device.type == "cpu":
            return {"status": OK, **self._few(work.call)}
        if work.by_wall:
            timing = WallClock().time([work.call], self.budget_s)
        else:
            timing = time_kernel([work.call], self.device, self.budget_s, work.bytes_read)
        return {"status": OK, **_columns(timing)}

    def _few(self, call: Call) -> Row:
        """Time a call a few times: on a CPU every point comes again, in another turn."""
        clock = CpuClock()
        sample = clock.prepare([call])
        samples = [sample() for _ in range(_FEW)]
        while sum(samples) < self.budget_s and len(samples) < MAX_SAMPLES:
            samples.append(sample())
        return {"seconds": median(samples), "samples": len(samples), "clock": clock.name}

    def _whole(self, harness: Harness) -> Iterations:
        if self._iterations is None or self._iterations.harness is not harness:
            self._iterations = Iterations(harness, model=self._name, steps=self._steps, seed=self._seed)
        return self._iterations

    def _harness_of(self, block_size: int) -> Harness:
        """Return the harness of a block size; the last one's cache makes room for it."""
        have = self._harness
        if have is not None and block_size in (0, have.pools.block_size):
            return have
        self._harness = self._iterations = have = None
        gc.collect()
        size = block_size or self._first_block_size
        tokens = min(self._most_tokens, self._room())
        num_blocks = max(2, tokens // size)
        bytes_a_block = size * self._token_bytes
        host = min(self._most_blocks, int(min(_HOST_BYTES, available_bytes() / 4)) // bytes_a_block)
        self._harness = Harness(
            self.model,
            num_blocks=num_blocks,
            host_blocks=max(1, min(host, num_blocks)),
            block_size=size,
            strategy=self._swap,
            longest=self.longest,
            cuda_graphs=self._cuda_graphs,
            seed=self._seed,
        )
        return self._harness

    def _room(self) -> int:
        """Return for how many tokens there is room."""
        if self.device.type == "cpu":
            return min(_CPU_TOKENS, int(available_bytes() / 4) // self._token_bytes)
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info(self.device)[0]
        if free <= _SPARE_BYTES:
            raise PagesimError(
                f"model {self._name} leaves {free / GIB:.1f} GiB of the GPU's memory and "
                f"{_SPARE_BYTES / GIB:.0f} GiB are needed beside a cache; choose a smaller model"
            )
        return int(free - _SPARE_BYTES) // self._token_bytes

    def _beside(self, point: Point) -> Row:
        """Measure how much longer one layer's decode attention takes while blocks are swapped."""
        from pagesim.kernels.bench.session import Session
        from pagesim.kernels.bench.swap import prepare

        spec, itemsize = self._spec, self.model.dtype.itemsize
        parameters = {
            "strategy": self._swap,
            "direction": ("out", "in")[point.size],
            "host_blocks": "neighbours",
            "pieces": 2 * spec.layers,
            "piece_bytes": point.block_size * spec.kv_heads * spec.head_dim * itemsize,
            "block_size": point.block_size,
            "q_heads": spec.heads,
            "kv_heads": spec.kv_heads,
            "head_size": spec.head_dim,
            "dtype": "bf16" if self.model.dtype is torch.bfloat16 else "fp16",
            "layout": "NHD",
            **_BESIDE,
        }
        session = Session(self.device.type, self.budget_s, self._seed)
        row = session.measure(BenchPoint("swap", "decode-beside-swap", parameters), prepare)
        if row["status"] != OK:
            return {"status": row["status"], "error": row["error"]}
        return {"status": OK, "seconds": row["median_s"], "slowdown": row["slowdown"]}


def _columns(timing: Timing) -> Row:
    return {
        "seconds": timing.median_s,
        "p20_s": timing.p20_s,
        "p80_s": timing.p80_s,
        "noise": timing.noise,
        "samples": timing.samples,
        "clock": timing.clock,
    }


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
