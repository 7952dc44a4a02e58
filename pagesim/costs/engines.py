"""Engine time outside of the GPU's kernels: per iteration, and per request in the front end."""

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
"""Prefix of the source of a number that was taken over from another engine."""


@dataclass(frozen=True, slots=True)
class EngineTime:
    """Time of the engine's loop that kernels do not hide: scheduling, inputs, sampling and outputs.

    Attributes:
        iteration_s: seconds per iteration that computes something.
        sequence_s: seconds per sequence that gets a token in it.
        source: where the numbers come from.
        graphs_to: tokens of the largest iteration with a prompt that CUDA graphs launch; larger ones are
            launched kernel by kernel.
        of_sampler: whether ``iteration_s`` covers only kernels outside the layers, mainly the sampler's,
            because asynchronous scheduling hides the loop itself. It does not apply to a profile that
            includes the sampler.

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
"""Kinds of models with different engine times: dense, with experts, and with experts in MXFP4 (gpt-oss)."""


class Measured(NamedTuple):
    """Engine times that were measured, or fitted to measurements.

    Attributes:
        since: first release that they apply to; ``()`` for any release.
        asynchronous: whether the next batch is scheduled while the current one runs.
        time: the engine times.
        kind: kind of models that they apply to; None for any.
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
    """Return vLLM's times for use with an engine that was not measured."""
    return tuple(
        each._replace(
            since=(),
            time=replace(each.time, source=f"{NOT_MEASURED} for {engine}; vLLM's: {each.time.source}"),
        )
        for each in times
    )


ENGINES: dict[str, Sequence[Measured]] = {
    # The PagedAttention paper's authors implemented Orca's scheduling and static batches in their own engine.
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
"""Engine times by scheduler, older releases first."""

UNKNOWN = EngineTime(3e-3, 0.0, "a rule of thumb for an engine whose loop is Python")
"""Time of an engine for which no measurement is known."""


def engine_time(
    scheduler: str,
    release: str | None = None,
    *,
    asynchronous: bool = False,
    model: ModelSpec | None = None,
) -> EngineTime:
    """Return the engine time of a scheduler.

    Args:
        scheduler: name of the scheduler.
        release: release of the engine, ``MAJOR.MINOR[.PATCH]``; by default, the newest measured one.
        asynchronous: whether the next batch is scheduled while the current one runs.
        model: model that is served; by default, a dense one.
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
    """Delays outside the engine: HTTP, and one tokenizer that handles one prompt at a time.

    Attributes:
        request_s: seconds per request.
        token_s: tokenizer seconds per prompt token.
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
        """Return each request's delay in seconds, ``[N]``; NaN for requests that were never sent.

        Args:
            arrival_s: when each request was sent, in seconds, ``[N]``.
            prompt_tokens: prompt tokens of each request, ``[N]``.
            served_by: index of the front end that serves each request, ``[N]``; by default, one serves all.
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
"""Front ends by scheduler, for engines that serve over HTTP; the paper's own engines had none."""


def front_end(scheduler: str) -> FrontEnd:
    """Return the front end of a scheduler's engine; one without delays if it has none."""
    return FRONT_ENDS.get(scheduler, FrontEnd(source="no server"))
