"""Terminal output of live runs: the machine, iteration times and check results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagesim.cli.printing import put_table
from pagesim.cli.show import say, say_if_cpu
from pagesim.results.result import Result

_PARTS = {
    "step_s": "whole iteration",
    "prepare_s": "making the batch",
    "move_s": "swaps and copies",
    "compute_s": "model",
}


def measured(result: Result) -> None:
    """Print the machine of a live run, its iteration times and the results of a check."""
    live, steps = result.summary["live"], result.steps
    assert steps is not None
    graphs = ", CUDA graphs" if live["cuda_graphs"] else ""
    say(f"measured on {live['machine']['device_name']}: {live['dtype']}{graphs}")
    rows = []
    for name, label in _PARTS.items():
        column = 1e3 * steps[name]
        if len(column):
            values = (column.mean(), column.median(), column.quantile(0.95), column.max())
            rows.append((label, *(f"{value:,.3f}" for value in values)))
    put_table("Iterations, milliseconds", ("", "mean", "p50", "p95", "longest"), rows)
    say_if_cpu(live["machine"]["device"])
    if "check" in live:
        say(verdict(live["check"]))


def verdict(check: Mapping[str, Any]) -> str:
    """Return the result of a check as a sentence."""
    looked = ", ".join(f"{number} {kind.replace('_', ' ')}" for kind, number in check["sequences"].items())
    errors = ", ".join(
        f"{name.replace('_', ' and ')} {'no number' if error is None else f'{error:.2g}'}"
        for name, error in check["max_relative_error"].items()
    )
    said = f"checked sequences: {looked or 'none'}; largest relative errors: {errors}"
    if check["passed"]:
        return f"{said}; all within {check['bound']:g}"
    return f"{said}; NOT RIGHT: {check['first_failure'] or 'nothing could be looked at'}"
