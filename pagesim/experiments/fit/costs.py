"""Costs: turns fitted values into iteration times, with what is known before any log is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from pagesim.costs import EngineTime, Profiled, Roofline
from pagesim.costs.profiles import BLOCK_CURVES, Profile, Reached, Shape, States, Terms, analytic_profile
from pagesim.costs.table import Table, bilinear, constant
from pagesim.experiments.fit.equations import COLUMNS
from pagesim.experiments.fit.iterations import AFFINE, PAIRS, RISES, SIZES, reads_of, served_as
from pagesim.experiments.recorded.recording import Floats, RecordedRun
from pagesim.hardware import gpu
from pagesim.models import ModelSpec
from pagesim.setup.engine_config import EngineConfig
from pagesim.setup.prepare import prepare
from pagesim.setup.system import System
from pagesim.sim.clock import TICKS_PER_SECOND

SHORTEST_S = 1e-9
"""Minimum time of an iteration, because a profile must give every iteration a positive time."""

NOTHING = constant("tokens", 0.0)


class Coefficients(NamedTuple):
    """Coefficients of an iteration's time, in seconds per unit of their regressors.

    Attributes:
        iteration_s: per iteration.
        sequence_s: per sequence that gets a token.
        context_s: per token of context that a decoding sequence reads, over all layers.
        prompt_token_s: per prompt token.
        prompts_s: per iteration that computes any prompt tokens.
        pair_s: per pair of a prompt's query and key, over all layers.
    """

    iteration_s: float
    sequence_s: float
    context_s: float = 0.0
    prompt_token_s: float = 0.0
    prompts_s: float = 0.0
    pair_s: float = 0.0


def profile_of(
    coefficients: Coefficients,
    model: ModelSpec,
    *,
    tp: int,
    kv_dtype: str,
    block_size: int,
    tokens: Table = NOTHING,
    moves: Terms | None = None,
) -> Profile:
    """Return the profile of these coefficients, without operators and with a generic name.

    The time for recurrent states is part of that per sequence and per prompt token, its only regressors.

    Args:
        coefficients: coefficients of an iteration's time.
        model: the served model.
        tp: number of GPUs that the model is split over.
        kv_dtype: data type of the KV cache.
        block_size: tokens per block.
        tokens: additional seconds of an iteration as a function of its tokens, of prompts or not.
        moves: terms with the times of copies and swaps, which no log shows; None: they take no time.
    """
    each, reads = coefficients, reads_of(model, kv_dtype, tp)
    nothing = {block_size: constant("blocks", 0.0)}
    copy, swap_out, swap_in = (
        (nothing,) * 3 if moves is None else (moves.copy_, moves.swap_out, moves.swap_in)
    )
    of_all = reads.pop(None)
    prefill = bilinear(
        *("tokens", "keys"),
        launch_s=each.prompts_s,
        first_s=each.prompt_token_s,
        each_s=each.pair_s * of_all.pair,
    )
    terms = Terms(
        linear=tokens,
        head=constant("sequences", 0.0),
        write=NOTHING,
        decode={block_size: bilinear("sequences", "context", each_s=each.context_s * of_all.context)},
        prefill={block_size: prefill},
        reached={
            f"{span.kind}:{span.size}": Reached(
                decode=bilinear("sequences", "context", each_s=each.context_s * of.context),
                prefill=bilinear("tokens", "keys", each_s=each.pair_s * of.pair),
            )
            for span, of in reads.items()
            if span is not None
        },
        states=States(decode=constant("sequences", 0.0), prefill=NOTHING) if model.state_layers else None,
        copy=copy,
        swap_out=swap_out,
        swap_in=swap_in,
        overhead=constant("sequences", each.iteration_s),
    )
    made = Profile(
        name="fitted",
        kind="measured",
        sentence=f"fitted to the logs of a server of {model.name}",
        model=Shape.of(model),
        tp=tp,
        dtype=model.weights_in_words,
        kv_dtype=kv_dtype,
        terms=terms,
        origins={**dict.fromkeys(terms.names(), "measured"), **dict.fromkeys(BLOCK_CURVES, "datasheet")},
        ranges={},
        errors={},
    )
    return made.with_overhead(each.iteration_s, each.sequence_s)


@dataclass(frozen=True)
class Costs:
    """Iteration times of a system for given values.

    Attributes:
        system: the serving system.
        block_size: tokens per block in the system.
    """

    system: System
    block_size: int

    @cached_property
    def config(self) -> EngineConfig:
        """The engine configuration that the system starts with."""
        return EngineConfig(self.system)

    @classmethod
    def of(cls, system: System, load: RecordedRun) -> Costs:
        """Return the costs of a system that served a load.

        Raises:
            PagesimError: an option of the system is invalid.
        """
        return cls(system, prepare(served_as(load, system), load.trace()).config.capacity.block_size)

    @property
    def forms(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The columns to fit in the plain form, and in the form with a curve over tokens."""
        return ((*AFFINE, COLUMNS[-1]), tuple(name for name in COLUMNS if name != "prompt_tokens"))

    def profile(self, values: Floats) -> Profile:
        """Return the profile of these values, ordered as ``COLUMNS``."""
        named = dict(zip(COLUMNS, values.tolist(), strict=True))
        iteration_s, *others = (named[name] for name in (*AFFINE, PAIRS))
        return profile_of(
            Coefficients(max(iteration_s, SHORTEST_S), *others),
            self.config.model,
            tp=self.system.tensor_parallel_size,
            kv_dtype=self.config.kv_dtype,
            block_size=self.block_size,
            tokens=tokens_table([named[name] for name in RISES]),
            moves=self._moves(),
        )

    def cost(self, values: Floats) -> Profiled:
        """Return the cost model of these values."""
        return Profiled(
            self.profile(values),
            self.config.model,
            tp=self.system.tensor_parallel_size,
            block_size=self.block_size,
            kv_dtype=self.config.kv_dtype,
        )

    def context_s(self) -> float | None:
        """Return seconds per token of context from the GPU's datasheet; None if no GPU was given."""
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
        """Return an engine time that was measured elsewhere for this kind and release of engine."""
        return self.config.engine_time

    def _moves(self) -> Terms | None:
        """Return the times of copies and swaps from the GPU's datasheet; None if no GPU was given."""
        system = self.system
        if "gpu" not in system.model_fields_set:
            return None
        by_datasheet = analytic_profile(
            gpu(system.gpu),
            self.config.model,
            tp=system.tensor_parallel_size,
            kv_dtype=self.config.kv_dtype,
            block_sizes=(self.block_size,),
        )
        return by_datasheet.terms


def tokens_table(rises: Sequence[float]) -> Table:
    """Return the table over tokens with these rises in the intervals of ``SIZES``; the last is extended."""
    last = max((place for place, rise in enumerate(rises, 1) if rise > 0), default=0)
    if not last:
        return NOTHING
    seconds = np.cumsum([0.0, *rises[:last]])
    return Table(axes={"tokens": SIZES[: last + 1]}, seconds=seconds.tolist())
