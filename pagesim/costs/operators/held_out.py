"""How wrong interpolation is: points of the tables held out, and what the others say of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pagesim.costs.operators import attention_rows, decoding, experts, gemm, latent, prompts, reduces
from pagesim.costs.operators.grids import EVERY, Grid, Point, Stretch, plain
from pagesim.costs.operators.store import Store
from pagesim.costs.operators.system_tables import Tables
from pagesim.costs.operators.table_rows import Rows

MOST_TOKENS, LEAST_WIDTH, MOST_BATCH, LEAST_CONTEXT = 8192, 1024, 256, 128
"""Errors are of points with at most so many tokens, widths n and k of so many or more, at most so many
sequences, and so much context or more: what a server does."""

FAR = 0.2
"""Points that are wrong by more than this are counted."""

BARS = {"linear": 0.07, "decode": 0.08, "prompts": 0.12, "all_reduce": 0.08, "experts": 0.08}
"""What the mean error of a term may be; of ``linear`` that of 16-bit weights."""


class Score(NamedTuple):
    """How wrong a term is on points that were held out.

    Attributes:
        term: ``linear``, ``decode``, ``prompts``, ``all_reduce``, ``experts``, ``latent decode``, ``latent
            prompts``; ``linear, shapes``: whole shapes held out; ``layer, decode`` and ``layer, prompts``.
        dtype: of weights or of the cache, as the tables call it.
        version: of the engine, of the table.
        points: how many were held out.
        mean: of the errors, relative and in absolute value.
        far: share of points that are wrong by more than `FAR`.
        worst: of the errors.
        floor: the mean error of a line between the points next to each on both sides, which the tables' own
            jumps set; None where there is no such line.
        bar: what the mean may be, or None.
    """

    term: str
    dtype: str
    version: str
    points: int
    mean: float
    far: float
    worst: float
    floor: float | None = None
    bar: float | None = None

    @property
    def passes(self) -> bool:
        """Whether the mean is within its bar, and of decode attention at most a tenth of points far off."""
        if self.bar is None:
            return True
        return self.mean <= self.bar and (self.term != "decode" or self.far <= 0.1)


class Errors:
    """Errors of one term, and what the points next to each say."""

    def __init__(self) -> None:
        self._errors: list[float] = []
        self._floors: list[float] = []

    def add(self, guess: float, measured: float, beside: float | None = None) -> None:
        """Note what was guessed of a point; a guess that there is not is left out."""
        if not np.isfinite(guess):
            return
        self._errors.append(abs(guess / measured - 1))
        if beside is not None and np.isfinite(beside):
            self._floors.append(abs(beside / measured - 1))

    def score(self, term: str, dtype: str, version: str, bar: float | None = None) -> Score | None:
        """Return the errors summed up; None if there are none."""
        if not self._errors:
            return None
        wrong = np.array(self._errors)
        floor = float(np.mean(self._floors)) if self._floors else None
        far = float(np.mean(wrong > FAR))
        return Score(
            term, dtype, version, len(wrong), float(wrong.mean()), far, float(wrong.max()), floor, bar
        )


def held_out(
    system: str, backend: str = "vllm", version: str | None = None, tables: Path | None = None
) -> list[Score]:
    """Return how wrong every term is that a system's tables have, on a fifth of their points.

    Args:
        system: e.g. ``h100_sxm``.
        backend: the engine.
        version: of the engine; the current one when left out.
        tables: a folder of them; the installed package when left out.

    Raises:
        PagesimError: there is no such system, or a table is damaged.
    """
    return held_out_of(Tables(Store(system, backend, version, tables)))


def held_out_of(tables: Tables) -> list[Score]:
    """Return how wrong every term is that these tables have, on a fifth of their points.

    Raises:
        PagesimError: a table is damaged.
    """
    scores: list[Score | None] = []
    for part in (_linear, _attention, _reduces, _experts, _latent, _layer):
        scores.extend(part(tables))
    return [score for score in scores if score is not None]


def _note(
    errors: Errors,
    grid: Grid,
    salt: str,
    axis: int,
    guess: Callable[[Grid, Point], float],
    counts: Callable[[tuple[int, ...]], bool],
    stretch: Stretch = plain,
    fifth: int = 0,
) -> None:
    """Note the errors of a grid's points that count, a fifth of them held out."""
    points = grid.held_out(salt, axis, fifth)
    thin = grid.without(points)
    for point in points:
        if counts(grid.sizes(point)):
            beside = grid.line(point, axis, stretch)
            errors.add(guess(thin, point), float(grid.seconds[point]), beside)


def _any(sizes: tuple[int, ...]) -> bool:
    return True


def _linear(tables: Tables) -> Iterator[Score | None]:
    if tables.gemm is None:
        return
    rows, version = tables.gemm

    def counts(sizes: tuple[int, ...]) -> bool:
        m, n, k = sizes
        return m <= MOST_TOKENS and min(n, k) >= LEAST_WIDTH

    for dtype in rows.values("gemm_dtype"):
        grid = Grid.of(rows.where(gemm_dtype=dtype), "m", "n", "k")
        points, shapes = Errors(), Errors()
        _note(points, grid, dtype, 0, gemm.guess, counts)
        # Of shapes that are held out nothing is known at any m.
        every = [(n, k) for n in range(grid.seconds.shape[1]) for k in range(grid.seconds.shape[2])]
        whole = Grid(
            grid.axes[1:], np.zeros(grid.seconds.shape[1:]), np.zeros(grid.seconds.shape[1:], np.int64)
        )
        for n, k in set(whole.held_out(dtype, 0)) & set(whole.held_out(dtype, 1)) & set(every):
            for m in range(grid.seconds.shape[0]):
                measured = float(grid.seconds[m, n, k])
                if np.isfinite(measured) and counts(grid.sizes((m, n, k))):
                    shapes.add(gemm.guess_shape(grid, (m, n, k)), measured)
        bar = BARS["linear"] if dtype == "bfloat16" else None
        yield points.score("linear", dtype, version, bar)
        yield shapes.score("linear, shapes", dtype, version)


def _attention(tables: Tables) -> Iterator[Score | None]:
    for term, found, sizes, axis, guess, stretch in (
        ("decode", tables.decoding, ("batch_size", "step"), 1, decoding.guess, plain),
        ("prompts", tables.prompts, ("batch_size", "isl"), 1, prompts.guess, prompts.bent),
    ):
        if found is None:
            continue
        rows, version = found
        for dtype in rows.values("kv_cache_dtype"):
            errors = Errors()
            of = rows.where(kv_cache_dtype=dtype, attn_dtype="bfloat16")
            for key, each in of.groups(*attention_rows.KEY):
                salt = f"{term},{dtype},{','.join(map(str, key))}"
                _note(errors, Grid.of(each, *sizes), salt, axis, guess, _served(term == "decode"), stretch)
            yield errors.score(term, dtype, version, BARS[term])


def _served(decodes: bool) -> Callable[[tuple[int, ...]], bool]:
    """Return what says of a batch and a length whether it counts; a step is one token short of context."""

    def counts(sizes: tuple[int, ...]) -> bool:
        batch, length = sizes
        return batch <= MOST_BATCH and length + decodes >= LEAST_CONTEXT

    return counts


def _reduces(tables: Tables) -> Iterator[Score | None]:
    if tables.reduces is None:
        return
    rows, version = tables.reduces
    errors = Errors()
    # So few points that a fifth of them says little: each fifth is held out in its turn.
    grid = reduces.series(rows)
    for fifth in range(EVERY):
        _note(errors, grid, "all_reduce", 0, reduces.guess, _any, fifth=fifth)
    yield errors.score("all_reduce", "bfloat16", version, BARS["all_reduce"])


def _experts(tables: Tables) -> Iterator[Score | None]:
    if tables.experts is None:
        return
    rows, version = tables.experts
    for dtype in rows.values("moe_dtype"):
        errors = Errors()
        for key, each in rows.where(moe_dtype=dtype).groups(*experts.KEY, "distribution"):
            salt = f"experts,{dtype},{','.join(map(str, key))}"
            grid = Grid.of(each, "num_tokens")
            _note(errors, grid, salt, 0, experts.guess, lambda sizes: sizes[0] <= MOST_TOKENS)
        yield errors.score("experts", dtype, version, BARS["experts"])


def _latent(tables: Tables) -> Iterator[Score | None]:
    for term, found, sizes, guess, stretch in (
        ("latent decode", tables.latent_decoding, ("batch_size", "step"), latent.guess_decode, plain),
        ("latent prompts", tables.latent_prompts, ("batch_size", "isl"), latent.guess_prompts, prompts.bent),
    ):
        if found is None:
            continue
        rows, version = found
        for (gemm_dtype, kv_dtype), of in rows.groups("gemm_type", "kv_cache_dtype"):
            errors = Errors()
            for key, each in of.groups("mla_dtype", "num_heads", "tp_size"):
                salt = f"{term},{gemm_dtype},{kv_dtype},{','.join(map(str, key))}"
                served = _served(term == "latent decode")
                _note(errors, Grid.of(each, *sizes), salt, 1, guess, served, stretch)
            yield errors.score(term, f"{gemm_dtype}, KV {kv_dtype}", version)


LAYER = {"hidden": 4096, "ffn": 14336, "heads": 32, "kv_heads": 8, "head_dim": 128}
"""The layer whose sum is a row of its own: Llama-3.1-8B's."""


def _layer(tables: Tables) -> Iterator[Score | None]:
    """Yield the error of the sum of a layer's operators, each without the points that its own row holds out.

    What was measured is the sum by the whole tables, since not every product is of a measured shape. Each
    fifth is held out in its turn.
    """
    if tables.gemm is None:
        return
    rows, version = tables.gemm
    grid = Grid.of(rows.where(gemm_dtype="bfloat16"), "m", "n", "k")
    whole, thin = gemm.Gemm(grid), []
    for fifth in range(EVERY):
        gone = grid.held_out("bfloat16", 0, fifth)
        thin.append(gemm.Gemm(grid.without(gone).filled(gemm.guess, gone)))
    hidden, ffn, width = LAYER["hidden"], LAYER["ffn"], LAYER["heads"] * LAYER["head_dim"]
    qkv = (LAYER["heads"] + 2 * LAYER["kv_heads"]) * LAYER["head_dim"]
    shapes = ((qkv, hidden), (hidden, width), (2 * ffn, hidden), (hidden, ffn))
    for term, found, names, guess in (
        ("decode", tables.decoding, ("batch_size", "step"), decoding.guess),
        ("prompts", tables.prompts, ("batch_size", "isl"), prompts.guess),
    ):
        if found is None:
            continue
        key = (LAYER["heads"], LAYER["kv_heads"], LAYER["head_dim"], 0)
        of = found[0].where(kv_cache_dtype="bfloat16", attn_dtype="bfloat16")
        attention = _only(of, key, names)
        if attention is None:
            continue
        errors = Errors()
        counts = _served(term == "decode")
        for fifth in range(EVERY):
            points = attention.held_out(f"{term},bfloat16,{','.join(map(str, key))}", 1, fifth)
            without = attention.without(points)
            for point in points:
                batch, length = sizes = attention.sizes(point)
                tokens = batch if term == "decode" else batch * length
                if counts(sizes) and tokens <= MOST_TOKENS:
                    guessed, known = (
                        sum(each(tokens, n, k) for n, k in shapes) for each in (thin[fifth], whole)
                    )
                    errors.add(guessed + guess(without, point), known + float(attention.seconds[point]))
        yield errors.score(f"layer, {term}", "bfloat16", version)


def _only(rows: Rows, key: Iterable[int], names: tuple[str, str]) -> Grid | None:
    of = rows.where(**dict(zip(attention_rows.KEY, key, strict=True)))
    return Grid.of(of, *names) if len(of) else None
