"""Assemble: from measured rows to a profile; what whole iterations take beyond their parts is overhead."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from pagesim.calibration.points import BESIDE, ITERATION, KINDS, LAUNCH, SPLITS, Point
from pagesim.errors import PagesimError
from pagesim.profiles import SLOTS, TERMS, Launching, Profile, Sample, Shape, Terms, fit_terms
from pagesim.specs import ModelSpec, gpus

Row = Mapping[str, Any]
Measured = Mapping[Point, Row]

LEAST_SHARE = 0.01
"""Of an iteration: an overhead below that cannot be told from noise, and is taken for as much."""


def assemble(
    measured: Measured,
    *,
    name: str,
    spec: ModelSpec,
    dtype: str,
    kv_dtype: str,
    machine: dict[str, Any],
    how: dict[str, Any],
) -> Profile:
    """Return the profile that these rows are enough for.

    Args:
        measured: by point, what came of it: ``status``, ``seconds`` where that is ok, else ``error``.
        name: of the profile.
        spec: the model.
        dtype: of weights and activations.
        kv_dtype: of the cache, as a scenario has it.
        machine: as `pagesim.kernels.machine.describe_machine` gives it.
        how: how iterations were carried out, as in the summary of a live run.

    Raises:
        PagesimError: a term was not measured at all; the sentence says why.
    """
    good = {point: row for point, row in measured.items() if row["status"] == "ok"}
    parts = [point.sample(row["seconds"]) for point, row in good.items() if point.term in TERMS]
    _check_complete(measured, good)
    launching = Launching(
        **{f"{KINDS[point.size]}_s": row["seconds"] for point, row in good.items() if point.term == LAUNCH}
    )
    # Every part is known before what is beyond them can be.
    slots = SLOTS if machine["device"] == "cuda" else (0,)
    fitted = fit_terms(parts, spec.kv_heads, slots).terms
    whole = [(point, row) for point, row in good.items() if point.term == ITERATION]
    beyond = [_overhead(point, row, fitted, launching) for point, row in whole]
    samples = [*parts, *(sample for sample, _ in beyond)]
    fit = fit_terms(samples, spec.kv_heads, slots)
    terms = Terms(**fit.terms, launching=launching)
    return Profile(
        name=name,
        kind="measured",
        sentence=(
            f"{spec.name} on {machine['device_name']}, measured by pagesim calibrate, "
            f"{'with' if how['cuda_graphs'] else 'without'} CUDA graphs"
        ),
        model=Shape.of(spec),
        dtype=dtype,
        kv_dtype=kv_dtype,
        gpu=_catalogued(machine) if machine["device"] == "cuda" else None,
        terms=terms,
        origins=dict.fromkeys(terms.names(), "measured"),
        ranges=fit.ranges,
        errors=fit.errors,
        machine={**machine, "live": how},
        date=machine["date"],
        notes=tuple(_notes(measured, good, machine, dtype, sum(small for _, small in beyond))),
        samples=tuple(samples),
        held_out=fit.held_out,
    )


def _check_complete(measured: Measured, good: Measured) -> None:
    needed = [*TERMS[: TERMS.index("overhead")], ITERATION]
    for term in needed:
        sizes = {point.block_size for point in measured if point.term == term}
        for size in sorted(sizes) or [0]:
            if any((point.term, point.block_size) == (term, size) for point in good):
                continue
            why = [
                row.get("error") for point, row in measured.items()
                if (point.term, point.block_size) == (term, size)
            ]  # fmt: skip
            raise PagesimError(
                f"{term.replace('_', ' ')}{f' at block_size {size}' if size else ''} could not be measured: "
                f"{why[0] if why else 'no point was asked for'}"
            )


def _overhead(point: Point, row: Row, terms: dict[str, Any], launching: Launching) -> tuple[Sample, bool]:
    """Return the overhead of a whole iteration, and whether it is too small to be told from noise."""
    batch, seconds = point.size, row["seconds"]
    device = (
        terms["linear"](batch)
        + terms["head"](batch)
        + terms["write"](batch)
        + terms["decode"][point.block_size](batch, row["context"])
    )
    beyond = seconds - max(device, launching.decode_s)
    least = LEAST_SHARE * seconds
    return Sample("overhead", 0, batch, 0, max(beyond, least)), beyond < least


def _notes(measured: Measured, good: Measured, machine: Row, dtype: str, lost_in_noise: int) -> Iterable[str]:
    if machine["device"] == "cpu":
        yield f"measured on a CPU in {dtype}, by the reference kernels: it says nothing of a GPU"
    failed = Counter(row["status"] for point, row in measured.items() if point not in good)
    for status, count in sorted(failed.items()):
        points = "1 point was" if count == 1 else f"{count} points were"
        yield f"{points} not measured: {status}"
    if lost_in_noise:
        yield (
            f"at {lost_in_noise} batch sizes an iteration took no longer than its parts; its overhead is "
            f"taken for {LEAST_SHARE:.0%} of it"
        )
    for point, row in good.items():
        if point.term == BESIDE:
            direction = ("out", "in")[point.size]
            yield (
                f"decode attention takes {row['slowdown']:.2f} times as long while blocks are swapped "
                f"{direction}; an iteration waits for its swaps, so no term counts it"
            )
    yield from _splits(good)


def _splits(good: Measured) -> Iterable[str]:
    """Say by how much the best forced number of splits beats the planner's."""
    forced: dict[Point, float] = {}
    for point, row in good.items():
        if point.term == SPLITS:
            planned = point._replace(term="decode", splits=0)
            if planned in good:
                forced[planned] = min(row["seconds"], forced.get(planned, float("inf")))
    if forced:
        worst = max(good[planned]["seconds"] / seconds for planned, seconds in forced.items())
        yield f"the best forced number of splits takes {1 / worst:.2f} of the planner's time at the worst"


def _catalogued(machine: Row) -> str | None:
    """Return the catalogue's name of a GPU, told by its own name and its memory."""
    words = set(re.split(r"[^a-z0-9]+", str(machine["device_name"]).lower()))
    for each in gpus():
        model = each.name.split("-")
        wanted = model[:1] if model[0] != "rtx" else model
        alike = abs(machine["memory_bytes"] / each.memory_bytes - 1) < 0.1
        if alike and set(wanted) <= words:
            return each.name
    return None
