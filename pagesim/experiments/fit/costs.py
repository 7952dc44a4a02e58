"""Costs: from fitted values to what iterations take, and what is known of that before any log is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pagesim.costs import CostModel, EngineTime, Profiled, Roofline
from pagesim.costs.profiles import Curve, Profile, Terms, analytic_profile
from pagesim.experiments.fit.coefficients import NOTHING, Coefficients, profile_of
from pagesim.experiments.fit.equations import COLUMNS
from pagesim.experiments.fit.iterations import AFFINE, PAIRS, RISES, SIZES, served_as
from pagesim.experiments.recorded.recording import Floats, RecordedRun
from pagesim.hardware import gpu
from pagesim.models import model
from pagesim.setup.engine_config import EngineConfig
from pagesim.setup.prepare import prepare
from pagesim.setup.system import System
from pagesim.sim.clock import TICKS_PER_SECOND

SHORTEST_S = 1e-9
"""Of an iteration: by its profile, each must take a time."""


@dataclass(frozen=True)
class Costs:
    """What a system's iterations take, as far as values say, on top of a profile or of nothing.

    Attributes:
        system: what serves.
        start: a profile of its operators; None to fit everything.
        block_size: tokens a block, as the system has them.
    """

    system: System
    start: Profile | None
    block_size: int

    @cached_property
    def config(self) -> EngineConfig:
        """What the system starts with."""
        return EngineConfig(self.system)

    @classmethod
    def of(cls, system: System, start: Profile | None, load: RecordedRun) -> Costs:
        """Return those of a system that served a load.

        Raises:
            PagesimError: an option of the system is off, or the profile is not for it.
        """
        config = prepare(served_as(load, system), load.trace()).config
        made = cls(system, start, config.capacity.block_size)
        made.cost(np.full(len(COLUMNS), 1e-3))  # says at once if they do not go together
        return made

    @property
    def forms(self) -> tuple[tuple[str, ...], ...]:
        """Columns that logs are to give, by form: the plain one first."""
        end = COLUMNS[-1]
        if self.start is not None:
            return ((*AFFINE[:2], end),)
        return ((*AFFINE, end), (*(name for name in COLUMNS if name != "prompt_tokens"),))

    def profile(self, values: Floats) -> Profile:
        """Return the profile of these values, by ``COLUMNS``."""
        named = dict(zip(COLUMNS, values.tolist(), strict=True))
        iteration_s, *others = (named[name] for name in (*AFFINE, PAIRS))
        iteration_s = max(iteration_s, SHORTEST_S)
        if self.start is not None:
            return self.start.with_overhead(iteration_s, others[0])
        return profile_of(
            Coefficients(iteration_s, *others),
            self.config.model,
            tp=self.system.tensor_parallel_size,
            kv_dtype=self.config.kv_dtype,
            block_size=self.block_size,
            tokens=tokens_curve([named[name] for name in RISES]),
            moves=self._moves(),
        )

    def cost(self, values: Floats) -> Profiled:
        """Return the cost model of these values."""
        return self._priced(self.profile(values))

    def kernels(self) -> CostModel | None:
        """Return the cost of the operators alone; None where they are fitted, too."""
        return None if self.start is None else self._priced(self.start.with_overhead(0.0))

    def context_s(self) -> float | None:
        """Return a token of context's seconds by the GPU's datasheet; None where no GPU was named."""
        system = self.system
        if "gpu" not in system.model_fields_set:
            return None
        bound = Roofline(
            self.config.model,
            gpu(system.gpu),
            tp=system.tensor_parallel_size,
            block_size=self.block_size,
            kv_dtype=self.config.kv_dtype,
        )
        return bound.decode(1, 1)[1] / TICKS_PER_SECOND

    def engine(self) -> EngineTime:
        """Return the time of an engine of this kind and release that others measured."""
        return self.config.engine_time

    def _moves(self) -> Terms | None:
        """Return what copies and swaps take by the GPU's datasheet; None where no GPU was named."""
        system = self.system
        if "gpu" not in system.model_fields_set:
            return None
        by_datasheet = analytic_profile(
            gpu(system.gpu),
            model(system.model),
            tp=system.tensor_parallel_size,
            kv_dtype=self.config.kv_dtype,
            block_sizes=(self.block_size,),
        )
        return by_datasheet.terms

    def _priced(self, profile: Profile) -> Profiled:
        system = self.system
        return Profiled(
            profile,
            self.config.model,
            tp=system.tensor_parallel_size,
            block_size=self.block_size,
            kv_dtype=self.config.kv_dtype,
        )


def tokens_curve(rises: Sequence[float]) -> Curve:
    """Return the curve over tokens of these rises over the intervals of ``SIZES``; the last one goes on."""
    last = max((place for place, rise in enumerate(rises, 1) if rise > 0), default=0)
    if not last:
        return NOTHING
    seconds = np.cumsum([0.0, *rises[:last]])
    return Curve(at=SIZES[: last + 1], seconds=tuple(seconds.tolist()))
