"""Distributions of (prompt, output) lengths: fixed, uniform or lognormal."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from pagesim.errors import PagesimError
from pagesim.workloads.trace import MAX_TOKENS, IntColumn


class Lengths(Protocol):
    """A joint distribution of prompt and output lengths, both in tokens, both at least 1."""

    def sample(self, size: int, rng: np.random.Generator) -> tuple[IntColumn, IntColumn]:
        """Return ``size`` prompts and as many outputs, ``[size]`` each, the same for the same ``rng``."""


@dataclass(frozen=True)
class Fixed:
    """Every prompt and every output is as long as the others."""

    prompt_tokens: int
    output_tokens: int

    def sample(self, size: int, rng: np.random.Generator) -> tuple[IntColumn, IntColumn]:
        """Return the two lengths ``size`` times."""
        return np.full(size, self.prompt_tokens), np.full(size, self.output_tokens)


@dataclass(frozen=True)
class Uniform:
    """Prompts and outputs independent, each uniform over a range, both ends included."""

    prompt_tokens: tuple[int, int]
    output_tokens: tuple[int, int]

    def sample(self, size: int, rng: np.random.Generator) -> tuple[IntColumn, IntColumn]:
        """Return ``size`` independent pairs."""
        prompts = rng.integers(*self.prompt_tokens, size, endpoint=True)
        return prompts, rng.integers(*self.output_tokens, size, endpoint=True)


@dataclass(frozen=True)
class Lognormal:
    """Prompts and outputs independent and lognormal, by mean and CV, rounded, at least 1."""

    mean_prompt: float
    cv_prompt: float
    mean_output: float
    cv_output: float

    def sample(self, size: int, rng: np.random.Generator) -> tuple[IntColumn, IntColumn]:
        """Return ``size`` independent pairs."""
        prompts = _lognormal(self.mean_prompt, self.cv_prompt, size, rng)
        return prompts, _lognormal(self.mean_output, self.cv_output, size, rng)


SPECS = {
    "fixed": "fixed:IN,OUT",
    "uniform": "uniform:LO-HI,LO-HI",
    "lognormal": "lognormal:MEAN_IN,CV_IN,MEAN_OUT,CV_OUT",
}
"""Each distribution that can be spelt in text, and how."""


MAX_CV = 100


def parse_lengths(spec: str) -> Lengths:
    """Return the distribution that a ``spec`` such as ``fixed:512,128`` names (see ``SPECS``).

    Raises:
        PagesimError: the text names no distribution, or a number in it is out of bounds.
    """
    kind, _, rest = spec.partition(":")
    if kind not in SPECS:
        raise PagesimError(f"lengths {spec!r} are unknown; write one of {', '.join(SPECS.values())}")
    parts = rest.split(",")
    pattern = r"\s*(\d+)\s*-\s*(\d+)\s*" if kind == "uniform" else r"\s*(\d+(?:\.\d+)?)\s*"
    found = [re.fullmatch(pattern, part, re.ASCII) for part in parts]
    matches = [m for m in found if m]
    if len(matches) != len(found) or len(parts) != (4 if kind == "lognormal" else 2):
        raise PagesimError(f"lengths {spec!r} cannot be read; write {SPECS[kind]}")
    values = [[float(g) for g in m.groups()] for m in matches]
    if kind == "uniform":
        (a, b), (c, d) = values
        for low, high in values:
            if low > high:
                raise PagesimError(f"lengths {spec!r}: the range {low:g}-{high:g} ends before it begins")
        _check_tokens(spec, a, b, c, d)
        return Uniform((int(a), int(b)), (int(c), int(d)))
    numbers = [v[0] for v in values]
    if kind == "fixed":
        _check_tokens(spec, *numbers)
        return Fixed(int(numbers[0]), int(numbers[1]))
    mean_in, cv_in, mean_out, cv_out = numbers
    _check_means(spec, mean_in, mean_out)
    for cv in (cv_in, cv_out):
        if not cv <= MAX_CV:
            raise PagesimError(f"lengths {spec!r}: a CV is {cv:g}; it must be a number from 0 to {MAX_CV}")
    return Lognormal(mean_in, cv_in, mean_out, cv_out)


def _check_tokens(spec: str, *tokens: float) -> None:
    for value in tokens:
        if not 1 <= value <= MAX_TOKENS or value != int(value):
            raise PagesimError(
                f"lengths {spec!r}: a length is {value:g}; it must be a whole number from 1 to {MAX_TOKENS}"
            )


def _check_means(spec: str, *means: float) -> None:
    for mean in means:
        if not 1 <= mean <= MAX_TOKENS:
            raise PagesimError(
                f"lengths {spec!r}: a mean is {mean:g} tokens; it must be from 1 to {MAX_TOKENS}"
            )


def _lognormal(mean: float, cv: float, size: int, rng: np.random.Generator) -> IntColumn:
    variance = np.log1p(cv**2)
    values = rng.lognormal(np.log(mean) - variance / 2, np.sqrt(variance), size)
    return np.clip(np.rint(values), 1, MAX_TOKENS).astype(np.int64)
