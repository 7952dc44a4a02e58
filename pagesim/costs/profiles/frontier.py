"""Import of attention in Frontier's schema, which is Vidur's, timed so densely that tables serve better."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from pagesim.costs.profiles.analytic import analytic_profile
from pagesim.costs.profiles.attention_tables import ChunkTable, DecodeTable
from pagesim.costs.profiles.columns import one, read
from pagesim.costs.profiles.curves import some_of
from pagesim.costs.profiles.fitting import error_of, fit_terms
from pagesim.costs.profiles.points import Points, whole
from pagesim.costs.profiles.profile import ANY_BLOCK, Origin, Profile, Range, Shape, TermError, Terms
from pagesim.costs.profiles.rescale import LAUNCH_S
from pagesim.costs.profiles.samples import Sample
from pagesim.costs.profiles.vidur import all_reduce_samples, attention_samples, linear_samples
from pagesim.errors import PagesimError
from pagesim.hardware import GpuSpec
from pagesim.models import ModelSpec

KNOTS = 16
"""Of each size of a table: what lies between them tells how wrong it is."""


def import_frontier(
    attention: Path,
    linear: Path | None = None,
    all_reduce: Path | None = None,
    *,
    model: ModelSpec,
    gpu: GpuSpec,
    tp: int = 1,
    name: str,
    source: str,
) -> Profile:
    """Return a profile whose attention is a table of Frontier's timings.

    Of some batches, contexts, chunks and histories the table has what was measured; the measurements between
    them are held out. Where ``tp`` was not timed, attention is that of one GPU: a launch a layer, and the
    share of the heads of the rest.

    Args:
        attention: timings of prefill, of one prompt at a time, and of decode, in Vidur's schema.
        linear: see `import_vidur`; the GPU's datasheet's when left out.
        all_reduce: likewise.
        model: the one that was measured.
        gpu: what it was measured on.
        tp: GPUs over which the model is divided.
        name: of the profile.
        source: whose measurements they are.

    Raises:
        PagesimError: a file cannot be read, lacks a column, or holds too few rows of this model.
    """
    notes: list[str] = []
    rows = read(attention)
    block_size = one(rows, "block_size", attention)
    launch_s = LAUNCH_S * model.layers
    timed: list[Sample] = []
    for sample in attention_samples(rows, attention, model, 1, block_size, notes):
        floor = min(launch_s, sample.seconds)
        timed.append(sample._replace(seconds=floor + (sample.seconds - floor) / tp))
    samples = [sample for sample in timed if sample.term == "write"]
    if linear is not None:
        samples += linear_samples(read(linear), linear, model, tp)
    if all_reduce is not None and tp > 1:
        samples += all_reduce_samples(read(all_reduce), all_reduce, model, tp, notes)
    decode = _points((each.size, each.context // each.size, each) for each in timed if each.term == "decode")
    chunks_timed = [each for each in timed if each.term == "prefill"]
    single = [each for each in chunks_timed if _history(each) >= 0]
    if left_out := len(chunks_timed) - len(single):
        notes.append(
            f"{left_out} rows of {attention.name} are of several prompts at once, which no table is of"
        )
    prefill = _points((each.size, _history(each), each) for each in single)
    known = {length: sum(each == length for each, _ in prefill) for length, _ in prefill}
    if not decode or max(known.values(), default=0) < 2:
        raise PagesimError(
            f"{attention}: needs rows of decode, and of chunks of a prompt behind two histories or more, "
            "that took a time above 0"
        )
    by_batch, decode_error = _decode(decode)
    prefill = {point: each for point, each in prefill.items() if known[point[0]] > 1}
    chunks, prefill_error = _prefill(prefill)
    fit = fit_terms(samples, model.kv_heads_per_gpu(tp))
    rest = analytic_profile(gpu, model, tp=tp, block_sizes=(1,)).terms
    terms = Terms(
        linear=fit.terms.get("linear", rest.linear),
        head=rest.head,
        write=fit.terms.get("write", rest.write),
        decode={ANY_BLOCK: by_batch},
        prefill={ANY_BLOCK: chunks},
        copy={ANY_BLOCK: rest.copy_[1]},
        swap_out={ANY_BLOCK: rest.swap_out[1]},
        swap_in={ANY_BLOCK: rest.swap_in[1]},
        all_reduce=fit.terms.get("all_reduce", rest.all_reduce),
    )
    imported = {*fit.terms, "decode", "prefill"}
    origins: dict[str, Origin] = {
        term: "imported" if term in imported else "datasheet" for term in terms.names()
    }
    others = ", ".join(term for term, origin in origins.items() if origin == "datasheet")
    return Profile(
        name=name,
        kind="imported",
        sentence=f"{model.name} on {gpu.name}, attention timed by others ({source})",
        model=Shape.of(model),
        tp=tp,
        gpu=gpu.name,
        terms=terms,
        origins=origins,
        sources=dict.fromkeys(("decode", "prefill"), source),
        ranges={
            **fit.ranges,
            "decode": _range(decode, lambda batch, mean: mean),
            "prefill": _range(prefill, lambda tokens, before: tokens * before + tokens * (tokens + 1) // 2),
        },
        errors={**fit.errors, "decode": decode_error, "prefill": prefill_error},
        machine={"gpu": gpu.name, "source": source},
        notes=(
            f"attention was timed with blocks of {block_size} tokens, and is taken for that of any",
            f"not measured, but the datasheet's: {others}; the engine's own time is that of the run's engine",
            *notes,
        ),
    )


def _points(timed: Iterable[tuple[int, int, Sample]]) -> dict[tuple[int, int], float]:
    """Return the median of what each pair of sizes took."""
    found: dict[tuple[int, int], list[float]] = defaultdict(list)
    for row, column, sample in timed:
        found[row, column].append(sample.seconds)
    return {point: float(np.median(each)) for point, each in found.items()}


def _history(sample: Sample) -> int:
    """Return the tokens before a chunk of one prompt."""
    return (sample.context - sample.size * (sample.size + 1) // 2) // sample.size


def _decode(points: Points) -> tuple[DecodeTable, TermError]:
    batches, means = (_some({point[side] for point in points}) for side in (0, 1))
    kept = {point: each for point, each in points.items() if point[0] in batches and point[1] in means}
    grid = whole(kept)
    table = DecodeTable(batches=grid.rows, contexts=grid.columns, seconds=grid.seconds)
    return table, error_of(
        [abs(table(n, n * mean) / each - 1) for (n, mean), each in points.items() if (n, mean) not in kept]
    )


def _prefill(points: Points) -> tuple[ChunkTable, TermError]:
    chunks = _some({tokens for tokens, _ in points})
    kept = {point: each for point, each in points.items() if point[0] in chunks}
    grid = whole(kept, _some({before for _, before in kept}))
    table = ChunkTable(
        tokens=grid.rows,
        histories=grid.columns,
        seconds=grid.seconds,
        launch_s=min(row[0] for row in grid.seconds),
    )
    wrong = [
        abs(table(tokens, tokens * before + tokens * (tokens + 1) // 2) / each - 1)
        for (tokens, before), each in points.items()
        if (tokens, before) not in kept
    ]
    return table, error_of(wrong)


def _some(sizes: set[int]) -> set[int]:
    """Return some of the sizes, evenly by ratio; nothing before a chunk is one of them."""
    above = np.array(sorted(size for size in sizes if size), np.int64)
    return {*(size for size in sizes if not size), *(some_of(above, KNOTS).tolist() if len(above) else ())}


def _range(points: Points, context: Callable[[int, int], int]) -> Range:
    sizes = [size for size, _ in points]
    return Range(least=min(sizes), most=max(sizes), most_context=max(context(*point) for point in points))
