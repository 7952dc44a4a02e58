"""The engine's own time: what an iteration takes beside the GPU's kernels, by engine and release."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pagesim.errors import PagesimError

BY_HAND = "given by hand"


@dataclass(frozen=True, slots=True)
class EngineTime:
    """Seconds of the engine's loop that kernels do not hide: scheduling, inputs, sampling, outputs.

    Attributes:
        iteration_s: of an iteration that computes anything.
        sequence_s: of each sequence that gets a token in it.
        source: where the numbers come from.
        graphs_to: tokens of the largest iteration with a prompt that CUDA graphs launch: those beyond it the
            host launches kernel by kernel.

    Raises:
        PagesimError: a number is negative or too large.
    """

    iteration_s: float = 0.0
    sequence_s: float = 0.0
    source: str = BY_HAND
    graphs_to: int = 0

    def __post_init__(self) -> None:
        for name, value, most in (("overhead_s", self.iteration_s, 10), ("sequence_s", self.sequence_s, 1)):
            if not (math.isfinite(value) and 0 <= value <= most):
                raise PagesimError(f"{name} is {value}; it must be from 0 to {most} s")


class Measured(NamedTuple):
    """Engine times that were measured, or fitted to measurements.

    Attributes:
        since: the first release that they stand for, ``()`` where an engine has none.
        asynchronous: whether the next batch is scheduled while the one before it runs.
        time: the numbers.
    """

    since: tuple[int, ...]
    asynchronous: bool
    time: EngineTime


_PAPER = "fitted to Fig. 13's two vLLM bars, OPT-13B on an A100 (docs/reproduction.md)"

_RUNS = "fitted to half of their published runs over operator tables (docs/accuracy.md)"

_VLLM_SYNC = EngineTime(1.2e-3, 4.3e-5, f"Qwen3-32B on H100s, vLLM 0.12, {_RUNS}")
_VLLM_ASYNC = EngineTime(2.5e-4, 1.05e-5, f"gpt-oss-120b on H100s and H200s, vLLM 0.18, {_RUNS}")

ENGINES: dict[str, Sequence[Measured]] = {
    # The PagedAttention paper's authors put Orca's scheduling, and static batches, into their own engine.
    **dict.fromkeys(
        ("static", "orca", "vllm-sosp"), (Measured((), False, EngineTime(1.5e-3, 1.65e-4, _PAPER)),)
    ),
    "vllm-v0": (Measured((0, 2), False, EngineTime(9e-3, 4e-4, "vLLM 0.2, measured by others")),),
    "vllm-v1": (
        Measured((0, 10), False, _VLLM_SYNC),
        Measured(
            (0, 10), True, EngineTime(1.8e-4, 3.7e-5, f"Llama-3.1-70B on H100s and H200s, vLLM 0.10, {_RUNS}")
        ),
        Measured((0, 18), True, _VLLM_ASYNC),
    ),
    # Of these loops no measurement is known: vLLM's loop of the same kind stands for each.
    **{
        scheduler: tuple(
            Measured((), ahead, replace(time, source=f"not measured for {engine}; vLLM's: {time.source}"))
            for ahead, time in ((False, _VLLM_SYNC), (True, _VLLM_ASYNC))
        )
        for scheduler, engine in (("sglang", "SGLang"), ("trtllm", "TensorRT-LLM"))
    },
    # The loop around LightLLM's admission is simulated without overlap.
    "lightllm": (
        Measured(
            (), False, replace(_VLLM_SYNC, source=f"not measured for LightLLM; vLLM's: {_VLLM_SYNC.source}")
        ),
    ),
}
"""By scheduler, older releases first."""

UNKNOWN = EngineTime(3e-3, 0.0, "a rule of thumb for an engine whose loop is Python")
"""Of an engine of which no measurement is known."""


def engine_time(scheduler: str, release: str | None = None, *, asynchronous: bool = False) -> EngineTime:
    """Return the engine's own time of a scheduler.

    Args:
        scheduler: by name.
        release: of the engine, ``MAJOR.MINOR[.PATCH]``; the newest that was measured when left out.
        asynchronous: whether the next batch is scheduled while the one before it runs.
    """
    known = [each for each in ENGINES.get(scheduler, ()) if each.asynchronous == asynchronous]
    if not known:
        return UNKNOWN
    if release is None:
        return known[-1].time
    asked = tuple(int(part) for part in release.split(".")[:2])
    older = [each for each in known if each.since <= asked]
    return (older or known[:1])[-1].time
