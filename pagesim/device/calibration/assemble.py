"""Assemble: from measured rows to a profile; what whole iterations take beyond their parts is overhead."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pagesim.costs.profiles import (
    EVERYWHERE,
    SLOTS,
    TERMS,
    Curve,
    Launching,
    Profile,
    Sample,
    Shape,
    TermError,
    Terms,
    error_of,
    fit_rest,
    fit_terms,
    range_of,
    unseen_of,
)
from pagesim.device.calibration.points import ITERATION, KINDS, LAUNCH, Point
from pagesim.errors import PagesimError
from pagesim.hardware import gpus
from pagesim.models import ModelSpec

Row = Mapping[str, Any]
Measured = Mapping[Point, Row]

LEAST_SHARE = 0.01
"""Of an iteration: an overhead below that cannot be told from noise, and its sample says as much."""


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
    fit = fit_terms(parts, spec.kv_heads, slots)
    whole = _wholes(good, fit.terms, launching)
    overhead, error, held_out = _overhead(whole)
    rests = [Sample("overhead", 0, each.batch, 0, each.rest) for each in whole]
    terms = Terms(**fit.terms, overhead=overhead, launching=launching)
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
        ranges={**fit.ranges, "overhead": range_of(rests)},
        errors={**fit.errors, "overhead": error},
        machine={**machine, "live": how},
        date=machine["date"],
        notes=tuple(_notes(measured, good, machine, dtype, whole)),
        samples=(*parts, *rests),
        held_out=(*fit.held_out, *(len(parts) + place for place in held_out)),
    )


def _check_complete(measured: Measured, good: Measured) -> None:
    needed = [*EVERYWHERE, ITERATION]
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


class _Whole(NamedTuple):
    """A whole iteration: sequences that decode, what it took, and what its parts come to."""

    batch: int
    seconds: float
    parts_s: float

    @property
    def rest(self) -> float:
        """What is beyond the parts; 1 % of the iteration where that cannot be told from noise."""
        return max(self.seconds - self.parts_s, LEAST_SHARE * self.seconds)

    @property
    def in_the_noise(self) -> bool:
        """Whether there is no telling."""
        return self.seconds - self.parts_s < LEAST_SHARE * self.seconds


def _wholes(good: Measured, terms: dict[str, Any], launching: Launching) -> list[_Whole]:
    found = []
    for point, row in good.items():
        if point.term == ITERATION:
            batch = point.size
            device = terms["linear"](batch) + terms["head"](batch) + terms["write"](batch)
            device += terms["decode"][point.block_size](batch, row["context"])
            found.append(_Whole(batch, row["seconds"], max(device, launching.decode_s)))
    return sorted(found)


def _overhead(wholes: list[_Whole]) -> tuple[Curve, TermError, list[int]]:
    """Return the overhead, how wrong it makes iterations that it has not seen, and which these are."""
    unseen = unseen_of(list(range(len(wholes))))
    seen = [each for place, each in enumerate(wholes) if place not in unseen]
    curve = fit_rest(
        [each.batch for each in seen], [each.parts_s for each in seen], [each.seconds for each in seen]
    )
    errors = [
        abs((each.parts_s + curve(each.batch)) / each.seconds - 1)
        for each in (wholes[place] for place in unseen)
    ]
    return curve, error_of(errors), unseen


def _notes(
    measured: Measured, good: Measured, machine: Row, dtype: str, wholes: list[_Whole]
) -> Iterable[str]:
    if machine["device"] == "cpu":
        yield f"measured on a CPU in {dtype}, by the reference kernels: it says nothing of a GPU"
    failed = Counter(row["status"] for point, row in measured.items() if point not in good)
    for status, count in sorted(failed.items()):
        points = "1 point was" if count == 1 else f"{count} points were"
        yield f"{points} not measured: {status}"
    if lost := sum(each.in_the_noise for each in wholes):
        yield (
            f"at {lost} of {len(wholes)} batch sizes an iteration took no longer than its parts: its "
            "overhead is lost in the noise"
        )


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
