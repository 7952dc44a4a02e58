"""Which profiles of operators come with pagesim: common models wherever the tables have every term."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pagesim.costs.operators.assemble import GPUS, import_operators
from pagesim.costs.operators.dtypes import dtypes
from pagesim.costs.operators.held_out import held_out_of
from pagesim.costs.operators.iteration import operators
from pagesim.costs.operators.store import Store
from pagesim.costs.operators.system_tables import Tables
from pagesim.costs.profiles.profile import Profile
from pagesim.hardware import GpuSpec
from pagesim.hardware import gpu as gpu_of
from pagesim.models import ModelSpec
from pagesim.models import model as model_of

MODELS: tuple[tuple[str, str | None], ...] = (
    *(("llama-3.1-8b", None), ("llama-3.1-70b", None), ("llama-3.1-8b", "fp8"), ("llama-3.1-70b", "fp8")),
    *(("qwen3-8b", None), ("qwen3-14b", None), ("qwen3-32b", None), ("qwen3-30b-a3b", None)),
    *(("gpt-oss-20b", None), ("gpt-oss-120b", None), ("deepseek-v3", None)),
)
"""Models, and the type of their weights where it is not the one that they are released in."""

SYSTEMS = ("a100_sxm", "h100_sxm", "h200_sxm", "b200_sxm")
DEGREES = (1, 2, 4, 8)

ROOM = 0.85
"""Share of a GPU's memory that weights may take, so that there is room for a cache."""


class Entry(NamedTuple):
    """A model on some GPUs of a system: its profile, or why there is none."""

    model: str
    weights: str | None
    gpu: str
    tp: int
    profile: Profile | None
    why: str = ""


def bundle(
    tables: Path | None = None,
    *,
    models: Sequence[tuple[str, str | None]] = MODELS,
    systems: Sequence[str] = SYSTEMS,
    degrees: Sequence[int] = DEGREES,
    note: Callable[[str], None] = lambda line: None,
) -> Iterator[Entry]:
    """Yield the profiles that are to be bundled, of vLLM's current release, and what stands in the way.

    Args:
        tables: a folder of them; the installed package when left out.
        models: of the catalogue, and their weights' type.
        systems: as the tables call them.
        degrees: of tensor parallelism.
        note: told which system is looked at.

    Raises:
        PagesimError: there are no tables, or they are damaged.
    """
    for system in systems:
        note(system)
        opened = Tables(Store(system, tables=tables))
        scores = held_out_of(opened)
        gpu = gpu_of(GPUS[system])
        for name, weights in models:
            model = model_of(name) if weights is None else model_of(name).with_weights(weights)
            for tp in degrees:
                if not fits(model, gpu, tp):
                    yield Entry(name, weights, gpu.name, tp, None, "its weights do not fit")
                    continue
                lacking = operators(opened, model, tp, dtypes(model)).missing
                if lacking:
                    why = f"no table of {', '.join(sorted(lacking))}"
                    yield Entry(name, weights, gpu.name, tp, None, why)
                    continue
                profile = import_operators(opened, model, tp=tp, weight_dtype=weights, scores=scores)
                yield Entry(name, weights, gpu.name, tp, profile)


def fits(model: ModelSpec, gpu: GpuSpec, tp: int) -> bool:
    """Return whether a model's weights leave room on each of so many GPUs."""
    return model.weight_bytes_per_gpu(tp) <= ROOM * gpu.memory_bytes
