"""Assembly of a profile from measurements; overhead is what whole iterations take beyond their parts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pagesim.costs.held_out import TermError, held_out
from pagesim.costs.profiles import Launching, Profile, Sample, Shape, Terms, fit_terms, range_of, table_of
from pagesim.costs.profiles.analytic import FLOPS, HBM, LINK, datasheet_table
from pagesim.costs.profiles.bounds import Bounds
from pagesim.costs.table import Table
from pagesim.device.calibration.points import ITERATION, LAUNCHES, Measurement
from pagesim.device.calibration.rank import TensorParallelRank
from pagesim.errors import PagesimError
from pagesim.hardware import gpu as gpu_of
from pagesim.hardware import gpus
from pagesim.kernels.bench.rows import OK
from pagesim.setup.engine_config import EngineConfig

LEAST_SHARE = 0.01
"""Fraction of an iteration below which overhead is noise; its sample then has this value."""


class Timed(NamedTuple):
    """Outcome of a measurement.

    Attributes:
        status: ``ok``, or why there is no time.
        error: what went wrong, in a sentence; None if nothing did.
        seconds: seconds of all layers.
        context: tokens that the sequences of a whole iteration attended to.
    """

    status: str
    error: str | None
    seconds: float = 0.0
    context: int = 0


Measured = Sequence[tuple[Measurement, Timed]]


def assemble(
    measured: Measured,
    *,
    name: str,
    rank: TensorParallelRank,
    config: EngineConfig,
    machine: dict[str, Any],
    how: dict[str, Any],
) -> Profile:
    """Return the profile of these measurements, with datasheet terms where pagesim has no kernel.

    Args:
        measured: measurements and their outcomes.
        name: name of the profile.
        rank: what was measured.
        config: configuration of the system.
        machine: the machine, as described by `pagesim.kernels.machine.describe_machine`.
        how: how iterations were carried out, as in the summary of a live run.

    Raises:
        PagesimError: an operator has no measurement at some block size; the message says why.
    """
    spec, tp = rank.whole, rank.tp
    good = [(each, timed) for each, timed in measured if timed.status == OK]
    whole_ones = (ITERATION, *LAUNCHES)
    parts = [Sample(*each[:4], timed.seconds) for each, timed in good if each.operator not in whole_ones]
    _check_complete(measured, good)
    host = {each.operator: timed.seconds for each, timed in good}
    decode_s, prompt_s, mixed_s = (host.get(each, 0.0) for each in LAUNCHES)
    launching = Launching(decode_s=decode_s, prompt_s=prompt_s, mixed_s=mixed_s)
    # Overhead can be derived only once all parts are known.
    fit = fit_terms(parts)
    found = _none_where_no_layer_attends_to_all(fit.terms)
    whole = _wholes(good, found, launching)
    rests = [each.sample for each in whole]
    errors, ranges, unseen = dict(fit.errors), dict(fit.ranges), list(fit.held_out)
    if whole:
        found["overhead"], errors["overhead"], places = _overhead(whole)
        ranges["overhead"] = range_of(rests)
        unseen += [len(parts) + place for place in places]
    here = _catalogued(machine) if machine["device"] == "cuda" else None
    bounds = Bounds(spec, gpu_of(here) if here else config.gpu, tp=tp, kv_dtype=config.kv_dtype)
    of_datasheet: dict[str, Any] = {}
    if tp > 1:
        of_datasheet["all_reduce"] = datasheet_table("tokens", bounds.all_reduce, LINK)
    if spec.moe is not None:
        of_datasheet["experts"] = datasheet_table("tokens", bounds.experts, min(FLOPS, HBM))
    terms = Terms(**found, **of_datasheet, launching=launching)
    return Profile(
        name=name,
        kind="measured",
        sentence=(
            f"{spec.name} on {machine['device_name']}, measured by pagesim calibrate, "
            f"{'with' if how['cuda_graphs'] else 'without'} CUDA graphs"
        ),
        model=Shape.of(spec),
        tp=tp,
        dtype=spec.weights_in_words if spec.weights.experts.bits != 16 else rank.dtype,
        kv_dtype=config.kv_dtype,
        queries=rank.queries,
        gpu=here,
        terms=terms,
        origins={term: "datasheet" if term in of_datasheet else "measured" for term in terms.names()},
        ranges=ranges,
        errors=errors,
        machine={**machine, "live": how},
        date=machine["date"],
        notes=tuple(_notes(measured, machine, rank, whole, of_datasheet, here or config.gpu.name)),
        samples=(*parts, *rests),
        held_out=tuple(unseen),
    )


def _check_complete(measured: Measured, good: Measured) -> None:
    """Check that each requested operator has a time at each block size."""
    wanted = dict.fromkeys((each.operator, each.block_size) for each, _ in measured)
    there = {(each.operator, each.block_size) for each, _ in good}
    for operator, size in wanted:
        if (operator, size) not in there:
            why = next(
                timed.error for each, timed in measured
                if (each.operator, each.block_size) == (operator, size)
            )  # fmt: skip
            at = f" at block_size {size}" if size else ""
            raise PagesimError(f"{operator.replace('_', ' ')}{at} could not be measured: {why}")


def _none_where_no_layer_attends_to_all(fitted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fitted terms, adding full attention that takes no time if no layer has it."""
    sizes = fitted["copy"]
    nothing = {
        "decode": Table(axes={"sequences": (1,), "context": (1,)}, seconds=((0.0,),)),
        "prefill": Table(axes={"tokens": (1,), "keys": (1,)}, seconds=((0.0,),)),
    }
    return {**{term: dict.fromkeys(sizes, each) for term, each in nothing.items()}, **fitted}


class _Whole(NamedTuple):
    """A whole iteration: its decoding sequences, measured seconds, and the sum of its parts."""

    batch: int
    seconds: float
    parts_s: float

    @property
    def sample(self) -> Sample:
        """The time beyond the parts, or 1 % of the iteration if that is below the noise."""
        rest = max(self.seconds - self.parts_s, LEAST_SHARE * self.seconds)
        return Sample("overhead", 0, self.batch, 0, rest)

    @property
    def in_the_noise(self) -> bool:
        """Whether the overhead is below the noise."""
        return self.seconds - self.parts_s < LEAST_SHARE * self.seconds


def _wholes(good: Measured, terms: dict[str, Any], launching: Launching) -> list[_Whole]:
    found = []
    for each, timed in good:
        if each.operator == ITERATION:
            batch = each.size
            device = terms["linear"](batch) + terms["head"](batch) + terms["write"](batch)
            device += terms["decode"][each.block_size](batch, timed.context / batch)
            found.append(_Whole(batch, timed.seconds, max(device, launching.decode_s)))
    return sorted(found)


def _overhead(wholes: list[_Whole]) -> tuple[Table, TermError, list[int]]:
    """Return the overhead, the error of held-out iterations with it, and their indices."""
    unseen = held_out([each.sample.point for each in wholes], "overhead")
    table = table_of([each.sample for place, each in enumerate(wholes) if place not in unseen])
    errors = [
        abs((each.parts_s + table(each.batch)) / each.seconds - 1)
        for each in (wholes[place] for place in unseen)
    ]
    return table, TermError.of(errors), unseen


def _notes(
    measured: Measured,
    machine: Mapping[str, Any],
    rank: TensorParallelRank,
    wholes: list[_Whole],
    of_datasheet: Iterable[str],
    datasheet: str,
) -> Iterable[str]:
    if machine["device"] == "cpu":
        yield f"measured on a CPU in {rank.dtype}, by the reference kernels: it says nothing of a GPU"
    failed = Counter(timed.status for _, timed in measured if timed.status != OK)
    for status, count in sorted(failed.items()):
        points = "1 point was" if count == 1 else f"{count} points were"
        yield f"{points} not measured: {status}"
    if lost := sum(each.in_the_noise for each in wholes):
        yield (
            f"at {lost} of {len(wholes)} batch sizes an iteration took no longer than its parts: its "
            "overhead is lost in the noise"
        )
    for term in of_datasheet:
        yield f"{term.replace('_', ' ')}: not measured on one device; it is the datasheet's of {datasheet}"
    if not rank.is_built:
        yield "linear and head are matrix products alone: norms, activations and embedding were not timed"
    if any(each.latent for each in rank.attention):
        yield "prompts of latent attention were timed with a key and a value a head, as vLLM computes them"
    if not rank.runs_live:
        yield (
            "launching and the engine's own time were not measured, as no live run has such layers, caches "
            "or several devices: the time is that of the engine that runs"
        )


def _catalogued(machine: Mapping[str, Any]) -> str | None:
    """Return the catalogue name of a GPU, identified by its device name and memory; None if unknown."""
    words = set(re.split(r"[^a-z0-9]+", str(machine["device_name"]).lower()))
    for each in gpus():
        model = each.name.split("-")
        wanted = model[:1] if model[0] != "rtx" else model
        alike = abs(machine["memory_bytes"] / each.memory_bytes - 1) < 0.1
        if alike and set(wanted) <= words:
            return each.name
    return None
