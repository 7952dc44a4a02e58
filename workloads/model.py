"""A fitted joint model of prompt and output lengths: a histogram in two dimensions, kept as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pagesim.errors import PagesimError, brief, reason
from pagesim.setup.reading import parse_json
from pagesim.workloads.arrivals import arrival_rate, gap_cv
from pagesim.workloads.files import has_recorded_arrivals
from pagesim.workloads.trace import MAX_TOKENS, FloatColumn, IntColumn, Trace

SCHEMA = "pagesim-lengths"
VERSION = 1
BINS = 160
"""Bins a side, at most: log-spaced, at least one token wide. With fewer, a p99 is off by percents."""

MAX_RATE = 1e9
"""More arrivals a second, or gaps more uneven, are taken for a damaged file."""

STATS_SAMPLE = 1_000_000


@dataclass(frozen=True)
class Provenance:
    """Where a model's rows come from: a source, its licence, and how they were chosen, a sentence each."""

    description: str
    source: str
    licence: str
    filter: str = "none"
    made_with: str = "pagesim.workloads.fit"


@dataclass(frozen=True, eq=False)
class LengthModel:
    """Counts of requests over bins of prompt × output length; lengths are uniform within a bin.

    Args:
        name: short, for the command line.
        provenance: where the rows come from.
        rows: how many requests were fitted.
        prompt_edges: bounds of the prompt bins in tokens, ``[P + 1]``; bin ``i`` is from edge i to edge
            i+1 - 1.
        output_edges: the same of the output, ``[O + 1]``.
        counts: requests in each bin, ``[P, O]``.
        total_below: prompt + output is always below this, or None for no bound.
        rate: recorded arrivals a second, or None where none were recorded.
        cv: coefficient of variation of the gaps between them, or None.
        source_stats: mean, median and p99 of prompt, output and total in the fitted rows.
        model_stats: the same of a large sample of this model.
    """

    name: str
    provenance: Provenance
    rows: int
    prompt_edges: IntColumn
    output_edges: IntColumn
    counts: npt.NDArray[np.int64]
    total_below: int | None
    rate: float | None
    cv: float | None
    source_stats: Mapping[str, Mapping[str, float]]
    model_stats: Mapping[str, Mapping[str, float]]

    def sample(self, size: int, rng: np.random.Generator) -> tuple[IntColumn, IntColumn]:
        """Return ``size`` prompts and outputs in tokens, ``[size]`` each, the same for the same ``rng``."""
        ends = np.cumsum(self.counts)
        cell = np.searchsorted(ends, rng.integers(0, ends[-1], size), side="right")
        row, column = np.divmod(cell, self.counts.shape[1])
        low_prompt, end_prompt = self.prompt_edges[row], self.prompt_edges[row + 1]
        low_output, end_output = self.output_edges[column], self.output_edges[column + 1]
        if self.total_below is not None:
            end_prompt = np.minimum(end_prompt, self.total_below - low_output)
        prompts = rng.integers(low_prompt, end_prompt)
        if self.total_below is not None:
            end_output = np.minimum(end_output, self.total_below - prompts)
        return prompts, rng.integers(low_output, end_output)

    def to_json(self) -> str:
        """Return the model as JSON text, the same text for the same model."""
        content = {
            "schema": SCHEMA,
            "version": VERSION,
            "name": self.name,
            "provenance": asdict(self.provenance),
            "rows": self.rows,
            "total_below": self.total_below,
            "arrivals": None if self.rate is None else {"rate_per_s": self.rate, "cv": self.cv},
            "stats": {"source": self.source_stats, "model": self.model_stats},
        }
        head = json.dumps(content, indent=1, ensure_ascii=False).removesuffix("\n}")
        # One line a prompt bin, so that a change of the file can be read.
        rows = ",\n".join(f"  {_compact(row)}" for row in self.counts)
        edges = (
            f'"prompt_edges": {_compact(self.prompt_edges)},\n "output_edges": {_compact(self.output_edges)}'
        )
        return f'{head},\n {edges},\n "counts": [\n{rows}\n ]\n}}\n'

    @staticmethod
    def recognises(path: Path) -> bool:
        """Say whether a file looks like a length model rather than a trace."""
        try:
            if not path.is_file():  # what is read from a pipe is gone, and a pipe may block
                return False
            with path.open("rb") as file:
                return f'"schema": "{SCHEMA}"'.encode() in file.read(200)
        except (OSError, ValueError):  # a name with a null byte is no path
            return False

    @classmethod
    def load(cls, path: Path | str) -> LengthModel:
        """Read a model from a JSON file.

        Raises:
            PagesimError: the file is missing or truncated, has another schema or version, or a bad value.
        """
        path = Path(path)
        try:
            content = parse_json(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise PagesimError(f"{path}: cannot be read ({error.strerror})") from error
        except ValueError as error:
            raise PagesimError(f"{path}: is not complete JSON; a length model is made by fit()") from error
        if not isinstance(content, dict) or content.get("schema") != SCHEMA:
            raise PagesimError(f'{path}: is no length model; one has "schema": "{SCHEMA}"')
        if content.get("version") != VERSION:
            raise PagesimError(
                f"{path}: schema version is {content.get('version')!r}; this release reads {VERSION}"
            )
        try:
            return cls._from_json(content)
        except KeyError as error:
            raise PagesimError(f"{path}: the length model lacks {error}") from error
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            raise PagesimError(f"{path}: the length model is damaged ({reason(error)})") from error

    @classmethod
    def _from_json(cls, content: dict[str, Any]) -> LengthModel:
        arrivals = content["arrivals"] or {"rate_per_s": None, "cv": None}
        model = cls(
            name=content["name"],
            provenance=Provenance(**content["provenance"]),
            rows=content["rows"],
            prompt_edges=np.array(content["prompt_edges"]),
            output_edges=np.array(content["output_edges"]),
            counts=np.array(content["counts"]),
            total_below=content["total_below"],
            rate=arrivals["rate_per_s"],
            cv=arrivals["cv"],
            source_stats=content["stats"]["source"],
            model_stats=content["stats"]["model"],
        )
        for name, edges in (("prompt_edges", model.prompt_edges), ("output_edges", model.output_edges)):
            if edges.dtype.kind != "i" or edges.ndim != 1 or len(edges) < 2:
                raise ValueError(f"{name} is no list of two or more whole numbers")
            if edges[0] < 1 or edges[-1] > MAX_TOKENS + 1 or (np.diff(edges) < 1).any():
                raise ValueError(f"{name} does not ascend from 1 or more to {MAX_TOKENS + 1} or less")
        shape = (len(model.prompt_edges) - 1, len(model.output_edges) - 1)
        if model.counts.dtype.kind != "i" or model.counts.shape != shape:
            raise ValueError(f"counts is no table of {shape[0]} × {shape[1]} whole numbers")
        if model.counts.min() < 0 or model.counts.sum() < 1:
            raise ValueError("counts holds a negative number, or only zeros")
        if not isinstance(model.name, str) or type(model.rows) is not int:
            raise ValueError("name is no text, or rows no whole number")
        if any(not isinstance(text, str) for text in vars(model.provenance).values()):
            raise ValueError("provenance holds what is no text")
        for name, value, least in (("rate_per_s", model.rate, 1 / MAX_RATE), ("cv", model.cv, 0)):
            if value is not None and not (type(value) in (int, float) and least <= value <= MAX_RATE):
                raise ValueError(f"{name} is {brief(value)}; it must be from {least:g} to {MAX_RATE:g}")
        if model.total_below is not None:
            if type(model.total_below) is not int or not 0 < model.total_below <= 2 * MAX_TOKENS + 1:
                raise ValueError(f"total_below is {brief(model.total_below)}; it must be a number of tokens")
            lowest = model.prompt_edges[:-1, None] + model.output_edges[None, :-1]
            if (model.counts[lowest >= model.total_below] > 0).any():
                raise ValueError(f"counts holds requests of total_below = {model.total_below} tokens or more")
        return model


def fit(
    trace: Trace, name: str, provenance: Provenance, *, total_below: int | None = None, bins: int = BINS
) -> LengthModel:
    """Fit a joint model of prompt and output lengths, and of the arrivals where they were recorded.

    Args:
        trace: the requests; one sample each, whatever their ``n``.
        name: short, for the command line.
        provenance: where the trace comes from.
        total_below: fit only requests with prompt + output below this, and never sample others.
        bins: bins a side, at most.

    Raises:
        PagesimError: no request is left to fit.
    """
    if total_below is not None:
        trace = trace.take(np.flatnonzero(trace.prompt_tokens + trace.output_tokens < total_below))
    if not len(trace):
        raise PagesimError(f"model {name}: the trace has no request to fit")
    prompt_edges, output_edges = _edges(trace.prompt_tokens, bins), _edges(trace.output_tokens, bins)
    counts = np.zeros((len(prompt_edges) - 1, len(output_edges) - 1), np.int64)
    cell = (
        np.searchsorted(prompt_edges, trace.prompt_tokens, side="right") - 1,
        np.searchsorted(output_edges, trace.output_tokens, side="right") - 1,
    )
    np.add.at(counts, cell, 1)
    recorded = has_recorded_arrivals(trace)
    draft = LengthModel(
        name=name,
        provenance=provenance,
        rows=len(trace),
        prompt_edges=prompt_edges,
        output_edges=output_edges,
        counts=counts,
        total_below=total_below,
        rate=_rounded(arrival_rate(trace.arrival_s)) if recorded else None,
        cv=_rounded(gap_cv(trace.arrival_s)) if recorded else None,
        source_stats=_stats(trace.prompt_tokens, trace.output_tokens),
        model_stats={},
    )
    sampled = draft.sample(STATS_SAMPLE, np.random.default_rng(0))
    return LengthModel(**{**vars(draft), "model_stats": _stats(*sampled)})


def _compact(row: IntColumn) -> str:
    return json.dumps(row.tolist(), separators=(",", ":"))


def _edges(tokens: IntColumn, bins: int) -> IntColumn:
    low, high = int(tokens.min()), int(tokens.max())
    inner = np.rint(np.geomspace(low, high, bins)).astype(np.int64)
    # The longest length is a bin of its own: many traces are cut at a limit, where requests then pile up.
    return np.unique(np.append(inner, [high, high + 1]))


def _stats(prompts: IntColumn, outputs: IntColumn) -> dict[str, dict[str, float]]:
    columns: dict[str, FloatColumn | IntColumn] = {
        "prompt_tokens": prompts,
        "output_tokens": outputs,
        "total_tokens": prompts + outputs,
    }
    return {
        name: {
            "mean": round(float(values.mean()), 2),
            "median": round(float(np.median(values)), 2),
            "p99": round(float(np.percentile(values, 99)), 2),
        }
        for name, values in columns.items()
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
