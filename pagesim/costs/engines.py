"""What an engine takes beside the GPU's kernels: in each iteration, and in front of each request."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from pagesim.errors import PagesimError
from pagesim.models import ModelSpec

BY_HAND = "given by hand"

NOT_MEASURED = "not measured"
"""How the source of a borrowed number begins."""


@dataclass(frozen=True, slots=True)
class EngineTime:
    """Seconds of the engine's loop that kernels do not hide: scheduling, inputs, sampling, outputs.

    Attributes:
        iteration_s: of an iteration that computes anything.
        sequence_s: of each sequence that gets a token in it.
        source: where the numbers come from.
        graphs_to: tokens of the largest iteration with a prompt that CUDA graphs launch: those beyond it the
            host launches kernel by kernel.
        of_sampler: whether ``iteration_s`` is kernels outside of layers alone, the sampler's above all: where
            the next batch is scheduled while one runs, the loop itself is hidden. A profile that has the
            sampler in it takes none of it.

    Raises:
        PagesimError: a number is negative or too large.
    """

    iteration_s: float = 0.0
    sequence_s: float = 0.0
    source: str = BY_HAND
    graphs_to: int = 0
    of_sampler: bool = False

    def __post_init__(self) -> None:
        for name, value, most in (("overhead_s", self.iteration_s, 10), ("sequence_s", self.sequence_s, 1)):
            if not (math.isfinite(value) and 0 <= value <= most):
                raise PagesimError(f"{name} is {value}; it must be from 0 to {most} s")


Kind = Literal["dense", "experts", "mxfp4"]
"""Kinds of models that take an engine's loop differently: without experts, with experts, and with experts in
MXFP4 (gpt-oss)."""


class Measured(NamedTuple):
    """Engine times that were measured, or fitted to measurements.

    Attributes:
        since: the first release that they stand for, ``()`` where an engine has none.
        asynchronous: whether the next batch is scheduled while the one before it runs.
        time: the numbers.
        kind: of models; any where it is None.
    """

    since: tuple[int, ...]
    asynchronous: bool
    time: EngineTime
    kind: Kind | None = None


_PAPER = "fitted to Fig. 13's two vLLM bars, OPT-13B on an A100 (docs/validation/reproduction.md)"

_RUNS = "fitted to half of the published runs over operator tables (docs/validation/accuracy.md)"

_SYNC = Measured((0, 10), False, EngineTime(1.3e-3, 4.3e-5, f"Qwen3-32B on H100s, vLLM 0.12, {_RUNS}"))
_ASYNC = (
    Measured(
        (0, 14),
        True,
        EngineTime(
            7.5e-4,
            1.5e-5,
            "the middle of what others found for dense models, vLLM 0.15 to 0.19",
            of_sampler=True,
        ),
        "dense",
    ),
    Measured(
        (0, 14),
        True,
        EngineTime(
            1.0e-3, 1.07e-5, f"MiniMax-M2.5 on H200s and B200s, vLLM 0.17 to 0.19, {_RUNS}", of_sampler=True
        ),
        "experts",
    ),
    Measured(
        (0, 14),
        True,
        EngineTime(
            2.7e-4,
            8.7e-6,
            f"gpt-oss-120b on H100s, H200s and B200s, vLLM 0.15 to 0.18, {_RUNS}",
            of_sampler=True,
        ),
        "mxfp4",
    ),
)


def _borrowed(engine: str, *times: Measured) -> tuple[Measured, ...]:
    """Return vLLM's times for an engine of which none was measured."""
    return tuple(
        each._replace(
            since=(),
            time=replace(each.time, source=f"{NOT_MEASURED} for {engine}; vLLM's: {each.time.source}"),
        )
        for each in times
    )


ENGINES: dict[str, Sequence[Measured]] = {
    # The PagedAttention paper's authors put Orca's scheduling, and static batches, into their own engine.
    **dict.fromkeys(
        ("static", "orca", "vllm-sosp"), (Measured((), False, EngineTime(1.5e-3, 1.65e-4, _PAPER)),)
    ),
    "vllm-v0": (Measured((0, 2), False, EngineTime(9e-3, 4e-4, "vLLM 0.2, measured by others")),),
    "vllm-v1": (_SYNC, *_ASYNC),
    "sglang": _borrowed("SGLang", _SYNC, *_ASYNC),
    "trtllm": _borrowed("TensorRT-LLM", _SYNC, *_ASYNC),
    # The loop around LightLLM's admission is simulated without overlap.
    "lightllm": _borrowed("LightLLM", _SYNC),
}
"""By scheduler, older releases first."""

UNKNOWN = EngineTime(3e-3, 0.0, "a rule of thumb for an engine whose loop is Python")
"""Of an engine of which no measurement is known."""


def engine_time(
    scheduler: str,
    release: str | None = None,
    *,
    asynchronous: bool = False,
    model: ModelSpec | None = None,
) -> EngineTime:
    """Return the engine's own time of a scheduler.

    Args:
        scheduler: by name.
        release: of the engine, ``MAJOR.MINOR[.PATCH]``; the newest that was measured when left out.
        asynchronous: whether the next batch is scheduled while the one before it runs.
        model: what is served; a dense one when left out.
    """
    kind = _kind(model)
    known = [
        each
        for each in ENGINES.get(scheduler, ())
        if each.asynchronous == asynchronous and each.kind in (None, kind)
    ]
    if not known:
        return UNKNOWN
    if release is None:
        return known[-1].time
    asked = tuple(int(part) for part in release.split(".")[:2])
    older = [each for each in known if each.since <= asked]
    return (older or known[:1])[-1].time


def _kind(model: ModelSpec | None) -> Kind:
    if model is None or model.moe is None:
        return "dense"
    return "mxfp4" if model.weights.experts.name.startswith("mxfp4") else "experts"


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """What a client waits beside the engine: HTTP, and one tokenizer that takes a prompt at a time.

    Attributes:
        request_s: seconds of a request.
        token_s: seconds of the tokenizer for a token of a prompt.
        source: where the numbers come from.
    """

    request_s: float = 0.0
    token_s: float = 0.0
    source: str = BY_HAND

    def waits_s(
        self,
        arrival_s: npt.NDArray[np.float64],
        prompt_tokens: npt.NDArray[np.int64],
        served_by: npt.NDArray[np.int64] | None = None,
    ) -> npt.NDArray[np.float64]:
        """Return what each request waits, ``[N]``; NaN for one that was never sent.

        Args:
            arrival_s: when each was sent, ``[N]``.
            prompt_tokens: of each, ``[N]``.
            served_by: which of several front ends each goes through, ``[N]``; all through one when left out.
        """
        work = self.token_s * prompt_tokens
        waits = np.empty(len(work))
        fronts = np.zeros(len(work), np.int64) if served_by is None else served_by
        for front in np.unique(fronts):
            of = np.flatnonzero(fronts == front)
            of = of[np.argsort(arrival_s[of], kind="stable")]
            done = np.cumsum(work[of])
            # The tokenizer has been busy since the last request that found it idle.
            idle = np.maximum.accumulate(arrival_s[of] - (done - work[of]))
            waits[of] = self.request_s + idle + done - arrival_s[of]
        return waits


_FRONT_END = FrontEnd(
    12e-3, 7e-6, "fitted to the times to first token of half of the published runs of vLLM 0.10 to 0.19"
)

FRONT_ENDS: dict[str, FrontEnd] = {
    "vllm-v1": _FRONT_END,
    **{
        scheduler: replace(_FRONT_END, source=f"{NOT_MEASURED} for {engine}; vLLM's: {_FRONT_END.source}")
        for scheduler, engine in (
            ("vllm-v0", "vLLM v0"),
            ("sglang", "SGLang"),
            ("trtllm", "TensorRT-LLM"),
            ("lightllm", "LightLLM"),
        )
    },
}
"""By scheduler, of engines that serve over HTTP. The paper's own engines were driven without."""


def front_end(scheduler: str) -> FrontEnd:
    """Return the front end of a scheduler's engine; one that takes no time where it has none."""
    return FRONT_ENDS.get(scheduler, FrontEnd(source="no server"))
