"""Compares what a server's start-up log says about its memory with a plan."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pagesim.errors import PagesimError
from pagesim.hardware.gpus import GIB
from pagesim.setup.reading import read_text

if TYPE_CHECKING:
    from pagesim.experiments.plan import Plan
    from pagesim.experiments.sglang_plan import SglangPlan

_NUMBER = r"(-?[\d,]+(?:\.\d+)?)"

LINES: dict[str, str] = {
    "weights, GiB": rf"(?:Model loading took {_NUMBER} GiB|Load weight end\..*?mem usage={_NUMBER} ?GB)",
    "activations, GiB": (
        rf"GiB for weights?, {_NUMBER} GiB for peak activation|activation peak memory takes {_NUMBER} ?GiB"
    ),
    "activations and CUDA graphs, GiB": rf"consumed memory[^,]*, {_NUMBER} GiB for peak activation",
    "CUDA graphs, GiB": rf"{_NUMBER} ?GiB for CUDAGraph memory|Estimated CUDA graph memory: {_NUMBER} GiB",
    "KV cache, GiB": rf"Available KV cache memory: {_NUMBER} GiB",
    "KV cache, tokens": rf"GPU KV cache size: {_NUMBER} tokens|max_total_num_tokens={_NUMBER}",
    "concurrency": rf"Maximum concurrency for [\d,]+ tokens per request: {_NUMBER}x",
    "running requests at most": rf"max_running_requests={_NUMBER}",
    "blocks": rf"# GPU blocks: {_NUMBER}|num_gpu_blocks is: {_NUMBER}",
}
"""Patterns of lines in vLLM's and SGLang's logs, by what they report; the last match counts."""


class Compared(NamedTuple):
    """A number from a log, with the plan's number."""

    name: str
    logged: float
    planned: float | None

    @property
    def difference(self) -> float | None:
        """The plan's number minus the log's."""
        return None if self.planned is None else self.planned - self.logged


def read_log(path: Path) -> dict[str, float]:
    """Return what a log says about a server's memory, by name.

    Raises:
        PagesimError: the file cannot be read, or says nothing about memory.
    """
    try:
        text = read_text(path)
    except OSError as error:
        raise PagesimError(f"log: cannot read {path}: {error.strerror}") from error
    found = {}
    for name, pattern in LINES.items():
        said = [next(filter(None, match.groups())) for match in re.finditer(pattern, text)]
        if said:
            found[name] = float(said[-1].replace(",", ""))
    if not found:
        raise PagesimError(
            f"log: {path} has no line that says what the server's memory is for, such as 'Available KV cache "
            "memory: 11.06 GiB' or 'max_total_num_tokens=453312'"
        )
    return found


def compare(logged: Mapping[str, float], plan: Plan | SglangPlan) -> list[Compared]:
    """Return the numbers of a log with those of a plan, in the log's units."""
    parts = {part.name: part.bytes / GIB for part in plan.parts}
    ours: dict[str, Callable[[], float | None]] = {
        "weights, GiB": lambda: parts.get("weights"),
        "activations, GiB": lambda: parts.get("activations"),
        "activations and CUDA graphs, GiB": lambda: parts.get(
            "activations and CUDA graphs", parts.get("activations", 0.0) + parts.get("CUDA graphs", 0.0)
        ),
        "CUDA graphs, GiB": lambda: parts.get("CUDA graphs"),
        "KV cache, GiB": lambda: parts.get("KV cache", parts.get("KV pools")),
        "KV cache, tokens": lambda: float(plan.tokens),
        "concurrency": lambda: getattr(plan, "concurrency", None),
        "running requests at most": lambda: getattr(plan, "max_running_requests", None),
        "blocks": lambda: float(plan.sized.num_blocks) if hasattr(plan, "sized") else None,
    }
    return [Compared(name, value, ours[name]()) for name, value in logged.items()]
