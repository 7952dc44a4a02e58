"""Import of operator timings in LLMServingSim's schema: CSV files of microseconds for one layer."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pagesim.costs.held_out import TermError, error_of, held_out
from pagesim.costs.profiles.analytic import analytic_profile
from pagesim.costs.profiles.columns import column, counts, numbers, read
from pagesim.costs.profiles.fitting import fit_terms
from pagesim.costs.profiles.profile import ANY_BLOCK, Origin, Profile, Range, Shape, Terms
from pagesim.costs.profiles.samples import AXES, Sample
from pagesim.costs.table import Table, constant
from pagesim.errors import PagesimError
from pagesim.hardware import GpuSpec
from pagesim.models import ModelSpec

LAYER = {
    "layernorm": 2,
    "qkv_proj": 1,
    "rotary_emb": 1,
    "o_proj": 1,
    "gate_up_proj": 1,
    "act_fn": 1,
    "down_proj": 1,
}
"""How often each layer runs an operator in the file of dense operators."""

ONCE = {"embedding": 1, "final_layernorm": 1}
"""How often a whole model runs the remaining dense operators."""

HEAD = {"lm_head": 1, "sampler": 1}
"""Operators per sequence that gets a token."""

MOST_US = 1e9
"""Longer times, in microseconds, are rejected as mistakes."""

Points = Mapping[tuple[int, int], float]
"""Seconds by sequences and the context of each, or by a chunk's tokens and its history."""

Mixed = Mapping[tuple[int, int, int, int], float]
"""Seconds by a chunk's tokens, its history, decoding sequences, and the context of each."""


def import_llmservingsim(
    folder: Path, *, model: ModelSpec, gpu: GpuSpec, tp: int = 1, name: str, source: str = "LLMServingSim"
) -> Profile:
    """Return a profile of operators timed by LLMServingSim's profiler.

    Attention was timed in decode batches, in prompt chunks, and in both at once. One kernel computes a mixed
    batch, in which decoding does not take the same time as alone. Mixed batches therefore have their own
    term (``decode_mixed``). All-reduces, copies and swaps come from the GPU's datasheet.

    Args:
        folder: folder with ``dense.csv``, ``per_sequence.csv`` and ``attention.csv``, or with a subfolder
            ``tpN`` that has them.
        model: the dense model that was measured.
        gpu: the GPU it was measured on.
        tp: GPUs over which it was divided.
        name: name of the profile.
        source: authors of the measurements.

    Raises:
        PagesimError: a file cannot be read, lacks a column or an operator, or has an unknown operator.
    """
    if model.moe is not None or not model.keeps_all:
        raise PagesimError(
            f"{model.name} has experts, or layers that do not look back on all tokens, and the import of "
            "LLMServingSim's files knows neither; import tables of another format"
        )
    files = folder / f"tp{tp}" if (folder / f"tp{tp}").is_dir() else folder
    layers = {**{operator: times * model.layers for operator, times in LAYER.items()}, **ONCE}
    samples = [
        *_operators(files / "dense.csv", "linear", "tokens", layers),
        *_operators(files / "per_sequence.csv", "head", "sequences", HEAD),
    ]
    fit = fit_terms(samples)
    timed = _attention(files / "attention.csv", model.layers)
    decode = {(batch, mean): each for (chunk, _, batch, mean), each in timed.items() if not chunk}
    chunks = {(chunk, before): each for (chunk, before, batch, _), each in timed.items() if not batch}
    if not decode or not chunks:
        raise PagesimError(
            f"{files / 'attention.csv'}: needs rows that only decode and rows that only compute a prompt"
        )
    mixed = {point: each for point, each in timed.items() if point[0] and point[2]}
    rest = analytic_profile(gpu, model, tp=tp, kv_dtype="bf16", block_sizes=(1,)).terms
    beside, error, alone = _mixed(mixed, chunks, decode)
    terms = Terms(
        **fit.terms,
        write=constant("tokens", 0.0),
        decode={ANY_BLOCK: _table("decode", _by_context(decode))},
        decode_mixed={ANY_BLOCK: _table("decode", _by_context(beside))} if beside else {},
        prefill={ANY_BLOCK: _table("prefill", _by_keys(chunks))},
        copy={ANY_BLOCK: rest.copy_[1]},
        swap_out={ANY_BLOCK: rest.swap_out[1]},
        swap_in={ANY_BLOCK: rest.swap_in[1]},
        all_reduce=rest.all_reduce,
    )
    given = ("all_reduce", "copy", "swap_out", "swap_in")
    origins: dict[str, Origin] = {
        term: "datasheet" if term in given else "imported" for term in terms.names()
    }
    said = _said(files)
    errors = {
        **fit.errors,
        "decode": error_of(_by_context(decode), lambda points: _table("decode", points), "decode"),
        "prefill": error_of(_by_keys(chunks), lambda points: _table("prefill", points), "prefill"),
    }
    if beside:
        errors["decode_mixed"] = error
    return Profile(
        name=name,
        kind="imported",
        sentence=f"{model.name} on {gpu.name}, operators timed by others ({source})",
        model=Shape.of(model),
        tp=tp,
        dtype=said.get("variant", "bf16"),
        kv_dtype="bf16",
        gpu=gpu.name,
        terms=terms,
        origins=origins,
        sources={
            term: f"{source}, vLLM {said.get('vllm_version', 'of unknown release')}"
            for term, origin in origins.items()
            if origin == "imported"
        },
        ranges={**fit.ranges, **_ranges(decode, chunks, beside)},
        errors=errors,
        machine={"gpu": gpu.name, "source": source, "sampler": "timed with the LM head"},
        date=said.get("profiled_at", ""),
        notes=(
            "writes to the cache are a part of attention; all-reduces, copies and swaps were not measured: "
            "they are the datasheet's; the engine's own time is that of the run's engine",
            *_notes(error, alone),
        ),
    )


def _operators(file: Path, term: str, size: str, times: Mapping[str, int]) -> Iterator[Sample]:
    """Yield the total time of a term's operators at each size at which all were timed."""
    rows = read(file)
    found: dict[int, dict[str, float]] = defaultdict(dict)
    names = [str(each) for each in rows[column(rows, "layer", file)]]
    us = numbers(rows, "time_us", file, MOST_US)
    for operator, each, taken in zip(names, counts(rows, size, file), us, strict=True):
        if operator not in times:
            raise PagesimError(
                f"{file}: holds the operator {operator!r}; of {term} these are known: {', '.join(times)}"
            )
        if not (each and taken > 0):
            raise PagesimError(f"{file}: {operator} of {each} {size} took {taken} us; both must be above 0")
        found[each][operator] = float(taken)
    if missing := set(times) - set(names):
        raise PagesimError(f"{file}: holds no row of {min(missing)}, which is a part of {term}")
    if not any(len(of) == len(times) for of in found.values()):
        raise PagesimError(f"{file}: holds no number of {size} at which all of {', '.join(times)} were timed")
    for each, of in found.items():
        if len(of) == len(times):
            yield Sample(
                term, 0, each, 0, sum(times[operator] * taken for operator, taken in of.items()) / 1e6
            )


def _attention(file: Path, layers: int) -> Mixed:
    rows = read(file)
    sizes = [counts(rows, name, file) for name in ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")]
    us = numbers(rows, "time_us", file, MOST_US)
    timed = {}
    for chunk, before, batch, mean, taken in zip(*sizes, us, strict=True):
        if not (taken > 0 and (chunk or batch) and (mean or not batch)):
            raise PagesimError(
                f"{file}: a row of {chunk} tokens behind {before} and {batch} sequences of {mean} took "
                f"{taken} us; something that is computed, over some context, in a time above 0 is needed"
            )
        timed[chunk, before, batch, mean] = float(taken) * layers / 1e6
    return timed


def _mixed(
    mixed: Mixed, chunks: Points, decode: Points
) -> tuple[dict[tuple[int, int], float], TermError, TermError]:
    """Return what decoding adds to a chunk by batch and context, the held-out error, and one for comparison.

    Least squares of the relative errors of whole mixed batches give what decoding adds, whatever the chunk.
    The last error is that of adding the time of decoding alone.
    """
    points = [point for point in sorted(mixed) if point[:2] in chunks]
    unseen = set(held_out(points, "decode_mixed"))
    above: dict[tuple[int, int], float] = defaultdict(float)
    below: dict[tuple[int, int], float] = defaultdict(float)
    for index, point in enumerate(points):
        if index not in unseen:
            above[point[2:]] += (mixed[point] - chunks[point[:2]]) / mixed[point] ** 2
            below[point[2:]] += 1 / mixed[point] ** 2
    adds = {of: max(0.0, above[of] / below[of]) for of in below}

    def wrong(point: tuple[int, int, int, int], more: float) -> float:
        return abs((chunks[point[:2]] + more) / mixed[point] - 1)

    not_seen = [points[index] for index in sorted(unseen)]
    error = [wrong(point, adds[point[2:]]) for point in not_seen if point[2:] in adds]
    alone = [wrong(point, decode[point[2:]]) for point in points if point[2:] in decode]
    return adds, TermError.of(error), TermError.of(alone)


def _by_context(points: Points) -> list[tuple[tuple[float, ...], float]]:
    """Return decode points over sequences and their mean context, without those that took no time."""
    return [(point, seconds) for point, seconds in points.items() if seconds > 0]


def _by_keys(chunks: Points) -> list[tuple[tuple[float, ...], float]]:
    """Return chunk points over their tokens and the mean number of keys that each attends to."""
    return [((tokens, before + (tokens + 1) / 2), seconds) for (tokens, before), seconds in chunks.items()]


def _table(term: str, points: Sequence[tuple[tuple[float, ...], float]]) -> Table:
    return Table.of_points(AXES[term], points, rising=AXES[term][1:])


def _ranges(decode: Points, chunks: Points, beside: Points) -> dict[str, Range]:
    pairs = max(tokens * before + tokens * (tokens + 1) // 2 for tokens, before in chunks)
    tokens = [tokens for tokens, _ in chunks]
    ranges = {"prefill": Range(least=min(tokens), most=max(tokens), most_context=pairs)}
    for term, points in (("decode", decode), ("decode_mixed", beside)):
        if points:
            batches, means = ([point[side] for point in points] for side in (0, 1))
            ranges[term] = Range(least=min(batches), most=max(batches), most_context=max(means))
    return ranges


def _notes(error: TermError, alone: TermError) -> tuple[str, ...]:
    if not error.points:
        return ()
    return (
        f"attention of batches with a prompt and sequences that decode is wrong by {100 * error.mean:.1f} % "
        f"in the mean of {error.points:,} that were held out; decoding alone and prompts alone, added, are "
        f"wrong by {100 * alone.mean:.1f} %",
    )


def _said(files: Path) -> dict[str, str]:
    """Return the profiler's metadata, from ``meta.yaml`` in this folder or its parent."""
    for file in (files / "meta.yaml", files.parent / "meta.yaml"):
        if file.is_file():
            try:
                text = file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise PagesimError(f"{file}: cannot be read ({error})") from None
            lines = re.findall(r"^(vllm_version|variant|profiled_at): *['\"]?([^'\"\n]+)", text, re.MULTILINE)
            return dict(lines)
    return {}
