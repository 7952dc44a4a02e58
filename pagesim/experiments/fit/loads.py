"""Loads: what a server's clients measured of its requests, as arrays, and what must be true of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pagesim.errors import PagesimError
from pagesim.experiments.recorded.run import RecordedRun
from pagesim.setup.system import System
from pagesim.workloads.trace import Trace

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.bool_]

FEWEST = 20
"""Requests below which nothing is fitted to a load."""


@dataclass(frozen=True)
class Load:
    """One run of a server under one load, its requests in the order in which they were sent.

    Times are seconds from the first arrival.

    Attributes:
        name: of the run, for sentences and tables.
        arrival_s: when each request was sent, ``[N]``, never falling.
        prompt_tokens, output_tokens: of each, ``[N]``, at least 1.
        first_s, last_s: when its first and its last token came, ``[N]``.
        hash_ids: names of its prompt's blocks of ``hash_block_size`` tokens, where prompts are known.
        hash_block_size: tokens.
        max_concurrency: of a closed loop, None where each request was sent at its own time.
        options: of the system, as far as this run's differ from those of others.
        notes: what was noticed on reading.
    """

    name: str
    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    first_s: Floats
    last_s: Floats
    hash_ids: Sequence[tuple[int, ...]] | None = None
    hash_block_size: int = 16
    max_concurrency: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, run: RecordedRun, block_size: int = 16) -> Load:
        """Return a recorded run as a load.

        Args:
            run: with the times of its requests.
            block_size: tokens a block.

        Raises:
            PagesimError: it is known by means alone, or nothing can be fitted to it.
        """
        if run.means:
            raise PagesimError(f"{run.name}: is known by its means; a fit needs the times of single requests")
        requests = run.trace(block_size)
        load = cls(
            run.name,
            run.arrival_s,
            run.prompt_tokens,
            run.output_tokens,
            run.arrival_s + run.ttft_s,
            run.arrival_s + run.e2e_s,
            hash_ids=requests.hash_ids,
            hash_block_size=block_size,
            max_concurrency=run.max_concurrency,
            notes=run.notes,
        )
        load.check()
        return load

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def ttft_s(self) -> Floats:
        """Time to the first token, ``[N]``."""
        return self.first_s - self.arrival_s

    @property
    def e2e_s(self) -> Floats:
        """Time to the last token, ``[N]``."""
        return self.last_s - self.arrival_s

    def trace(self) -> Trace:
        """Return the requests as the simulator takes them."""
        closed = self.max_concurrency is not None
        return Trace(
            arrival_s=np.zeros(len(self)) if closed else self.arrival_s,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            hash_ids=self.hash_ids,
            hash_block_size=self.hash_block_size,
        )

    def on(self, system: System) -> System:
        """Return a system with the options of this run; its cost is left to who prepares it."""
        own = {**self.options, "cost": "affine:1e-3,0,0", "max_concurrency": self.max_concurrency}
        return system.model_copy(update=own)

    def check(self) -> None:
        """Refuse what no server can have done.

        Raises:
            PagesimError: there are too few requests, or none whose tokens came one after the other.
        """
        if len(self) < FEWEST:
            raise PagesimError(
                f"{self.name}: has {len(self)} requests that were answered; at least {FEWEST} are needed, "
                "send more"
            )
        if not (self.last_s > self.first_s)[self.output_tokens > 1].any():
            raise PagesimError(
                f"{self.name}: every request has its first and its last token at the same instant; a log of "
                "streamed tokens is needed (a client that streams, with the times of single tokens kept)"
            )
